"""Packaging: ranges, pins, conda, make and containers agree.

pyproject.toml has the ranges, constraints.txt the pins; environment.yml, the Makefile and
Dockerfiles install by them. No file names the machine on which it was written, or a package index.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from labkit.checkout import check_all, missing_steps, set_up, venv_python
from labkit.classroom.wheel import SUFFIXES
from labkit.machine.check import DISTRIBUTION

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
REQUIREMENTS = [
    Requirement(line) for line in [*PROJECT["dependencies"], *EXTRAS["lab"], *EXTRAS["test"]]
]
CONSTRAINT_LINES = [
    line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"
]
PINS = {canonicalize_name(Requirement(line).name): Requirement(line) for line in CONSTRAINT_LINES}

needs_make = pytest.mark.skipif(
    shutil.which("make") is None, reason="make is not installed (apt install make)"
)


def pinned(name: str) -> str:
    """Return the version to which constraints.txt pins a package."""
    (pin,) = PINS[canonicalize_name(name)].specifier
    return pin.version


# --- ranges and pins ------------------------------------------------------------------------------


def test_no_package_is_pinned_twice():
    assert len(PINS) == len(CONSTRAINT_LINES)


@pytest.mark.parametrize("name", PINS)
def test_a_pin_is_one_exact_version(name):
    assert [pin.operator for pin in PINS[name].specifier] == ["=="]


@pytest.mark.parametrize("requirement", REQUIREMENTS, ids=lambda requirement: requirement.name)
def test_a_required_package_is_pinned_inside_its_range(requirement):
    assert canonicalize_name(requirement.name) in PINS
    assert pinned(requirement.name) in requirement.specifier


def test_the_pin_of_torch_fits_machines_with_and_without_a_gpu():
    """With "+cpu" it would not be installed on a machine with a GPU."""
    assert str(PINS["torch"]) == "torch==2.13.0"


def test_packages_of_nvidia_are_not_pinned():
    """They are other ones on other machines."""
    assert not [name for name in PINS if name.startswith(("nvidia-", "cuda-"))]


def test_the_pin_of_triton_is_what_torch_requires():
    """The metadata of the pinned torch for GPUs require this version."""
    assert pinned("triton") == "3.7.1"


def test_conda_installs_a_supported_python_and_the_lab_by_pip():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    python, *others = environment["dependencies"]
    assert python.removeprefix("python=") in SpecifierSet(PROJECT["requires-python"])
    assert others == ["pip", {"pip": ["--constraint constraints.txt", "--editable .[lab]"]}]


def test_binder_has_a_supported_python():
    python = (ROOT / "binder" / "runtime.txt").read_text().strip()
    assert python.removeprefix("python-") in SpecifierSet(PROJECT["requires-python"])


BINDER_SCRIPT = ROOT / "binder" / "postBuild"


def test_binder_installs_by_the_pins():
    assert "-c constraints.txt" in BINDER_SCRIPT.read_text()


@pytest.mark.skipif(os.name == "nt", reason="Windows has neither sh nor executable scripts")
def test_the_script_of_binder_can_be_run():
    assert os.access(BINDER_SCRIPT, os.X_OK)
    subprocess.run(["sh", "-n", str(BINDER_SCRIPT)], check=True)


CORE = {Requirement(line).name: Requirement(line).specifier for line in PROJECT["dependencies"]}


def test_the_core_has_exactly_these_dependencies():
    assert CORE.keys() == {"torch", "numpy", "matplotlib", "ipywidgets", "anywidget", "jinja2"}


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("torch", "2.10.0"),
        ("torch", "2.11.0"),
        ("ipywidgets", "7.7.1"),
        ("anywidget", "0.9.21"),
        ("numpy", "2.0.2"),
        ("jinja2", "3.1.6"),
    ],
)
def test_the_versions_of_colab_and_kaggle_satisfy_the_core(name, version):
    """So pip replaces nothing there."""
    assert version in CORE[name]


def test_the_supported_pythons_are_three():
    supported = SpecifierSet(PROJECT["requires-python"])
    assert [minor for minor in range(14) if f"3.{minor}" in supported] == [11, 12, 13]


def test_make_accepts_the_supported_pythons():
    assert "(3, 11) <= sys.version_info[:2] <= (3, 13)" in (ROOT / "Makefile").read_text()


each_dockerfile = pytest.mark.parametrize("file", ["Dockerfile", "docker/grader/Dockerfile"])


@each_dockerfile
def test_an_image_is_of_one_supported_python(file):
    lines = (ROOT / file).read_text().splitlines()
    assert lines.count("FROM python:3.11-slim") == 1


@each_dockerfile
def test_an_image_installs_by_the_pins(file):
    installs = re.findall(r"pip install[^&\n]*", (ROOT / file).read_text())
    assert installs
    for install in installs:
        assert re.search(r"-c (/parts/)?constraints.txt", install), install


def test_a_release_takes_every_kind_of_file_of_the_packages():
    left_out = [
        file
        for file in tracked_files()
        if file.startswith(("labkit/", "labkit_lessons/"))
        and not file.endswith((*SUFFIXES, "/py.typed"))
    ]
    assert not left_out, f"add their suffix to SUFFIXES of labkit.classroom.wheel: {left_out}"


# --- make -----------------------------------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path):
    """A folder with what `make` and `labkit setup` read of a checkout."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run make in a folder, without the variables of a make that runs these tests."""
    environment = {
        key: value
        for key, value in os.environ.items()
        if key not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")
    }
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def finish_set_up(folder: Path) -> None:
    """Leave the stamps of a finished set-up, newer than what they depend on."""
    newest = max(file.stat().st_mtime for file in folder.iterdir() if file.is_file())
    (folder / ".venv").mkdir()
    for stamp in (".created", ".lab-ready", ".test-ready"):
        (folder / ".venv" / stamp).touch()
        os.utime(folder / ".venv" / stamp, (newest + 1, newest + 1))


def commands(folder: Path, test: bool = True) -> list[str]:
    """Return the arguments of Python in the steps of a set-up that are still to be done."""
    return [" ".join(command) for step in missing_steps(folder, test) for command in step.commands]


def test_set_up_makes_an_environment_first(checkout):
    assert commands(checkout)[0] == "-m venv .venv"


def test_set_up_installs_torch_first_and_all_by_the_pins(checkout):
    _, *installs, _ = commands(checkout)
    packages = []
    for line in installs:
        before, _, after = line.partition("--constraint constraints.txt ")
        assert before.startswith("-m pip install ")
        packages.append(after.removeprefix("--quiet "))
    assert packages == ["torch", "--editable .[lab]", "--editable .[lab,test]"]


def test_set_up_compiles_the_simulated_gpu_last(checkout):
    assert (ROOT / commands(checkout)[-1]).is_file()


def test_set_up_without_tests_leaves_out_the_last_two_steps(checkout):
    assert commands(checkout, test=False) == commands(checkout)[:-2]


@needs_make
@pytest.mark.parametrize(("target", "command"), [("setup", "setup"), ("test", "setup --test")])
def test_make_sets_up_by_labkits_command_alone(checkout, target, command):
    planned = make(checkout, "--dry-run", target).stdout
    assert re.search(rf"-m labkit {command}$", planned, re.MULTILINE)
    assert "pip install" not in planned


@needs_make
@pytest.mark.parametrize("target", ["lab", "test", "setup"])
def test_make_does_not_repeat_a_finished_set_up(checkout, target):
    finish_set_up(checkout)
    assert "labkit setup" not in make(checkout, "--dry-run", target).stdout


def test_a_finished_set_up_has_no_missing_steps(checkout):
    finish_set_up(checkout)
    assert commands(checkout) == []


@pytest.fixture(params=["pyproject.toml", "constraints.txt"])
def changed_checkout(request, checkout):
    """A checkout of which a file was changed after its set-up."""
    finish_set_up(checkout)
    later = (checkout / ".venv" / ".test-ready").stat().st_mtime + 1
    os.utime(checkout / request.param, (later, later))
    return checkout


@needs_make
def test_make_sets_up_again_for_a_changed_file(changed_checkout):
    assert "labkit setup --test" in make(changed_checkout, "--dry-run", "test").stdout


def test_set_up_installs_again_for_a_changed_file(changed_checkout):
    stamps = [step.stamp for step in missing_steps(changed_checkout, test=True)]
    assert stamps == [".lab-ready", ".test-ready"]


class Calls:
    """In place of `subprocess.call`: notes each command, and returns the next exit status."""

    def __init__(self, *statuses):
        self.commands = []
        self.statuses = iter(statuses)

    def call(self, command, **options):
        self.commands.append(command)
        return next(self.statuses)


def test_a_step_that_fails_ends_the_set_up(checkout, monkeypatch):
    calls = Calls(0, 0, 7)
    monkeypatch.setattr(subprocess, "call", calls.call)
    assert set_up(checkout, python="some-python") != 0
    own_python = str(venv_python(checkout))
    assert [command[0] for command in calls.commands] == ["some-python", own_python, own_python]


def test_a_step_that_failed_is_repeated(checkout, monkeypatch):
    monkeypatch.setattr(subprocess, "call", Calls(0, 0, 7, 0, 0, 0).call)
    set_up(checkout, python="some-python")
    assert [step.stamp for step in missing_steps(checkout, test=False)] == [".lab-ready"]
    assert set_up(checkout, python="some-python") == 0


def test_options_of_torch_reach_its_installation_alone(checkout, monkeypatch):
    calls = Calls(*[0] * 10)
    monkeypatch.setenv("TORCH_OPTIONS", "--pre 'two words'")
    monkeypatch.setattr(subprocess, "call", calls.call)
    assert set_up(checkout) == 0
    with_options = [command for command in calls.commands if command[-2:] == ["--pre", "two words"]]
    assert [command[-3] for command in with_options] == ["torch"]


@needs_make
def test_make_passes_the_options_of_torch_on(checkout):
    with (checkout / "Makefile").open("a") as file:
        file.write("\nshow:\n\t@echo $$TORCH_OPTIONS\n")
    assert "--pre" in make(checkout, "show", "TORCH_OPTIONS=--pre").stdout


def test_every_check_runs_after_a_failure(checkout, monkeypatch):
    calls = Calls(0, 1, 0, 0, 0, 0)
    monkeypatch.setattr(subprocess, "call", calls.call)
    assert check_all(checkout, everything=False, pytest_arguments=[]) == 1
    names = ["ruff", "ruff", "codespell_lib", "mypy", "tests.javascript", "pytest"]
    assert [command[2] for command in calls.commands] == names


def test_arguments_for_pytest_are_passed_on(checkout, monkeypatch):
    calls = Calls(*[0] * 6)
    monkeypatch.setattr(subprocess, "call", calls.call)
    check_all(checkout, everything=False, pytest_arguments=["-k", "two words"])
    assert calls.commands[-1][-4:] == ["-m", "not slow", "-k", "two words"]


@needs_make
def test_a_missing_python_is_reported(checkout):
    done = make(checkout, "setup", "PYTHON=no-such-python")
    assert done.returncode != 0
    assert "The lab needs Python 3.11, 3.12 or 3.13; looked for: no-such-python." in done.stderr
    assert not (checkout / ".venv").exists()


@needs_make
@pytest.mark.skipif(sys.platform == "win32", reason="the stand-in is a shell script")
def test_a_python_without_venv_is_reported(checkout):
    stand_in = checkout / "python-without-venv"
    stand_in.write_text('#!/bin/sh\ncase "$2" in *ensurepip*) exit 1;; esac\n')
    stand_in.chmod(0o755)
    done = make(checkout, "setup", f"PYTHON={stand_in}")
    assert done.returncode != 0
    assert "its venv module is missing" in done.stderr
    assert "apt install python3-venv" in done.stderr


# --- no file names the place where it was written -------------------------------------------------


def tracked_files() -> list[str]:
    """Return the files that belong to the lab; skip the test outside of a checkout of git."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: which files belong to the lab is not known here")
    command = ["git", "ls-files"]
    listed = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return [file for file in listed if (ROOT / file).is_file()]


def texts() -> dict[str, str]:
    """Return path -> text of the tracked files, without pictures and arrays."""
    contents = {name: (ROOT / name).read_bytes() for name in tracked_files()}
    return {
        name: content.decode("utf-8") for name, content in contents.items() if b"\0" not in content
    }


# Addresses of package indexes, and pip's options for them. The brackets around one letter keep the
# pattern from matching itself.
REGISTRY = re.compile(
    r"(pypi|pythonhosted|anaconda|pytorch)\.(org|com)/(simple|whl|packages)"
    r"|--(extra-)?index-[u]rl|find-[l]inks"
)
# Absolute paths of folders that are a machine's own. That of the image's user, /home/learner, is
# the same everywhere.
MACHINE_PATH = re.compile(
    r"(?<![\w.:/~-])/(?!home/learner\b)(home|root|Users|work|opt)/\w+|file:///\w"
)


# The parts of these texts are joined here, so that this file does not match.
@pytest.mark.parametrize(
    "text",
    ["pip install --extra-index" + "-url somewhere", "https://download.pytorch." + "org/whl/cpu"],
)
def test_the_pattern_of_registries_matches(text):
    assert REGISTRY.search(text)


@pytest.mark.parametrize(
    "text", ["open('/home" + "/ada/lab.ipynb')", "see file:" + "///opt/wheels"]
)
def test_the_pattern_of_machines_matches(text):
    assert MACHINE_PATH.search(text)


def lines_with(pattern: re.Pattern[str]) -> list[tuple[str, str]]:
    """Return the lines of tracked files that match, each as (path, line)."""
    matching = []
    for name, text in texts().items():
        for line in text.splitlines():
            if pattern.search(line):
                matching.append((name, line.strip()[:100]))
    return matching


def test_no_file_names_a_registry():
    assert lines_with(REGISTRY) == []


def test_no_file_names_a_folder_of_a_machine():
    assert lines_with(MACHINE_PATH) == []


# A `pip install` of `labkit`, with up to six words between them. On the package index `labkit` is
# another project: this one is called fp16-lab there, and only its import labkit. What follows "./"
# or is followed by "." or "/" is a path.
OTHER_PROJECT = re.compile(
    r"pip3?\s+install(?:\s+|(?:[ \t]+[^\s`;&|]+){1,6}?[ \t]+)[\"'\\]*labkit(?![\w./])"
)


@pytest.mark.parametrize(
    "words", ['"labkit[fast]"', "--quiet labkit==1", "\nlabkit", '\\"labkit\\"']
)
def test_the_pattern_of_the_other_project_matches(words):
    assert OTHER_PROJECT.search(f"pip install {words}")


@pytest.mark.parametrize(
    "words", ["./labkit/x.whl", "torch`, then labkit lab", "x\nlabkit lab", "fp16-lab"]
)
def test_the_pattern_of_the_other_project_spares_this_one(words):
    assert not OTHER_PROJECT.search(f"pip install {words}")


def test_the_distribution_is_called_fp16_lab():
    assert PROJECT["name"] == "fp16-lab"
    assert DISTRIBUTION == "fp16-lab"


def test_no_text_installs_the_other_project():
    matching = {name for name, text in texts().items() if OTHER_PROJECT.search(text)}
    assert matching <= {"tests/test_packaging.py"}


def test_package_json_has_no_type_of_scripts() -> None:
    """Node applies a "type" to all scripts below it.

    Those of JupyterLab in .venv, which are not modules, would fail.
    """
    assert "type" not in json.loads((ROOT / "package.json").read_text(encoding="utf-8"))
