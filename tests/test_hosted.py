"""Hosts that have torch but not the lab: a notebook's first cell installs the lab, and replaces
nothing.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
from contextlib import nullcontext
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


def test_address_may_be_written_as_git_writes_it() -> None:
    made = {
        written: build.for_hosts(CELLS, "06_loss_scaling", written)
        for written in (
            "",
            GITHUB,
            f"{GITHUB}.git",
            f"{GITHUB}/",
            f"{GITHUB}.git@main",
            f"{GITHUB}@main",
            f"{GITHUB}@v0.2.0",
            "https://git.example.org/ada/lab",
        )
    }
    assert made[""] == CELLS, "the address is that of the lab's publisher"
    assert build.repository() == "", "the address is that of the lab's publisher"
    for written in (f"{GITHUB}.git", f"{GITHUB}/", f"{GITHUB}.git@main", f"{GITHUB}@main"):
        assert made[written] == made[GITHUB]
    assert "blob/v0.2.0/notebooks" in str(made[f"{GITHUB}@v0.2.0"][0])
    title, first, *others = made["https://git.example.org/ada/lab"]
    assert title == CELLS[0], "badges are for GitHub alone"
    assert others == CELLS[1:], "badges are for GitHub alone"
    assert "git+https://git.example.org/ada/lab@main" in "".join(first["source"])
    for written in ("git@github.com:ada/fp16-lab.git", "github.com/ada/fp16-lab", "ada/fp16-lab"):
        with pytest.raises(
            ValueError, match=re.escape(f'OWNER/NAME" in pyproject.toml, got {written!r}')
        ):
            build.for_hosts(CELLS, "06_loss_scaling", written)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Every lesson as built in a checkout whose pyproject.toml names an address: file
    -> notebook.
    """
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


def test_badges_lead_to_the_lessons_own_file(
    published: dict[str, Any],
) -> None:
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
        assert (ROOT / "notebooks" / name).is_file(), "what the link leads to is committed there"
        code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        assert code[0]["id"] == "get-the-lab"
        nbformat.validate(nbformat.from_dict(notebook))


@pytest.mark.parametrize("fails", [False, True])
def test_first_cell_installs_the_lab_on_a_host(
    published: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    fails: bool,
) -> None:
    first = "".join(published["06_loss_scaling.ipynb"]["cells"][1]["source"])
    asked = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        assert options == {"capture_output": True, "text": True}
        asked.append(command)
        return subprocess.CompletedProcess(command, int(fails), "said", "words of pip's")

    monkeypatch.setattr(subprocess, "run", run)
    exec(first, {})
    assert asked == [], "where the lab is installed, nothing is done"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(importlib, "invalidate_caches", lambda: asked.append(["look again"]))
    with pytest.raises(subprocess.CalledProcessError) if fails else nullcontext():
        exec(first, {})
    commands = [
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", f"git+{GITHUB}@main"],
        [sys.executable, "-m", "labkit", "setup", "--here"],
        ["look again"],
    ]
    assert asked == commands[: 1 if fails else 3], "what fails goes no further"
    assert ("words of pip's" in capsys.readouterr().out) == fails


# --- what `labkit setup --here` does ---


def test_only_what_is_missing_is_installed_and_never_torch(
    capsys: pytest.CaptureFixture[str],
) -> None:
    added = (
        "Kept as they were: fp16-lab 0.2.0, torch 2.11.0+cu128, ipywidgets 7.7.1. Added: anywidget."
    )
    old = {**COLAB, "anywidget": "0.9.21", "torch": "2.9.0"}
    for there, status, asked, said in (
        (COLAB, 0, ["anywidget>=0.9.13"], added),
        (
            old,
            0,
            [],
            "torch 2.9.0 is too old; the lab may work all the same. Otherwise: `pip install -U",
        ),
        ({"fp16-lab": "0.2.0"}, 2, [], "This environment has no torch"),
    ):
        pip = Mock(return_value=0)
        assert complete(NEEDED, there.get, pip) == status
        words = [word for call in pip.call_args_list for word in call.args[0]]
        assert [word for word in words if ">=" in word] == asked
        assert not {"-U", "--upgrade", "--force-reinstall"} & set(words)
        assert said in capsys.readouterr().out


@pytest.mark.slow  # builds the lab from a clone
@pytest.mark.timeout(400 * slowness())
def test_first_cell_keeps_the_hosts_torch(tmp_path: Path) -> None:
    """An environment with all that is installed here but the lab; `origin` is a bare
    clone on disk.
    """
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: there is nothing to clone")
    origin = tmp_path / "origin.git"
    here = tmp_path / "host"
    subprocess.run(["git", "clone", "--quiet", "--bare", str(ROOT), str(origin)], check=True)
    subprocess.run(["git", "branch", "--force", "handed-out", "HEAD"], cwd=origin, check=True)
    venv.create(here, with_pip=False)
    python = here / ("Scripts" if os.name == "nt" else "bin") / "python"
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(here)}))
    for other in Path(sysconfig.get_path("purelib")).iterdir():  # pip among them
        if not re.search("labkit|fp16_lab", other.name):
            (packages / other.name).symlink_to(other)
    first = "".join(
        build.for_hosts(CELLS, "06_loss_scaling", f"{origin.as_uri()}@handed-out")[1]["source"]
    )
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
    # hatchling is here; nothing else is asked for
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
