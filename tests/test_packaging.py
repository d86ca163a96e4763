"""Packaging: the files that install the lab agree, and set-up does its steps.

pyproject.toml has the ranges of versions, and constraints.txt the pins; environment.yml, the
Makefile and the Dockerfiles install by them. No file may name a path of the machine on which it was
written, or a registry.
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
    """Return the version of a package in constraints.txt."""
    (pin,) = PINS[canonicalize_name(name)].specifier
    return pin.version


# Ranges and pins


def test_each_constraint_is_one_exact_version():
    assert len(PINS) == len(CONSTRAINT_LINES)
    for requirement in PINS.values():
        assert [pin.operator for pin in requirement.specifier] == ["=="], requirement


@pytest.mark.parametrize("requirement", REQUIREMENTS, ids=str)
def test_each_requirement_is_pinned_inside_its_range(requirement):
    assert canonicalize_name(requirement.name) in PINS
    assert pinned(requirement.name) in requirement.specifier


def test_the_pin_of_torch_fits_any_build():
    # Only a CPU has the version 2.13.0+cpu.
    assert str(PINS["torch"]) == "torch==2.13.0"
    assert [name for name in PINS if name.startswith(("nvidia-", "cuda-"))] == []


def test_the_pin_of_triton_is_that_of_torch():
    # The metadata of this torch require this version.
    assert pinned("triton") == "3.7.1"


def test_the_conda_environment_installs_by_the_constraints():
    python, *others = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    assert python.removeprefix("python=") in SpecifierSet(PROJECT["requires-python"])
    assert others == ["pip", {"pip": ["--constraint constraints.txt", "--editable .[lab]"]}]


def test_binder_has_a_supported_python():
    python = (ROOT / "binder" / "runtime.txt").read_text().strip()
    assert python.removeprefix("python-") in SpecifierSet(PROJECT["requires-python"])


BINDER_SCRIPT = ROOT / "binder" / "postBuild"


def test_binder_installs_by_the_constraints():
    assert "-c constraints.txt" in BINDER_SCRIPT.read_text()


@pytest.mark.skipif(os.name == "nt", reason="Windows runs no script of a shell")
def test_binder_can_run_its_script():
    assert os.access(BINDER_SCRIPT, os.X_OK)
    subprocess.run(["sh", "-n", str(BINDER_SCRIPT)], check=True)


DEPENDENCIES = {
    Requirement(line).name: Requirement(line).specifier for line in PROJECT["dependencies"]
}


def test_the_lab_depends_on_six_packages():
    expected = {"torch", "numpy", "matplotlib", "ipywidgets", "anywidget", "jinja2"}
    assert DEPENDENCIES.keys() == expected


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
def test_versions_of_colab_and_kaggle_are_kept(name, version):
    assert version in DEPENDENCIES[name]


def test_make_accepts_the_supported_versions_of_python():
    supported = SpecifierSet(PROJECT["requires-python"])
    assert [minor for minor in range(14) if f"3.{minor}" in supported] == [11, 12, 13]
    assert "(3, 11) <= sys.version_info[:2] <= (3, 13)" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("file", ["Dockerfile", "docker/grader/Dockerfile"])
def test_a_dockerfile_installs_by_the_constraints(file):
    text = (ROOT / file).read_text()
    assert text.splitlines().count("FROM python:3.11-slim") == 1
    installs = re.findall(r"pip install[^&\n]*", text.split("FROM", 1)[1])
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


# make


@pytest.fixture
def checkout(tmp_path):
    """A folder with the files of the checkout that set-up reads."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run make in a folder, without the variables by which a make calls another."""
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
    """Return the commands of the missing steps of set-up."""
    return [" ".join(command) for step in missing_steps(folder, test) for command in step.commands]


def test_torch_is_installed_first(checkout):
    make_venv, *installs, compile_gpu = commands(checkout)
    assert make_venv == "-m venv .venv"
    packages = []
    for line in installs:
        assert line.startswith("-m pip install ")
        _, _, rest = line.partition("--constraint constraints.txt ")
        packages.append(rest.removeprefix("--quiet "))
    assert packages == ["torch", "--editable .[lab]", "--editable .[lab,test]"]
    # The last command compiles the simulated GPU.
    assert (ROOT / compile_gpu).is_file()


def test_set_up_of_the_lab_leaves_the_tests_out(checkout):
    assert commands(checkout, test=False) == commands(checkout)[:-2]


@needs_make
@pytest.mark.parametrize(("target", "command"), [("setup", "setup"), ("test", "setup --test")])
def test_make_sets_up_by_the_command_of_the_lab(checkout, target, command):
    planned = make(checkout, "--dry-run", target).stdout
    assert re.search(rf"-m labkit {command}$", planned, re.MULTILINE)
    assert "pip install" not in planned


@needs_make
@pytest.mark.parametrize("target", ["lab", "test", "setup"])
def test_make_does_not_repeat_a_finished_set_up(checkout, target):
    finish_set_up(checkout)
    assert "labkit setup" not in make(checkout, "--dry-run", target).stdout
    assert commands(checkout) == []


@needs_make
@pytest.mark.parametrize("changed", ["pyproject.toml", "constraints.txt"])
def test_make_installs_again_after_a_change(checkout, changed):
    finish_set_up(checkout)
    later = (checkout / ".venv" / ".test-ready").stat().st_mtime + 1
    os.utime(checkout / changed, (later, later))
    assert "labkit setup --test" in make(checkout, "--dry-run", "test").stdout
    stamps = [step.stamp for step in missing_steps(checkout, test=True)]
    assert stamps == [".lab-ready", ".test-ready"]


class Calls:
    """In place of `subprocess.call`: notes each command, and returns the next status, or 0."""

    def __init__(self, *statuses: int) -> None:
        self.commands: list[list[str]] = []
        self.statuses = list(statuses)

    def __call__(self, command: list[str], **options: object) -> int:
        self.commands.append(command)
        return self.statuses.pop(0) if self.statuses else 0


def test_a_step_that_fails_ends_set_up_and_is_repeated(checkout, monkeypatch):
    calls = Calls(0, 0, 7)
    monkeypatch.setattr(subprocess, "call", calls)
    assert set_up(checkout, python="some-python") == 7
    own_python = str(venv_python(checkout))
    assert [command[0] for command in calls.commands] == ["some-python", own_python, own_python]
    assert [step.stamp for step in missing_steps(checkout, test=False)] == [".lab-ready"]
    assert set_up(checkout, python="some-python") == 0


def test_options_of_torch_reach_its_installation_alone(checkout, monkeypatch):
    calls = Calls()
    monkeypatch.setenv("TORCH_OPTIONS", "--pre 'two words'")
    monkeypatch.setattr(subprocess, "call", calls)
    assert set_up(checkout) == 0
    with_options = [each for each in calls.commands if each[-2:] == ["--pre", "two words"]]
    assert [command[-3] for command in with_options] == ["torch"]


@needs_make
def test_make_passes_the_options_of_torch_on(checkout):
    (checkout / "Makefile").open("a").write("\nshow:\n\t@echo $$TORCH_OPTIONS\n")
    assert "--pre" in make(checkout, "show", "TORCH_OPTIONS=--pre").stdout


def test_every_check_runs_after_a_failure(checkout, monkeypatch):
    calls = Calls(0, 1)
    monkeypatch.setattr(subprocess, "call", calls)
    assert check_all(checkout, everything=False, pytest_arguments=["-k", "two words"]) == 1
    names = ["ruff", "ruff", "codespell_lib", "mypy", "tests.javascript", "pytest"]
    assert [command[2] for command in calls.commands] == names
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


# Texts of all files


def tracked_files() -> list[str]:
    """Return the files of the repository; outside of a git checkout, skip the test."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: which files belong to the lab is not known here")
    command = ["git", "ls-files"]
    listed = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return [file for file in listed if (ROOT / file).is_file()]


def texts() -> dict[str, str]:
    """Return the contents of the tracked files without NUL bytes, which pictures have."""
    contents = {name: (ROOT / name).read_bytes() for name in tracked_files()}
    return {
        name: content.decode("utf-8") for name, content in contents.items() if b"\0" not in content
    }


REGISTRY = re.compile(
    r"(pypi|pythonhosted|anaconda|pytorch)\.(org|com)/(simple|whl|packages)"
    r"|--(extra-)?index-[u]rl|find-[l]inks"
)
# The home of the image's own user is the same everywhere.
MACHINE_PATH = re.compile(
    r"(?<![\w.:/~-])/(?!home/learner\b)(home|root|Users|work|opt)/\w+|file:///\w"
)


# The examples are written in two parts, since this file is searched, too.
@pytest.mark.parametrize(
    "example",
    ["pip install --extra-index" + "-url somewhere", "https://download.pytorch." + "org/whl/cpu"],
)
def test_a_registry_is_recognized(example):
    assert REGISTRY.search(example)


@pytest.mark.parametrize(
    "example", ["open('/home" + "/ada/lab.ipynb')", "see file:" + "///opt/wheels"]
)
def test_a_path_of_a_machine_is_recognized(example):
    assert MACHINE_PATH.search(example)


def test_files_name_no_registry_or_machine():
    lines = [
        (name, line.strip()[:100])
        for name, text in texts().items()
        for line in text.splitlines()
        if REGISTRY.search(line) or MACHINE_PATH.search(line)
    ]
    assert lines == []


# The commands that install another project: on the package index `labkit` is not the lab, whose
# name is fp16-lab.
OTHER_PROJECT = re.compile(
    r"pip3?\s+install(?:\s+|(?:[ \t]+[^\s`;&|]+){1,6}?[ \t]+)[\"'\\]*labkit(?![\w./])"
)


@pytest.mark.parametrize(
    "words", ['"labkit[fast]"', "--quiet labkit==1", "\nlabkit", '\\"labkit\\"']
)
def test_an_installation_of_the_other_project_is_recognized(words):
    assert OTHER_PROJECT.search(f"pip install {words}")


@pytest.mark.parametrize(
    "words", ["./labkit/x.whl", "torch`, then labkit lab", "x\nlabkit lab", "fp16-lab"]
)
def test_an_installation_of_the_lab_is_recognized(words):
    assert not OTHER_PROJECT.search(f"pip install {words}")


def test_the_distribution_has_one_name():
    assert PROJECT["name"] == "fp16-lab"
    assert DISTRIBUTION == "fp16-lab"


def test_no_text_installs_the_other_project():
    files = {name for name, text in texts().items() if OTHER_PROJECT.search(text)}
    # The examples above.
    assert files - {"tests/test_packaging.py"} == set()


def test_package_json_has_no_type() -> None:
    """Node applies a "type" to all scripts below its file.

    JupyterLab's scripts in .venv are not modules.
    """
    assert "type" not in json.loads((ROOT / "package.json").read_text(encoding="utf-8"))
