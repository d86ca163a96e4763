"""Two handouts of a class, installed by pip into a learner's folder over two weeks."""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from labkit.records.handout import handout_of
from labkit.records.notebook_copies import version_of_copies
from tests.slowness import slowness

ROOT = Path(__file__).parents[2]
PACKAGES = Path(sysconfig.get_path("purelib"))

TEXT = '''# %% [markdown]
# # 20 · Powers of two
#
# ### Exercise 1: the power below  ●○○  5 min
#
# Return the exponent of the largest power of two that is not above `x`.

# %%
import math

from labkit.grading import check


# %% id="exercise-powers-floor" tags=["exercise-powers.floor"]
def my_floor(x):
    """Return the exponent of the largest power of two that is not above x."""
    ### BEGIN SOLUTION
    return math.frexp(x)[1]
    ### END SOLUTION


check("powers.floor", my_floor)
'''
EXERCISES = '''"""Exercises of the lesson on powers of two."""

from labkit.grading.exercise import Check, Exercise, wrong
from labkit.grading.solutions import Solutions

solution = Solutions(__file__)


def _any(random):
    return [(random.uniform(1, 2) * 2.0 ** random.randrange(-20, 20),) for _ in range(5)]


EXERCISES = (
    Exercise(
        id="powers.floor",
        checks=(Check("any number", 2, _any),),
        mistakes=(wrong("zero", "this is 0 for every number.", lambda x: 0),),
    ),
)
'''
RIGHT = """
import math
from labkit.grading import check
print(check("powers.floor", lambda x: math.frexp(x)[1] - 1).points)
"""


class Class:
    """A teacher who releases, and a learner with an environment and a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.handout = folder / "handout"
        self.lesson = folder / "lesson_20_powers"
        self.lesson.mkdir()
        (self.lesson / "lesson.py").write_text(TEXT, encoding="utf-8")
        (self.lesson / "exercises.py").write_text(EXERCISES, encoding="utf-8")
        (self.lesson / "hints.toml").write_text('"powers.floor" = ["1", "2", "3"]\n')
        venv.create(folder / "venv", with_pip=False)
        self.programs = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
        site = Path(sysconfig.get_path("purelib", vars={"base": str(folder / "venv")}))
        (site / "others.pth").write_text(f"{PACKAGES}\n")
        # what `labkit lab` starts in the end
        (folder / "jupyterlab.py").write_text("print('JupyterLab starts')\n")

    def release(self, *lessons: str) -> Path:
        """Release these lessons; return the wheel."""
        words = ["release", str(self.handout), "--lessons", *lessons, "--course", str(self.lesson)]
        self.call(sys.executable, "-m", "labkit", *words, PYTHONPATH=str(ROOT))
        (wheel,) = (self.handout / "learners").glob("*.whl")
        return wheel

    def install(self, wheel: Path) -> str:
        pip = ("-m", "pip", "--python", str(self.programs / "python"), "--no-cache-dir")
        options = ("--disable-pip-version-check", "install", "--no-deps", "--no-index")
        return self.call(sys.executable, *pip, *options, f"{wheel.name}[lab]", folder=wheel.parent)

    def lab(self) -> str:
        return self.call(str(self.programs / "labkit"), "lab", "mine", "--no-browser")

    def points(self) -> str:
        return self.call(str(self.programs / "python"), "-c", RIGHT, LABKIT_ANSWERS="off")

    def call(self, *command: str, folder: Path | None = None, **variables: str) -> str:
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        done = subprocess.run(
            command,
            cwd=folder or self.folder,
            env={**environment, **variables},
            capture_output=True,
            text=True,
            timeout=200 * slowness(),
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout


def judge_of(wheel: Path, lesson: str) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (
            name
            for name in archive.namelist()
            if f"lessons/lesson_{lesson}" in name and name.endswith(".pkl.gz")
        )
        return archive.read(name)


@pytest.mark.timeout(600 * slowness())
def test_corrected_check_arrives_with_the_second_handout(tmp_path: Path) -> None:
    room = Class(tmp_path)
    first = room.release("00", "20")
    kept = first.read_bytes()
    room.install(first)
    said = room.lab()
    assert "3 new" in said
    assert said.splitlines()[-1] == "JupyterLab starts"
    assert room.points() == "0\n", "the check of week one is wrong"
    (tmp_path / "mine" / "20_powers.ipynb").write_text("my work")

    corrected = TEXT.replace("frexp(x)[1]", "frexp(x)[1] - 1")
    (room.lesson / "lesson.py").write_text(corrected, encoding="utf-8")
    second = room.release("00", "01", "20")
    assert second.name != first.name
    (tmp_path / "first.whl").write_bytes(kept)
    assert judge_of(second, "00_start") == judge_of(tmp_path / "first.whl", "00_start")
    assert "already installed" not in room.install(second)
    said = room.lab()
    assert "1 kept, 1 new, 2 the same" in said
    version = second.name.split("-")[1]
    assert f"This lab is {handout_of(version)} (labkit {version})." in said
    assert "later" not in said
    assert room.points() == "2\n"
    assert (tmp_path / "mine" / "20_powers.ipynb").read_text() == "my work"
    assert (tmp_path / "mine" / "01_numbers.ipynb").is_file()

    again = room.release("00", "01", "20")
    assert again == second, "equal content is one version"
    (old,) = (room.handout / "earlier").glob("*+class*.whl")
    assert old.name == first.name
    assert old.read_bytes() == kept
    assert len(list((room.handout / "teacher").glob("*.whl"))) == 1

    room.install(old)
    said = room.lab()
    assert "! The notebooks in" in said
    assert f"(labkit {version})" in said
    assert "install the wheel of that handout" in said
    assert version_of_copies(tmp_path / "mine") == version


def test_a_checkout_keeps_the_plain_version() -> None:
    said = subprocess.run(
        [sys.executable, "-m", "labkit", "version"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "+" not in said.split()[1]
