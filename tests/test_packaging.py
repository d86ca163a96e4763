"""Packaging: ranges, pins, conda, make and containers agree.

pyproject.toml has the ranges, constraints.txt the pins; environment.yml, the Makefile and
Dockerfiles install by them. And no file may know on whose machine, or from which registry, it was
written.
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
    (pin,) = PINS[canonicalize_name(name)].specifier
    return pin.version


# Ranges and pins


def test_constraints_pin_each_package_inside_its_range():
    assert len(PINS) == len(CONSTRAINT_LINES)
    for requirement in PINS.values():
        assert [pin.operator for pin in requirement.specifier] == ["=="], (
            f"{requirement} is not one exact version"
        )
    for requirement in REQUIREMENTS:
        assert canonicalize_name(requirement.name) in PINS, (
            f"{requirement.name} has no pin in constraints.txt"
        )
        assert pinned(requirement.name) in requirement.specifier, requirement.name
    assert str(PINS["torch"]) == "torch==2.13.0"  # "+cpu" would shut out everybody with a GPU
    assert not [name for name in PINS if name.startswith(("nvidia-", "cuda-"))]
    # asked for by the metadata of this torch; another could not stand beside it
    assert pinned("triton") == "3.7.1"
    python, *others = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    assert python.removeprefix("python=") in SpecifierSet(PROJECT["requires-python"])
    assert others == ["pip", {"pip": ["--constraint constraints.txt", "--editable .[lab]"]}]


def test_binder_has_a_supported_python():
    python = (ROOT / "binder" / "runtime.txt").read_text().strip()
    assert python.removeprefix("python-") in SpecifierSet(PROJECT["requires-python"])
    script = ROOT / "binder" / "postBuild"
    assert "-c constraints.txt" in script.read_text()
    if os.name != "nt":
        assert os.access(script, os.X_OK)
        subprocess.run(["sh", "-n", str(script)], check=True)


def test_dependencies_are_exactly_these():
    """Colab's and Kaggle's versions satisfy the core, so that pip replaces nothing there."""
    core = {Requirement(line).name: Requirement(line).specifier for line in PROJECT["dependencies"]}
    assert core.keys() == {"torch", "numpy", "matplotlib", "ipywidgets", "anywidget", "jinja2"}
    for line in (
        "torch 2.10.0",
        "torch 2.11.0",
        "ipywidgets 7.7.1",
        "anywidget 0.9.21",
        "numpy 2.0.2",
        "jinja2 3.1.6",
    ):
        name, version = line.split()
        assert version in core[name], line


def test_python_range_is_the_same_everywhere():
    supported = SpecifierSet(PROJECT["requires-python"])
    assert [minor for minor in range(14) if f"3.{minor}" in supported] == [11, 12, 13]
    assert "(3, 11) <= sys.version_info[:2] <= (3, 13)" in (ROOT / "Makefile").read_text()
    for file in ("Dockerfile", "docker/grader/Dockerfile"):
        text = (ROOT / file).read_text()
        installs = re.findall(r"pip install[^&\n]*", text.split("FROM", 1)[1])
        assert (
            text.count("\nFROM python:3.11-slim\n") + text.startswith("FROM python:3.11-slim\n")
            == 1
        ), file
        assert installs, file
        assert all(re.search(r"-c (/parts/)?constraints.txt", install) for install in installs), (
            file
        )


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
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
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
    return [" ".join(command) for step in missing_steps(folder, test) for command in step.commands]


def test_torch_is_installed_first(checkout):
    made, *installs, compiles = commands(checkout)
    assert made == "-m venv .venv"
    assert all(line.startswith("-m pip install ") for line in installs)
    assert all("--constraint constraints.txt" in line for line in installs)
    wanted = [line.split("constraints.txt ")[1].removeprefix("--quiet ") for line in installs]
    assert wanted == ["torch", "--editable .[lab]", "--editable .[lab,test]"]
    assert (ROOT / compiles).is_file(), "the simulated GPU"
    assert commands(checkout, test=False) == commands(checkout)[:-2]


@needs_make
def test_make_installs_again_for_changed_pins_only(
    checkout,
):
    for target, asked in (("setup", "setup"), ("test", "setup --test")):
        planned = make(checkout, "--dry-run", target).stdout
        assert re.search(rf"-m labkit {asked}$", planned, re.MULTILINE)
        assert "pip install" not in planned, "one road"
    finish_set_up(checkout)
    for target in ("lab", "test", "setup"):
        assert "labkit setup" not in make(checkout, "--dry-run", target).stdout
    assert commands(checkout) == []
    later = (checkout / ".venv" / ".test-ready").stat().st_mtime + 1
    for changed in ("pyproject.toml", "constraints.txt"):
        before = (checkout / changed).stat().st_mtime
        os.utime(checkout / changed, (later, later))
        assert "labkit setup --test" in make(checkout, "--dry-run", "test").stdout, changed
        assert [step.stamp for step in missing_steps(checkout, test=True)] == [
            ".lab-ready",
            ".test-ready",
        ], changed
        os.utime(checkout / changed, (before, before))


def test_a_step_that_fails_ends_set_up_and_is_repeated(checkout, monkeypatch):
    ran = []
    statuses = iter([0, 0, 7, 0, 0, 0])
    monkeypatch.setattr(
        subprocess, "call", lambda command, cwd: (ran.append(command), next(statuses))[1]
    )
    assert set_up(checkout, python="some-python") != 0
    assert [command[0] for command in ran] == ["some-python", *[str(venv_python(checkout))] * 2]
    assert [step.stamp for step in missing_steps(checkout, test=False)] == [".lab-ready"]
    assert set_up(checkout, python="some-python") == 0


def test_options_of_torch_reach_its_installation_alone(checkout, monkeypatch):
    ran = []
    monkeypatch.setenv("TORCH_OPTIONS", "--pre 'two words'")
    monkeypatch.setattr(subprocess, "call", lambda command, cwd: ran.append(command) or 0)
    assert set_up(checkout) == 0
    with_options = [command for command in ran if command[-2:] == ["--pre", "two words"]]
    assert [command[-3] for command in with_options] == ["torch"]


@needs_make
def test_make_passes_the_options_of_torch_on(checkout):
    (checkout / "Makefile").open("a").write("\nshow:\n\t@echo $$TORCH_OPTIONS\n")
    assert "--pre" in make(checkout, "show", "TORCH_OPTIONS=--pre").stdout


def test_every_check_runs_after_a_failure(checkout, monkeypatch):
    ran = []
    statuses = iter([0, 1, 0, 0, 0, 0])
    monkeypatch.setattr(
        subprocess, "call", lambda command, cwd, env: (ran.append(command), next(statuses))[1]
    )
    assert check_all(checkout, everything=False, pytest_arguments=["-k", "two words"]) == 1
    names = ["ruff", "ruff", "codespell_lib", "mypy", "tests.javascript", "pytest"]
    assert [command[2] for command in ran] == names
    assert ran[-1][-4:] == ["-m", "not slow", "-k", "two words"]


@needs_make
@pytest.mark.skipif(sys.platform == "win32", reason="the stand-in is a shell script")
def test_unusable_python_is_reported(checkout):
    done = make(checkout, "setup", "PYTHON=no-such-python")
    assert done.returncode != 0
    assert "The lab needs Python 3.11, 3.12 or 3.13; looked for: no-such-python." in done.stderr
    assert not (checkout / ".venv").exists()
    stand_in = checkout / "python-without-venv"
    stand_in.write_text('#!/bin/sh\ncase "$2" in *ensurepip*) exit 1;; esac\n')
    stand_in.chmod(0o755)
    done = make(checkout, "setup", f"PYTHON={stand_in}")
    assert done.returncode != 0
    assert "its venv module is missing" in done.stderr
    assert "apt install python3-venv" in done.stderr


# Nothing knows where it was written


def tracked_files() -> list[str]:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: which files belong to the lab is not known here")
    command = ["git", "ls-files"]
    listed = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return [file for file in listed if (ROOT / file).is_file()]


def texts() -> dict[str, str]:
    """Return the tracked files but pictures and arrays."""
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


def test_files_name_no_registry_or_machine():
    for words in (
        "pip install --extra-index" + "-url somewhere",
        "https://download.pytorch." + "org/whl/cpu",
    ):
        assert REGISTRY.search(words)
    for words in ("open('/home" + "/ada/lab.ipynb')", "see file:" + "///opt/wheels"):
        assert MACHINE_PATH.search(words)
    lines = [
        (name, line.strip()[:100])
        for name, text in texts().items()
        for line in text.splitlines()
        if REGISTRY.search(line) or MACHINE_PATH.search(line)
    ]
    assert lines == []


# `labkit` on the package index is another project; ours is fp16-lab, and only the import is called
# labkit.
OTHER_PROJECT = re.compile(
    r"pip3?\s+install(?:\s+|(?:[ \t]+[^\s`;&|]+){1,6}?[ \t]+)[\"'\\]*labkit(?![\w./])"
)


def test_texts_install_the_right_distribution():
    for words in ('"labkit[fast]"', "--quiet labkit==1", "\nlabkit", '\\"labkit\\"'):
        assert OTHER_PROJECT.search(f"pip install {words}"), words
    for words in ("./labkit/x.whl", "torch`, then labkit lab", "x\nlabkit lab", "fp16-lab"):
        assert not OTHER_PROJECT.search(f"pip install {words}"), words
    assert PROJECT["name"] == "fp16-lab"
    assert DISTRIBUTION == "fp16-lab"
    found = {name for name, text in texts().items() if OTHER_PROJECT.search(text)}
    assert found - {"tests/test_packaging.py"} == set()


def test_package_json_has_no_scripts() -> None:
    """Node takes a "type" for all scripts below it: JupyterLab's own in .venv, which are no
    modules, would fail.
    """
    assert "type" not in json.loads((ROOT / "package.json").read_text(encoding="utf-8"))
