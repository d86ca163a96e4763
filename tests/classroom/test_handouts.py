"""Two handouts of a class, installed by pip into a learner's folder over two weeks."""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from dataclasses import dataclass
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
        """Install a wheel into the learner's environment; return what pip prints."""
        pip = ("-m", "pip", "--python", str(self.programs / "python"), "--no-cache-dir")
        options = ("--disable-pip-version-check", "install", "--no-deps", "--no-index")
        return self.call(sys.executable, *pip, *options, f"{wheel.name}[lab]", folder=wheel.parent)

    def lab(self) -> str:
        """Open the lab in the learner's folder; return what it prints."""
        return self.call(str(self.programs / "labkit"), "lab", "mine", "--no-browser")

    def points(self) -> str:
        """Return the points that a right answer to the exercise of the lesson gets."""
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


pytestmark = pytest.mark.timeout(600 * slowness())


@dataclass
class Weeks:
    """What a teacher released and what a learner saw over two weeks.

    Attributes:
        room: The teacher and the learner.
        first: The wheel of week one, as it was released.
        second: The wheel of week two, with a corrected check and one more lesson.
        first_lab: What `labkit lab` printed with the first wheel.
        first_points: The points of a right answer with the first wheel.
        pip: What pip printed when it installed the second wheel.
        second_lab: What `labkit lab` printed with the second wheel.
        second_points: The points of a right answer with the second wheel.
    """

    classroom: Class
    first: Path
    second: Path
    first_lab: str
    first_points: str
    pip: str
    second_lab: str
    second_points: str

    @property
    def mine(self) -> Path:
        """The learner's folder."""
        return self.classroom.folder / "mine"

    @property
    def version(self) -> str:
        """The version of the second wheel."""
        return self.second.name.split("-")[1]


@pytest.fixture(scope="module")
def weeks(tmp_path_factory: pytest.TempPathFactory) -> Weeks:
    """Two weeks of a class; the check of week one is wrong, and is corrected in week two."""
    classroom = Class(tmp_path_factory.mktemp("class"))
    released = classroom.release("00", "20")
    # The next release moves its wheel.
    first = classroom.folder / released.name
    first.write_bytes(released.read_bytes())
    classroom.install(first)
    first_lab = classroom.lab()
    first_points = classroom.points()
    (classroom.folder / "mine" / "20_powers.ipynb").write_text("my work")

    corrected = TEXT.replace("frexp(x)[1]", "frexp(x)[1] - 1")
    (classroom.lesson / "lesson.py").write_text(corrected, encoding="utf-8")
    second = classroom.release("00", "01", "20")
    pip = classroom.install(second)
    return Weeks(
        classroom, first, second, first_lab, first_points, pip, classroom.lab(), classroom.points()
    )


def test_the_first_handout_opens_the_lab_with_its_notebooks(weeks: Weeks) -> None:
    assert "3 new" in weeks.first_lab
    assert weeks.first_lab.splitlines()[-1] == "JupyterLab starts"


def test_corrected_check_arrives_with_the_second_handout(weeks: Weeks) -> None:
    assert weeks.second.name != weeks.first.name
    assert "already installed" not in weeks.pip
    assert (weeks.first_points, weeks.second_points) == ("0\n", "2\n")


def test_the_second_handout_keeps_the_learners_work(weeks: Weeks) -> None:
    assert "1 kept, 1 new, 2 the same" in weeks.second_lab
    assert (weeks.mine / "20_powers.ipynb").read_text() == "my work"
    assert (weeks.mine / "01_numbers.ipynb").is_file()


def test_the_lab_names_the_handout_that_it_is(weeks: Weeks) -> None:
    version = weeks.version
    assert f"This lab is {handout_of(version)} (labkit {version})." in weeks.second_lab


def test_an_unchanged_lesson_has_the_same_judge_in_both_handouts(weeks: Weeks) -> None:
    assert judge_of(weeks.second, "00_start") == judge_of(weeks.first, "00_start")


def test_equal_content_is_one_version(weeks: Weeks) -> None:
    assert weeks.classroom.release("00", "01", "20") == weeks.second
    assert len(list((weeks.classroom.handout / "teacher").glob("*.whl"))) == 1


def test_the_wheel_of_the_first_handout_is_kept(weeks: Weeks) -> None:
    (old,) = (weeks.classroom.handout / "earlier").glob("*+class*.whl")
    assert old.name == weeks.first.name
    assert old.read_bytes() == weeks.first.read_bytes()


@pytest.fixture(scope="module")
def older_lab(weeks: Weeks) -> str:
    """What `labkit lab` prints once the first wheel is installed again."""
    weeks.classroom.install(weeks.first)
    return weeks.classroom.lab()


def test_an_older_handout_warns_of_later_notebooks(weeks: Weeks, older_lab: str) -> None:
    assert "! The notebooks in" not in weeks.second_lab
    assert "! The notebooks in" in older_lab
    assert f"(labkit {weeks.version})" in older_lab
    assert "install the wheel of that handout" in older_lab


@pytest.mark.usefixtures("older_lab")
def test_an_older_handout_leaves_the_later_notebooks(weeks: Weeks) -> None:
    assert version_of_copies(weeks.mine) == weeks.version


def test_a_checkout_keeps_the_plain_version() -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "labkit", "version"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "+" not in printed.split()[1]
