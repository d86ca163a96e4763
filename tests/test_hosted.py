"""Lessons on hosts such as Colab, which have torch but not the lab.

The first cell of a lesson installs the lab and keeps the packages of the host; badges lead to the
hosts.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import nbformat
import pytest

from labkit.commands.machine import complete
from notebooks import build
from tests.slowness import slowness

ROOT = Path(__file__).parents[1]
NEEDED = {"torch": "2.10", "ipywidgets": "7.6", "anywidget": "0.9.13"}
COLAB = {"fp16-lab": "0.2.0", "torch": "2.11.0+cu128", "ipywidgets": "7.7.1"}
CELLS = [
    {"cell_type": "markdown", "id": "title", "metadata": {}, "source": ["# 06 · Loss scaling"]},
    {
        "cell_type": "code",
        "id": "one",
        "metadata": {},
        "execution_count": None,
        "outputs": [],
        "source": ["1"],
    },
]
GITHUB = "https://github.com/ada/fp16-lab"

# --- what is written into the notebooks ---


def cells_for(address: str) -> list[dict[str, Any]]:
    return build.for_hosts(CELLS, "06_loss_scaling", address)


def test_without_an_address_a_notebook_stays_as_it_is() -> None:
    assert cells_for("") == CELLS


def test_the_checkout_has_no_address() -> None:
    # The publisher of the lab writes the address of a repository into pyproject.toml.
    assert build.repository() == ""


@pytest.mark.parametrize("ending", [".git", "/", ".git@main", "@main"])
def test_address_may_end_as_git_writes_it(ending: str) -> None:
    assert cells_for(GITHUB + ending) == cells_for(GITHUB)


def test_badges_lead_to_the_branch_of_the_address() -> None:
    title, *_ = cells_for(f"{GITHUB}@v0.2.0")
    assert "blob/v0.2.0/notebooks" in str(title)


def test_another_host_than_github_has_no_badges() -> None:
    title, first, *others = cells_for("https://git.example.org/ada/lab")
    assert title == CELLS[0]
    assert "git+https://git.example.org/ada/lab@main" in "".join(first["source"])
    assert others == CELLS[1:]


@pytest.mark.parametrize(
    "address", ["git@github.com:ada/fp16-lab.git", "github.com/ada/fp16-lab", "ada/fp16-lab"]
)
def test_another_form_of_address_is_refused(address: str) -> None:
    message = f'OWNER/NAME" in pyproject.toml, got {address!r}'
    with pytest.raises(ValueError, match=re.escape(message)):
        cells_for(address)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Every lesson by its file, as built in a checkout whose pyproject.toml names an address."""
    checkout = tmp_path_factory.mktemp("published")
    own = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    named = re.sub(r'^repository = ""$', f'repository = "{GITHUB}"', own, flags=re.MULTILINE)
    assert named != own
    (checkout / "pyproject.toml").write_text(named, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "ROOT", checkout)
        return {
            path.name: json.loads(text)
            for path, text in build.wanted().items()
            if path.name != build.GLOSSARY
        }


def test_badges_lead_to_the_lessons_own_file(published: dict[str, Any]) -> None:
    assert len(published) == len(build.sources())
    for name, notebook in published.items():
        links = re.findall(
            r"\[!\[open in (\w+)\]\([^)]*\)\]\(([^)]*)\)", "".join(notebook["cells"][0]["source"])
        )
        assert dict(links) == {
            "Colab": "https://colab.research.google.com/github/ada/fp16-lab/blob/main/notebooks/"
            f"{name}",
            "Kaggle": f"https://kaggle.com/kernels/welcome?src={GITHUB}/blob/main/notebooks/{name}",
            "Binder": f"https://mybinder.org/v2/gh/ada/fp16-lab/main?labpath=notebooks/{name}",
        }
        # The links lead to this file.
        assert (ROOT / "notebooks" / name).is_file()


def test_the_first_code_cell_gets_the_lab(published: dict[str, Any]) -> None:
    for notebook in published.values():
        code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        assert code[0]["id"] == "get-the-lab"


def test_published_notebooks_are_valid(published: dict[str, Any]) -> None:
    for notebook in published.values():
        nbformat.validate(nbformat.from_dict(notebook))


INSTALL = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", f"git+{GITHUB}@main"]
SETUP = [sys.executable, "-m", "labkit", "setup", "--here"]
OUTPUT_OF_PIP = "words of pip's"


class Commands:
    """In place of `subprocess.run`: notes each command, and ends it with one exit status."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.calls: list[list[str]] = []

    def run(self, command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        assert options == {"capture_output": True, "text": True}
        self.calls.append(command)
        return subprocess.CompletedProcess(command, self.status, "", OUTPUT_OF_PIP)


@pytest.fixture
def first_cell(published: dict[str, Any]) -> str:
    """The cell of lesson 06 that gets the lab."""
    return "".join(published["06_loss_scaling.ipynb"]["cells"][1]["source"])


def test_first_cell_does_nothing_if_the_lab_is_installed(
    first_cell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = Commands(status=0)
    monkeypatch.setattr(subprocess, "run", commands.run)
    exec(first_cell, {})
    assert commands.calls == []


def test_first_cell_installs_the_lab_on_a_host(
    first_cell: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = Commands(status=0)
    invalidate_caches = Mock()
    monkeypatch.setattr(subprocess, "run", commands.run)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(importlib, "invalidate_caches", invalidate_caches)
    exec(first_cell, {})
    assert commands.calls == [INSTALL, SETUP]
    # Without it Python may not find a package that was installed after it had searched.
    invalidate_caches.assert_called_once_with()
    assert OUTPUT_OF_PIP not in capsys.readouterr().out


def test_first_cell_ends_with_pips_output_if_pip_fails(
    first_cell: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = Commands(status=1)
    monkeypatch.setattr(subprocess, "run", commands.run)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(subprocess.CalledProcessError):
        exec(first_cell, {})
    assert commands.calls == [INSTALL]
    assert OUTPUT_OF_PIP in capsys.readouterr().out


# --- what `labkit setup --here` does ---


def test_only_missing_packages_are_installed(capsys: pytest.CaptureFixture[str]) -> None:
    pip = Mock(return_value=0)
    assert complete(NEEDED, COLAB.get, pip) == 0
    words = [word for call in pip.call_args_list for word in call.args[0]]
    assert [word for word in words if ">=" in word] == ["anywidget>=0.9.13"]
    assert {"-U", "--upgrade", "--force-reinstall"} & set(words) == set()
    assert (
        "Kept as they were: fp16-lab 0.2.0, torch 2.11.0+cu128, ipywidgets 7.7.1. Added: anywidget."
        in capsys.readouterr().out
    )


def test_a_torch_that_is_too_old_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    pip = Mock(return_value=0)
    installed = {**COLAB, "anywidget": "0.9.21", "torch": "2.9.0"}
    assert complete(NEEDED, installed.get, pip) == 0
    pip.assert_not_called()
    assert (
        "torch 2.9.0 is too old; the lab may work all the same. Otherwise: `pip install -U"
        in capsys.readouterr().out
    )


def test_an_environment_without_torch_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    pip = Mock(return_value=0)
    assert complete(NEEDED, {"fp16-lab": "0.2.0"}.get, pip) == 2
    pip.assert_not_called()
    assert "This environment has no torch" in capsys.readouterr().out


def published_clone(folder: Path) -> str:
    """Make a bare clone of the checkout, and return the address of a branch of it."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: there is nothing to clone")
    subprocess.run(["git", "clone", "--quiet", "--bare", str(ROOT), str(folder)], check=True)
    subprocess.run(["git", "branch", "--force", "handed-out", "HEAD"], cwd=folder, check=True)
    return f"{folder.as_uri()}@handed-out"


def host_without_the_lab(folder: Path) -> tuple[Path, Path]:
    """Make an environment with all packages that are installed here except for the lab.

    Returns:
        Its Python, and its folder of packages.
    """
    venv.create(folder, with_pip=False)
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    for package in Path(sysconfig.get_path("purelib")).iterdir():
        if not re.search("labkit|fp16_lab", package.name):
            (packages / package.name).symlink_to(package)
    return python, packages


@pytest.mark.slow
@pytest.mark.timeout(400 * slowness())
def test_first_cell_keeps_the_hosts_torch(tmp_path: Path) -> None:
    """It installs the lab from a clone on disk, and does nothing when it is run again."""
    address = published_clone(tmp_path / "origin.git")
    here = tmp_path / "host"
    python, packages = host_without_the_lab(here)
    first = "".join(build.for_hosts(CELLS, "06_loss_scaling", address)[1]["source"])
    program = f"""
import importlib.util, torch
before, version = importlib.util.find_spec("labkit"), torch.__version__
assert before is None
CELL = {first!r}
exec(CELL)
import labkit, labkit.amp
exec(CELL)
print(labkit.__file__, torch.__version__ == version)
"""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "LABKIT_DATA")
    }
    # The build needs hatchling only, which is in this environment.
    offline = {"PIP_NO_BUILD_ISOLATION": "false", "PIP_NO_INDEX": "1"}
    done = subprocess.run(
        [str(python), "-c", program],
        cwd=tmp_path,
        env=kept | offline,
        capture_output=True,
        text=True,
        timeout=300 * slowness(),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("The lab is ready. Kept as they were: fp16-lab ") == 1
    assert done.stdout.strip().endswith("True")
    assert str(here) in done.stdout.splitlines()[-1]
    installed = json.loads(
        (packages / "labkit" / "notebooks" / "00_start.ipynb").read_text(encoding="utf-8")
    )
    assert installed["nbformat"] == 4
