"""A released lab: it judges as the teacher's does, without solutions, and nbgrader agrees.

The real nbgrader takes a minute to install and minutes to grade: that test is slow.
LABKIT_NBGRADER is the path of the Python of an environment that has it. Without it, an environment
is created with pip; where that fails, the test is skipped.
"""

import ast
import gzip
import hashlib
import inspect
import io
import itertools
import json
import math
import os
import pickle
import re
import shutil
import subprocess
import sys
import textwrap
import venv
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from labkit.classroom.model_answers import cell_in
from labkit.classroom.nbgrader import write_course
from labkit.classroom.release import _sealed, stored_exercise
from labkit.classroom.tables import read_table
from labkit.cli import main
from labkit.course import (
    NOT_FOR_LEARNERS,
    Lesson,
    cells_of,
    lessons,
    lessons_folder,
    questions,
    solution_of,
)
from labkit.grading import EXERCISES, judge
from labkit.grading.judge import answers_of, earned, grading_cases, visible_cases
from labkit.grading.sandbox.wire import Instance
from notebooks import build
from tests.grading.cases import lesson_module
from tests.grading.hand_ins import ADVANCE, CLIP, graded, put, solved
from tests.slowness import slowness

ROOT = Path(__file__).parents[2]
LESSON = "06_loss_scaling"
ASKED = [exercise for exercise in EXERCISES.values() if exercise.lesson == LESSON]
GONE = ("grade", "release")
# In an editable install, a module that the learners' lab lacks would be imported from the checkout.
NO_CHECKOUT = f"""
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in str(finder).lower()]
sys.path[:] = [path for path in sys.path if path != {str(ROOT)!r}]
"""


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("Übergabe an die Klasse")
    assert main(["release", str(folder), "--lessons", "00", LESSON]) == 0
    with zipfile.ZipFile(next((folder / "learners").glob("*.whl"))) as wheel:
        wheel.extractall(folder / "lab")
    (folder / "lab" / "sitecustomize.py").write_text(NO_CHECKOUT, encoding="utf-8")
    return folder


def in_the_lab(released: Path, program: str) -> str:
    """Run a program where the learners' wheel is the only labkit, and return what it prints."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(released / "lab"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(
        command,
        cwd=released,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300 * slowness(),
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_guess_first_travels_with_the_handout(released: Path, tmp_path: Path) -> None:
    assert main(["release", str(tmp_path), "--lessons", "00", "--guess-first"]) == 0
    (wheel,) = (tmp_path / "learners").glob("*.whl")
    (tmp_path / "lab").mkdir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "lab")
    shutil.copy(released / "lab" / "sitecustomize.py", tmp_path / "lab")
    program = """
        import os
        from labkit.widgets import predict
        os.environ.pop("LABKIT_GUESS_FIRST", None)
        print(predict("start.warm_up").guess_first)
        for value in "01":
            os.environ["LABKIT_GUESS_FIRST"] = value
            print(predict("start.warm_up").guess_first)
    """
    assert in_the_lab(tmp_path, program).split() == ["True", "False", "True"]
    assert in_the_lab(released, program).split() == ["False", "False", "True"]


def members(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of every file of a folder, also inside wheels and gzip files."""
    for file in sorted(path.rglob("*")):
        if file.is_file():
            yield from unpacked(file.relative_to(path).as_posix(), file.read_bytes())


def unpacked(name: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of a file, or of all files in an archive."""
    if zipfile.is_zipfile(io.BytesIO(content)):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for inside in archive.namelist():
                yield from unpacked(f"{name}/{inside}", archive.read(inside))
    elif content[:2] == b"\x1f\x8b":
        yield from unpacked(f"{name}, unpacked", gzip.decompress(content))
    else:
        yield name, content


def squeezed(text: str) -> str:
    """Return a text without white space, and without the quotes and escapes of JSON around a line.

    So the source of a function is also found in a notebook, whatever its layout.
    """
    return "".join(text.replace("\\n", "").replace('",', "").replace('"', "").split())


def body_of(function: Callable[..., object]) -> str:
    """Return a function's statements without its docstring."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(node, ast.FunctionDef)
    statements = node.body[1:] if ast.get_docstring(node) is not None else node.body
    lines = inspect.getsource(function).splitlines()
    return squeezed("\n".join(lines[statements[0].lineno - 1 :]))


# Characters: shorter bodies, such as `return x`, also occur elsewhere.
SHORT_BODY = 40


def spoilers() -> dict[str, str]:
    """Return name -> text of what learners must not get: exercises' functions, and solutions."""
    bodies = {}
    for lesson in lessons():
        module = lesson.module("exercises")
        assert module is not None
        functions = [
            f
            for _, f in inspect.getmembers(module, inspect.isfunction)
            if f.__module__ == module.__name__
        ]
        bodies |= {
            f"{lesson.name}: {f.__name__}": body_of(f)
            for f in functions
            if f.__name__ != "<lambda>"
        }
        for id, question in questions(lesson.text).items():
            cell = cells_of(lesson.text.read_text(encoding="utf-8"))[question.place].source
            bodies[f"solution of {id}"] = squeezed(
                cell.split("### BEGIN SOLUTION")[1].split("### END")[0]
            )
    return {name: body for name, body in bodies.items() if len(body) > SHORT_BODY}


def found_in(folder: Path, bodies: dict[str, str]) -> set[str]:
    """Return the names of the bodies that the files of a folder contain, except in its data."""
    wanted = [content for name, content in members(folder) if "labkit/data/" not in name]
    text = "\n".join(squeezed(content.decode("utf-8", errors="ignore")) for content in wanted)
    return {name for name, body in bodies.items() if body in text}


def test_no_body_of_a_solution_is_handed_out_in_any_file(released: Path) -> None:
    bodies = spoilers()
    assert len(bodies) > len(EXERCISES), "an exercise has more functions than its solution"
    assert found_in(released / "learners", bodies) == set()
    some = {
        name: body
        for name, body in bodies.items()
        if "scaling.clip" in name or "scaling.static" in name
    }
    assert found_in(released / "teacher", some) == set(some), "the search finds them where they are"


@pytest.fixture(scope="module")
def handed_out(released: Path) -> list[str]:
    """The names of all files that learners get, also of those inside the wheel."""
    return [name for name, _ in members(released / "learners")]


@pytest.fixture(scope="module")
def lessons_files(handed_out: list[str]) -> list[str]:
    """The names of the files of lessons in the wheel, below labkit_lessons."""
    return [name.split("/labkit_lessons/")[1] for name in handed_out if "/labkit_lessons/" in name]


def test_handout_has_no_compiled_module(handed_out: list[str]) -> None:
    assert [name for name in handed_out if name.endswith((".pyc", ".so"))] == []


def test_handout_has_no_tests(handed_out: list[str]) -> None:
    assert [name for name in handed_out if "tests/" in name] == []


def test_handout_has_no_module_of_exercises(lessons_files: list[str]) -> None:
    assert [n for n in lessons_files if Path(n).name.startswith(NOT_FOR_LEARNERS)] == []


def test_handout_has_the_released_lessons_only(lessons_files: list[str]) -> None:
    tops = {name.split("/")[0] for name in lessons_files}
    assert tops == {"__init__.py", "lesson_00_start", f"lesson_{LESSON}"}


def test_handout_has_the_notebooks_of_its_lessons(handed_out: list[str]) -> None:
    notebooks = [n for n in handed_out if n.startswith("notebooks/") and n.endswith(".ipynb")]
    assert sorted(Path(n).stem for n in notebooks) == ["00_start", LESSON, "glossary"]


@pytest.fixture(scope="module")
def session(released: Path) -> str:
    """What the learners' lab prints while a learner answers, and tries commands of teachers."""
    return in_the_lab(
        released,
        """
        import inspect, labkit, sys
        from labkit.grading import EXERCISES, check, progress
        print(labkit.__file__)
        right = check("start.smallest", lambda e, s: 2.0 ** (2 - 2 ** (e - 1) - s))
        print(right); print(check("start.smallest", lambda e, s: 2.0**-24).mistake.name)
        print(len(EXERCISES), progress())
        try: inspect.getsource(EXERCISES["start.smallest"].reference)
        except TypeError: print("no source")
        from labkit.cli import main
        sys.stderr = sys.stdout
        print(main(["grade", "x", "--csv", "y"]), main(["release", "x"]), sep="\\n")
        """,
    )


def test_learners_lab_runs_from_the_handout(released: Path, session: str) -> None:
    assert Path(session.splitlines()[0]).is_relative_to(released / "lab")


def test_learners_lab_judges_right_and_wrong_answers(session: str) -> None:
    assert "Solved. " in session
    assert "answers for FP16" in session.splitlines()


def test_learners_lab_counts_the_progress_in_its_lessons(session: str) -> None:
    assert any(line.startswith("7 00_start") for line in session.splitlines())


def test_learners_lab_has_no_source_of_a_reference(session: str) -> None:
    assert "no source" in session.splitlines()


def test_learners_lab_refuses_the_commands_of_teachers(session: str) -> None:
    why = "this command is for teachers: this lab was released to learners, without solutions"
    refusals = [f"labkit {name}: {why}" for name in GONE]
    assert session.splitlines()[-4:] == [*refusals, "2", "2"]


def test_learners_lab_has_lessons_without_solutions(released: Path) -> None:
    printed = in_the_lab(
        released,
        f"""
        import importlib, warnings
        warnings.simplefilter("ignore")
        from labkit_lessons.lesson_{LESSON}.cases import Loop
        print(Loop.__module__, importlib.import_module("labkit_lessons").__file__)
        for name in ("lesson_{LESSON}.exercises", "lesson_{LESSON}.lesson", "lesson_10_clinic"):
            try: importlib.import_module("labkit_lessons." + name)
            except ModuleNotFoundError as error: print(error)
        try: from labkit.grading import look
        except ModuleNotFoundError as error: print(error)
        """,
    )
    absent = (f"lesson_{LESSON}.exercises", f"lesson_{LESSON}.lesson", *["lesson_10_clinic"] * 2)
    assert printed.splitlines() == [
        f"labkit_lessons.lesson_{LESSON}.cases "
        f"{released / 'lab' / 'labkit_lessons' / '__init__.py'}",
        *(f"No module named 'labkit_lessons.{name}'" for name in absent),
    ]


diagnoses = lesson_module("10_clinic", "diagnoses")
SOME = ("start.smallest", "numbers.decode", "rounding.epsilon", "recipes.lines")
SLOW = (pytest.mark.slow, pytest.mark.timeout(600 * slowness()))


@pytest.mark.parametrize(
    "id", [pytest.param(id, marks=() if id in SOME else SLOW) for id in EXERCISES]
)
def test_a_stored_exercise_says_what_the_whole_one_says(id: str) -> None:
    """For the reference, known mistakes and unrelated answers, the texts of both are equal."""
    exercise = EXERCISES[id]
    stored = stored_exercise(EXERCISES[id])
    assert stored.points == exercise.points
    assert stored.call == exercise.call
    assert stored.minutes == exercise.minutes
    nothing = [lambda *_: None, lambda *_: 0.0, lambda: 1, 5]
    for answer in [exercise.reference, *(known.answer for known in exercise.mistakes), *nothing]:
        case_set = visible_cases(exercise)
        own = visible_cases(stored)
        whole = judge(case_set, answers_of(case_set, answer))
        assert str(judge(own, answers_of(own, answer))) == str(whole)


def diagnosed() -> list[Any]:
    """Return the outcomes of all checks that ask for a diagnosis."""
    outcomes = [check.outcome for exercise in EXERCISES.values() for check in exercise.checks]
    found = [outcome for outcome in outcomes if isinstance(outcome, diagnoses.Diagnosed)]
    assert found
    return found


def test_stored_diagnosis_accepts_what_the_whole_one_accepts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(diagnoses, "COST", 2)
    for outcome in diagnosed():
        (where, amount), places = outcome.right, outcome.places
        number = amount if isinstance(amount, float | int) else 1.0
        stored: Any = _sealed(outcome, b"salt")
        others = [
            0,
            0.0,
            -0.0,
            1,
            True,
            1.5,
            "weight",
            "",
            None,
            math.nan,
            math.inf,
            10**400,
            2**-14,
            256,
            -number,
        ]
        near = [number * share for share in (1, 0.89, 0.91, 0.899, 0.901, 1.099, 1.101, 1 + 1e-9)]
        for place, text in itertools.product(
            (*places, "elsewhere"), (amount, int(number), *near, *others)
        ):
            answer = Instance("Treatment", {"diagnosis": (place, text)})
            one = stored(answer, (0, 2))
            other = outcome(answer, (0, 2))
            assert one.passed == other.passed, (place, text)
            assert one.says == other.says, (place, text)
            assert bool(one.facts) == bool(other.facts)
            assert repr(place) not in repr(one.facts)
        assert outcome(Instance("Treatment", {"diagnosis": (where, amount)}), (0, 2)).passed


def test_a_stored_diagnosis_does_not_hold_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnoses, "COST", 2)
    for outcome in diagnosed():
        where, _ = outcome.right
        # The pickle of the whole one has it.
        assert where.encode() in pickle.dumps(outcome.right)
        assert where.encode() not in pickle.dumps(_sealed(outcome, b"salt").right)


def test_another_salt_seals_a_diagnosis_in_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnoses, "COST", 2)
    for outcome in diagnosed():
        one, other = (_sealed(outcome, salt).right.ciphertexts for salt in (b"salt", b"another"))
        assert one.keys()
        assert not one.keys() & other.keys()


def test_trying_a_stored_diagnosis_costs_time_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each diagnosis that is tried costs scrypt 96 MiB or more.

    scrypt reads and writes 128 x r x n bytes p times.
    """
    calls: list[dict[str, Any]] = []
    derived = hashlib.scrypt

    def scrypt(password: bytes, **how: Any) -> bytes:
        calls.append(how)
        return derived(password, salt=how["salt"], n=2, r=1, p=1)

    monkeypatch.setattr(hashlib, "scrypt", scrypt)
    stored = diagnoses.stored_diagnosis(("log", 0.5), ("log", "loss"), b"counted")
    diagnoses.Diagnosed(stored, ("log", "loss"))(
        Instance("Treatment", {"diagnosis": ("loss", 3.0)}), ()
    )
    assert len(calls) == len(stored.ciphertexts) + 1 > 1
    assert {how["salt"] for how in calls} == {b"counted"}
    assert min(128 * how["r"] * how["n"] * how["p"] for how in calls) >= 96 << 20


@pytest.fixture(scope="module")
def model_answers(released: Path) -> str:
    """The page of model answers, for teachers."""
    return (released / "teacher" / "model_answers.html").read_text(encoding="utf-8")


def test_teacher_gets_solutions_without_their_marks(model_answers: str) -> None:
    line = "return ScalerState(scale=state.scale * config.backoff_factor, growth_tracker=0)"
    assert line in model_answers
    assert "BEGIN SOLUTION" not in model_answers


def test_teacher_gets_the_known_mistakes(model_answers: str) -> None:
    mistakes = EXERCISES["scaling.advance"].mistakes
    assert [mistake.name for mistake in mistakes if mistake.name not in model_answers] == []


def test_teacher_gets_the_reasons_of_wrong_guesses(model_answers: str) -> None:
    assert "why people make it" in model_answers


def test_model_answers_are_of_the_released_lessons_only(model_answers: str) -> None:
    points = sum(exercise.points for exercise in ASKED)
    minutes = sum(exercise.minutes for exercise in ASKED)
    assert re.findall("<h2>(.*?)</h2>", model_answers) == [
        "00_start: 1 exercise, 3 minutes, 2 points",
        f"{LESSON}: {len(ASKED)} exercises, {minutes} minutes, {points} points",
    ]


def test_a_missing_lesson_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["release", str(tmp_path / "out"), "--lessons", "66"]) == 2
    assert "there is no lesson '66'; there are: 00_start, 01_numbers" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.timeout(900 * slowness())
def test_lesson_06_can_be_solved_in_the_learners_lab(released: Path) -> None:
    """The notebook that is handed out, with each exercise solved as the model answer does."""
    lesson = Lesson(lessons_folder() / f"lesson_{LESSON}")
    notebook = json.loads(
        (released / "learners" / "notebooks" / f"{LESSON}.ipynb").read_text(encoding="utf-8")
    )
    for exercise in ASKED:
        (cell,) = [
            cell for cell in notebook["cells"] if exercise.tag in cell["metadata"].get("tags", ())
        ]
        cell["source"] = cell["source"] + ["\n\n", solution_of(cell_in(lesson, exercise))]
        cell["source"][0] = "import warnings\n" + cell["source"][0]
    (released / "solved.ipynb").write_text(json.dumps(notebook), encoding="utf-8")
    printed = in_the_lab(
        released,
        """
        import nbclient, nbformat
        read = nbformat.read("solved.ipynb", 4)
        options = {"allow_errors": True, "timeout": 900, "kernel_name": "python3"}
        nbclient.NotebookClient(read, **options).execute()
        outputs = [o for c in read.cells for o in c.get("outputs", [])]
        print(sum("Solved. " in str(o.get("data", "")) for o in outputs))
        print(sorted({o.ename for o in outputs if o.output_type == "error"}))
        """,
    )
    assert printed.splitlines() == [str(len(ASKED)), "[]"]


# --- nbgrader ---

SEED = 11


def test_cell_of_tests_earns_what_grading_earns(capfd: pytest.CaptureFixture[str]) -> None:
    exercise = EXERCISES["scaling.advance"]

    def chatty(state: object, found_inf: bool, config: object) -> object:
        print("so far so good", file=sys.stderr)
        return state

    points = earned(exercise.id, chatty, SEED)
    assert capfd.readouterr().err == ""
    case_set = grading_cases(exercise, SEED)
    assert points == judge(case_set, answers_of(case_set, chatty)).points < exercise.points


def test_each_exercise_has_a_cell_of_hidden_tests(tmp_path: Path) -> None:
    write_course(tmp_path, [build.lesson(LESSON)], ASKED, SEED)
    notebook = json.loads(
        (tmp_path / "source" / LESSON / f"{LESSON}.ipynb").read_text(encoding="utf-8")
    )
    words = [
        cell["metadata"]["nbgrader"] for cell in notebook["cells"] if "nbgrader" in cell["metadata"]
    ]
    points = {
        answer["grade_id"]: tests["points"]
        for answer, tests in zip(words[::2], words[1::2], strict=True)
    }
    assert points == {exercise.cell_id: exercise.points for exercise in ASKED}
    assert all(word["solution"] and not word["grade"] for word in words[::2])
    assert all(word["grade"] and word["locked"] and not word["solution"] for word in words[1::2])
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(ids) == len(set(ids))


class Nbgrader:
    """The real nbgrader; its kernel is the Python that runs these tests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = os.environ.get("LABKIT_NBGRADER") or self._create(folder / "venv")
        spec = folder / "jupyter" / "kernels" / "python3"
        spec.mkdir(parents=True)
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        (spec / "kernel.json").write_text(
            json.dumps({"argv": argv, "display_name": "lab", "language": "python"})
        )

    def _create(self, folder: Path) -> str:
        venv.create(folder, with_pip=True)
        python = str(folder / "bin" / "python")
        done = subprocess.run(
            [python, "-m", "pip", "install", "-q", "nbgrader"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            pytest.skip(f"nbgrader cannot be installed here: {done.stderr[-300:]}")
        return python

    def run(self, *words: str) -> str:
        environment = {
            **os.environ,
            "JUPYTER_PATH": str(self.folder / "jupyter"),
            "HOME": str(self.folder),
        }
        environment["PATH"] = os.pathsep.join([str(Path(self.python).parent), environment["PATH"]])
        done = subprocess.run(
            [self.python, "-m", "nbgrader", *words],
            cwd=self.folder / "teacher" / "nbgrader",
            env=environment,
            capture_output=True,
            text=True,
            timeout=1500 * slowness(),
            check=False,
        )
        assert done.returncode == 0, f"{words}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        return done.stdout + done.stderr


def hand_in(course: Path, student: str, answers: dict[str, str]) -> None:
    """Put answers into the cells of the released notebook, as a learner does."""
    notebook = json.loads(
        (course / "release" / LESSON / f"{LESSON}.ipynb").read_text(encoding="utf-8")
    )
    for cell in notebook["cells"]:
        for tag in cell["metadata"].get("tags", ()):
            if tag in answers:
                cell["source"] = answers[tag].splitlines(keepends=True)
    put(course / "submitted" / student / LESSON / f"{LESSON}.ipynb", json.dumps(notebook))


@pytest.mark.slow
@pytest.mark.timeout(3600 * slowness())
def test_nbgrader_gives_the_same_points_partial_credit_included(tmp_path: Path) -> None:
    nbgrader = Nbgrader(tmp_path)
    course = tmp_path / "teacher" / "nbgrader"
    write_course(course, [build.lesson(LESSON)], ASKED, SEED)
    nbgrader.run("generate_assignment", LESSON)
    released = (course / "release" / LESSON / f"{LESSON}.ipynb").read_text(encoding="utf-8")
    assert "HIDDEN TESTS" not in released
    assert "backoff_factor, growth_tracker=0)" not in released
    assert "def my_advance(state, found_inf, config):" in released, (
        "starters keep their first line and docstring"
    )

    whole = {cell["metadata"]["tags"][0]: "".join(cell["source"]) for cell in solved()[1:]}
    partial = {
        "exercise-scaling.advance": ADVANCE.replace("+ 1 ==", "+ 1 >"),
        "exercise-scaling.clip": CLIP.replace("my_clip_step(scaled", "another_name(scaled"),
        "exercise-scaling.unscale": (
            "def my_unscale(scaled_grads, scale, limit):\n"
            "    return lightning.unscale(scaled_grads)"
        ),
    }
    hand_in(course, "ada", {**whole, **partial})
    hand_in(course, "zoe", {})
    nbgrader.run("autograde", LESSON)
    nbgrader.run("generate_feedback", LESSON)
    nbgrader.run("export")
    assert (course / "feedback" / "ada" / LESSON / f"{LESSON}.html").is_file()
    theirs = {row["student_id"]: float(row["score"]) for row in read_table(course / "grades.csv")}
    rows = graded(course / "submitted", tmp_path, "--seed", str(SEED))
    points = {
        name: sum(int(row["points"]) for (who, _), row in rows.items() if who == name)
        for name in ("ada", "zoe")
    }
    assert theirs == points
    assert 0 < points["ada"] < sum(exercise.points for exercise in ASKED)
