"""A host that has torch and not the lab gets it by a notebook's first cell: nothing is replaced, nothing restarted."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
import venv
from collections.abc import Sequence
from pathlib import Path

import pytest

from labkit.commands.setup import complete
from notebooks import build
from tests.slowness import slowness

ROOT = Path(__file__).parents[1]
NEEDED = {"torch": "2.10", "ipywidgets": "7.6", "anywidget": "0.9.13"}
COLAB = {"labkit": "0.2.0", "torch": "2.11.0+cu128", "ipywidgets": "7.7.1"}
CELLS = [
    {"cell_type": "markdown", "id": "title", "metadata": {}, "source": ["# 06 · Loss scaling"]},
    {"cell_type": "code", "id": "one", "metadata": {}, "execution_count": None, "outputs": [], "source": ["1"]},
]
GITHUB = "https://github.com/ada/fp16-lab"

# --- what is written into the notebooks ---


def test_without_an_address_a_lesson_is_as_it_was() -> None:
    assert build.for_hosts(CELLS, "06_loss_scaling", "") == CELLS
    assert build.repository() == "", "the address is whoever's publishes the lab"


def test_with_an_address_each_lesson_has_badges_and_a_first_cell() -> None:
    title, first, *others = build.for_hosts(CELLS, "06_loss_scaling", f"{GITHUB}@v0.2.0")
    text = "".join(title["source"])
    assert text.startswith("# 06 · Loss scaling\n\n[![open in Colab](")
    notebook = "blob/v0.2.0/notebooks/06_loss_scaling.ipynb"
    assert f"(https://colab.research.google.com/github/ada/fp16-lab/{notebook})" in text
    assert f"(https://kaggle.com/kernels/welcome?src={GITHUB}/{notebook})" in text
    assert "(https://mybinder.org/v2/gh/ada/fp16-lab/v0.2.0?labpath=notebooks/06_loss_scaling.ipynb)" in text
    assert f'"git+{GITHUB}@v0.2.0"' in "".join(first["source"])
    assert others == CELLS[1:]
    assert CELLS[0]["source"] == ["# 06 · Loss scaling"], "what was given is as it was"


def test_the_hosts_badges_are_for_github_alone() -> None:
    title, first, *_ = build.for_hosts(CELLS, "06_loss_scaling", "https://git.example.org/ada/lab")
    assert title == CELLS[0]
    assert "git+https://git.example.org/ada/lab@main" in "".join(first["source"])


def test_where_the_lab_is_installed_the_first_cell_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object, **__: object) -> None:
        raise AssertionError("nothing is to be run here")

    monkeypatch.setattr(subprocess, "run", run)
    exec("".join(build.for_hosts(CELLS, "06_loss_scaling", GITHUB)[1]["source"]), {})


# --- what `labkit setup --here` does ---


class Pip:
    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, command: Sequence[str]) -> int:
        assert not {"-U", "--upgrade", "--force-reinstall"} & set(command)
        self.asked += [word for word in command if ">=" in word]
        return 0


def test_only_what_is_missing_is_installed(capsys: pytest.CaptureFixture[str]) -> None:
    pip = Pip()
    assert complete(NEEDED, COLAB.get, pip) == 0
    assert pip.asked == ["anywidget>=0.9.13"]
    said = "Kept as they were: labkit 0.2.0, torch 2.11.0+cu128, ipywidgets 7.7.1. Added: anywidget."
    assert said in capsys.readouterr().out


def test_an_older_version_is_kept_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    pip = Pip()
    assert complete(NEEDED, {**COLAB, "anywidget": "0.9.21", "torch": "2.9.0"}.get, pip) == 0
    assert pip.asked == []
    assert "torch 2.9.0 is too old; the lab may work all the same. Else: `pip install -U" in capsys.readouterr().out


def test_torch_is_never_downloaded(capsys: pytest.CaptureFixture[str]) -> None:
    pip = Pip()
    assert complete(NEEDED, {"labkit": "0.2.0"}.get, pip) == 2
    assert pip.asked == []
    assert "There is no torch in this environment" in capsys.readouterr().out


@pytest.mark.slow  # builds the lab from a clone
@pytest.mark.timeout(400 * slowness())
def test_the_first_cell_gets_the_lab_from_a_clone_and_keeps_torch(tmp_path: Path) -> None:
    """An environment with all that is installed here but the lab; `origin` is a bare clone on disk."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: there is nothing to clone")
    origin, here = tmp_path / "origin.git", tmp_path / "host"
    subprocess.run(["git", "clone", "--quiet", "--bare", str(ROOT), str(origin)], check=True)
    subprocess.run(["git", "branch", "--force", "handed-out", "HEAD"], cwd=origin, check=True)
    venv.create(here, with_pip=False)
    python = here / ("Scripts" if os.name == "nt" else "bin") / "python"
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(here)}))
    for other in Path(sysconfig.get_path("purelib")).iterdir():  # pip among them
        if "labkit" not in other.name:
            (packages / other.name).symlink_to(other)
    first = "".join(build.for_hosts(CELLS, "06_loss_scaling", f"{origin.as_uri()}@handed-out")[1]["source"])
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
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "LABKIT_DATA")}
    offline = {"PIP_NO_BUILD_ISOLATION": "false", "PIP_NO_INDEX": "1"}  # setuptools is here; nothing else is asked for
    done = subprocess.run(
        [str(python), "-c", program], cwd=tmp_path, env=kept | offline, capture_output=True, text=True,
        timeout=300 * slowness(),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("The lab is ready. Kept as they were: labkit ") == 1
    assert done.stdout.strip().endswith("True")
    assert str(here) in done.stdout.splitlines()[-1]
    installed = json.loads((packages / "labkit" / "notebooks" / "00_start.ipynb").read_text(encoding="utf-8"))
    assert installed["nbformat"] == 4
