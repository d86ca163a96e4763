"""The guard reports planted differences, counts a journey correctly, and has complete scripts."""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.guard.compare import compare
from tests.guard.journeys import Walk, walking
from tests.guard.processes import RAISED, Item, run_all
from tests.guard.strangers import SCRIPTS, repaired, scripts
from tests.guard.trees import OWN_TREE

# Appended to a copy of labkit, it halves the first scale of O2.
PLANTED = """
from labkit.amp.recipe import RECIPES as _recipes
object.__setattr__(_recipes["O2"].scaler, "init_scale", 2.0**15)
"""


def planted_tree(folder: Path) -> Path:
    """Return a checkout whose labkit is a changed copy, and whose other files are links."""
    tree = folder / "planted"
    shutil.copytree(OWN_TREE / "labkit", tree / "labkit", ignore=shutil.ignore_patterns("*.pyc"))
    for entry in OWN_TREE.iterdir():
        if entry.name not in ("labkit", ".git"):
            (tree / entry.name).symlink_to(entry)
    with (tree / "labkit" / "amp" / "__init__.py").open("a", encoding="utf-8") as file:
        file.write(PLANTED)
    return tree


def record(tree: Path, folder: Path, only: str) -> None:
    """Record items of a tree by the guard's command."""
    command = [sys.executable, "-m", "tests.guard", "record", str(folder)]
    options = ["--tree", str(tree), "--only", only]
    done = subprocess.run([*command, *options], cwd=OWN_TREE, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Recordings of this tree and of one with a planted change, of the recipes O0 to O3."""
    folder = tmp_path_factory.mktemp("recordings")
    old = folder / "old"
    new = folder / "new"
    record(OWN_TREE, old, "recipes/digits/O")
    record(planted_tree(folder), new, "recipes/digits/O")
    return old, new


def test_a_recording_equals_itself(recordings: tuple[Path, Path]) -> None:
    old, _ = recordings
    assert compare(old, old) == 0


def test_a_planted_difference_of_a_tree_is_reported(
    recordings: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(*recordings) == 1
    assert "recipes/digits/O2:\n  - step 1, " in capsys.readouterr().out


def test_a_recipe_without_the_planted_scale_does_not_differ(
    recordings: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """O0 trains in FP32, without a scale."""
    assert compare(*recordings) == 1
    assert "recipes/digits/O0" not in capsys.readouterr().out


def recording(folder: Path, **texts: str) -> Path:
    """Return the folder of a new recording with these items and their texts."""
    folder.mkdir()
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ({"a": "1\n"}, {"a": "1\n", "b": "2\n"}, "b:\n  only in the new recording"),
        ({"a": "1\n", "b": "2\n"}, {"a": "1\n"}, "b:\n  only in the old recording"),
        ({"a": "1\n2\n3\n"}, {"a": "1\n4\n3\n"}, "a:\n  - 2\n  + 4\n"),
        ({"a": "-- 1\n"}, {"a": "++ 1\n"}, "a:\n  - -- 1\n  + ++ 1\n"),
        ({}, {}, "0 items before"),
    ],
    ids=["new item", "missing item", "line", "line that begins like a diff's header", "empty"],
)
def test_each_kind_of_difference_fails_with_a_message(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    before: dict[str, str],
    after: dict[str, str],
    message: str,
) -> None:
    old = recording(tmp_path / "old", **before)
    new = recording(tmp_path / "new", **after)
    assert compare(old, new) == 1
    assert message in capsys.readouterr().out


def test_a_killed_item_leaves_no_text_of_an_older_recording(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("of yesterday\n", encoding="utf-8")
    item = Item("a", lambda: str(os.kill(os.getpid(), signal.SIGKILL)))
    assert run_all([item], tmp_path) == ["a"]
    assert (tmp_path / "a.txt").read_text(encoding="utf-8").startswith(RAISED)


# Two files of a labkit. `start` calls `leaf`, `again` and, through it, `caller`; `caller` calls
# `leaf` again and `up`, which calls `beside`.
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


@pytest.fixture
def walk(tmp_path: Path) -> Walk:
    """The walk through a labkit of the files TOP and BELOW."""
    (tmp_path / "labkit").mkdir()
    modules = {}
    for name, text in {"below": BELOW, "top": TOP}.items():
        path = tmp_path / "labkit" / f"{name}.py"
        path.write_text(text, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(f"walked_{name}", path)
        assert spec is not None
        assert spec.loader is not None
        modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(modules[name])
    with walking(tmp_path) as walk:
        modules["top"].start(modules["below"])
    return walk


def test_a_walk_has_the_turn_of_each_function(walk: Walk) -> None:
    assert [(stop.name, stop.turn) for stop in walk.stops] == [
        ("start", "opens"),
        ("leaf", "opens"),
        ("again", "returns"),
        ("caller", "returns"),
        ("up", "returns"),
        ("beside", "stays"),
    ]


def test_only_a_call_into_an_earlier_file_climbs(walk: Walk) -> None:
    climbs = {stop.name: stop.climbs_from for stop in walk.stops if stop.climbs_from}
    assert climbs == {"up": "below.py"}


def test_a_walk_counts_repeated_calls(walk: Walk) -> None:
    """Six functions are called, and `leaf` twice."""
    assert walk.calls == 7


def kind_of(script: Path) -> str:
    """Return the first word of a script's docstring, "Healthy" or "Faulty"."""
    return script.read_text(encoding="utf-8").removeprefix('"""').partition(":")[0]


def test_half_of_the_scripts_are_healthy() -> None:
    kinds = [kind_of(script) for script in scripts()]
    assert kinds.count("Healthy") == 20
    assert kinds.count("Faulty") == 20


each_script = pytest.mark.parametrize("script", scripts(), ids=lambda script: script.stem)


@each_script
def test_exactly_the_faulty_scripts_have_a_repair(script: Path) -> None:
    has_repair = repaired(script) is not None
    assert has_repair == (kind_of(script) == "Faulty")


@each_script
def test_the_table_of_its_kind_names_a_script(script: Path) -> None:
    readme = (SCRIPTS / "README.md").read_text(encoding="utf-8")
    healthy_table, _, faulty_table = readme.partition("## Faulty")
    table = faulty_table if kind_of(script) == "Faulty" else healthy_table
    assert f"| {script.name} |" in table
