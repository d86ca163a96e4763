"""The guard finds planted differences, counts a journey correctly, and has complete scripts."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.guard.compare import compare
from tests.guard.journeys import walking
from tests.guard.strangers import SCRIPTS, repaired, scripts
from tests.guard.trees import OWN_TREE

# in a copy of labkit: half the first scale, wherever the scale is kept
PLANTED = """
from labkit.amp.recipe import RECIPES as _recipes
object.__setattr__(_recipes["O2"].scaler, "init_scale", 2.0**15)
"""


def test_a_planted_difference_of_a_tree_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planted = tmp_path / "planted"
    shutil.copytree(OWN_TREE / "labkit", planted / "labkit", ignore=shutil.ignore_patterns("*.pyc"))
    for entry in OWN_TREE.iterdir():
        if entry.name not in ("labkit", ".git"):
            (planted / entry.name).symlink_to(entry)
    with (planted / "labkit" / "amp" / "__init__.py").open("a", encoding="utf-8") as file:
        file.write(PLANTED)
    for name, tree in (("old", OWN_TREE), ("new", planted)):
        words = ["record", str(tmp_path / name), "--tree", str(tree), "--only", "recipes/digits/O"]
        done = subprocess.run(
            [sys.executable, "-m", "tests.guard", *words], cwd=OWN_TREE, capture_output=True
        )
        assert done.returncode == 0, done.stderr.decode()
    assert compare(tmp_path / "old", tmp_path / "old") == 0
    capsys.readouterr()
    assert compare(tmp_path / "old", tmp_path / "new") == 1
    said = capsys.readouterr().out
    assert "recipes/digits/O2:\n  - step 1, " in said
    assert "recipes/digits/O0" not in said, "FP32 has no scale"


def recording(folder: Path, **texts: str) -> Path:
    folder.mkdir()
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ({"a": "1\n"}, {"a": "1\n", "b": "2\n"}, "b:\n  only in the new recording"),
        ({"a": "1\n", "b": "2\n"}, {"a": "1\n"}, "b:\n  only in the old recording"),
        ({"a": "1\n2\n3\n"}, {"a": "1\n4\n3\n"}, "a:\n  - 2\n  + 4\n"),
        ({}, {}, "0 items before"),
    ],
)
def test_each_kind_of_difference_is_one(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    before: dict[str, str],
    after: dict[str, str],
    said: str,
) -> None:
    old, new = recording(tmp_path / "old", **before), recording(tmp_path / "new", **after)
    assert compare(old, new) == 1
    assert said in capsys.readouterr().out


TOP = """
def start(below):
    below.leaf()
    again(below)

def again(below):
    below.caller(up)

def up():
    beside()

def beside():
    [leaf for leaf in ()]
"""
BELOW = """
def leaf():
    pass

def caller(up):
    leaf()
    up()
"""


def test_a_walk_counts_stays_returns_and_climbs(tmp_path: Path) -> None:
    """Top opens a file; below opens another; again is a return; back up from below is a return and
    a climb.
    """
    (tmp_path / "labkit").mkdir()
    texts = {"below": BELOW, "top": TOP}
    modules = {}
    for name, text in texts.items():
        path = tmp_path / "labkit" / f"{name}.py"
        path.write_text(text, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(f"walked_{name}", path)
        assert spec is not None
        assert spec.loader is not None
        modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(modules[name])
    with walking(tmp_path) as walk:
        modules["top"].start(modules["below"])
    assert [(stop.name, stop.turn, stop.climbs_from) for stop in walk.stops] == [
        ("start", "opens", ""),
        ("leaf", "opens", ""),
        ("again", "returns", ""),
        ("caller", "returns", ""),
        ("up", "returns", "below.py"),
        ("beside", "stays", ""),
    ]
    assert walk.calls == 7, "leaf is called twice"


def test_each_faulty_script_has_a_repair_and_the_table_names_all() -> None:
    rows = (SCRIPTS / "README.md").read_text(encoding="utf-8")
    kinds = {"Healthy": 0, "Faulty": 0}
    for script in scripts():
        kind = script.read_text(encoding="utf-8").removeprefix('"""').partition(":")[0]
        kinds[kind] += 1
        assert (repaired(script) is not None) == (kind == "Faulty"), script.name
        assert f"| {script.name} |" in rows.partition("## Faulty")[2 * (kind == "Faulty")]
    assert kinds == {"Healthy": 20, "Faulty": 20}
