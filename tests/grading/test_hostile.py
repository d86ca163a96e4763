"""Hostile submissions: each gets its row, and costs no other learner's points.

Rows that depend on the isolation of the sandbox are compared only where the machine provides all of
it. Where processes cannot be forked, as on Windows, each submission has a new process; the last
tests switch the fork server off, so that this is tested on Linux, too.
"""

import os
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from labkit.grading import EXERCISES, judge
from labkit.grading.batch import answers_in, grade, request_of
from labkit.grading.judge import grading_cases
from labkit.grading.sandbox import isolation
from labkit.grading.sandbox import runner as sandbox_runner
from labkit.grading.sandbox.isolation import NAMES, describe, isolate
from labkit.grading.sandbox.limits import remove_groups_of_the_dead
from labkit.grading.sandbox.runner import Runner, scratch
from labkit.grading.sandbox.supervisor import Isolation, Reply, Worker, _exit_note, supervise
from labkit.grading.sandbox.worker import Limits, Request
from labkit.grading.submission import find
from tests.grading.hand_ins import RIGHT, SETUP, UNSCALE, answered, code, graded, notebook, put
from tests.grading.hostile import BREAKS, CHEATS, Row
from tests.slowness import slowness

ROOT = Path(__file__).parents[2]
# Hostile programs whose rows need no isolation, by name.
ANYWHERE = (
    "os exit in the cell",
    "os exit in the call",
    "os exit at the third check",
    "a segmentation fault",
    "loops in the cell",
    "loops at the third check",
    "sys exit after the answer",
    "sys exit in the call",
    "eats memory",
    "prints without end",
    "200 MB into the channel",
    "a forged verdict",
    "equals everything",
    "replaces the comparison",
    "calls the labs own",
    "imports the list",
)
SECONDS = 2.0
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has namespaces")


def hand_in(folder: Path, student: str, cell: str) -> None:
    """Write a notebook with this answer to scaling.advance, and the right one to scaling.unscale.

    The cell knows the paths of a classmate's notebook and of the grades.
    """
    names = (
        f"CLASSMATE, GRADES = {str(folder / 'honest.ipynb')!r}, "
        f"{str(folder.parent / 'grades.csv')!r}"
    )
    exercises = code(f"{names}\n{cell}", "scaling.advance"), code(UNSCALE, "scaling.unscale")
    put(folder / f"{student}.ipynb", notebook(code(f"{SETUP}\n{names}"), *exercises))


def expect_rows(tmp_path: Path, students: dict[str, Row]) -> None:
    """Grade these students together with an honest one, and require the expected rows.

    On a machine without full isolation, only the rows of ANYWHERE are compared; the test is then
    skipped at its end.
    """
    folder = tmp_path / "class"
    (tmp_path / "grades.csv").write_text("nobody's yet")
    names = {f"{number:02d}": name for number, name in enumerate(students)}
    for number, name in names.items():
        hand_in(folder, number, students[name].source)
    hand_in(folder, "honest", RIGHT)
    said: list[str] = []
    limits = Limits(SECONDS, memory=1 << 29)
    rows = grade(
        find([folder]), 5, limits, lesson="06_loss_scaling", progress=said.append, output=tmp_path
    )
    isolated = said[0] == describe(tuple(NAMES))
    names = {number: name for number, name in names.items() if isolated or name in ANYWHERE}
    by = {(row.student, row.exercise): row for row in rows}
    wrong = []
    for number, name in names.items():
        row = by[number, "scaling.advance"]
        expected = students[name]
        if row.points != expected.points or expected.reason not in f"{row.exercise}: {row.reason}":
            wrong.append(f"{name}: {row.points} points, {row.reason}")
        if by[number, "scaling.unscale"].points != 6:
            wrong.append(f"{name}: it costs points of scaling.unscale")
    assert not wrong, "\n".join(wrong)
    assert by["honest", "scaling.advance"].points == 8
    assert not isolated or (tmp_path / "grades.csv").read_text() == "nobody's yet"
    if not isolated and set(students) - {*ANYWHERE}:
        pytest.skip(f"this machine lacks a part of the isolation: {said[0]}")


@pytest.mark.slow
@pytest.mark.parametrize("group", [BREAKS, CHEATS], ids=["breaks", "cheats"])
def test_each_of_them_gets_its_row(tmp_path: Path, group: dict[str, Row]) -> None:
    """Systems other than Linux have no isolation, so only ANYWHERE is run there."""
    expect_rows(
        tmp_path,
        {name: row for name, row in group.items() if sys.platform == "linux" or name in ANYWHERE},
    )


@pytest.mark.parametrize(
    ("status", "note"),
    [
        (None, "no answer: the code closed the channel of the answers"),
        (0, "the code ended its process, with exit code 0: os._exit?"),
        (-11, "the code ended its process: SIGSEGV"),
        (-9, "the code ended its process: SIGKILL (out of memory?)"),
        pytest.param(-40, "the code ended its process: signal 40", marks=LINUX),
    ],
)
def test_the_end_of_a_process_has_a_sentence(status: int | None, note: str) -> None:
    assert _exit_note(status) == note


@LINUX
def test_what_is_named_by_a_relative_path_is_tried_where_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths are relative, as in `labkit grade . --csv grades.csv`.

    The probe has another working directory, in which they would name other files.
    """
    monkeypatch.chdir(tmp_path)
    Path("ada.ipynb").write_text("{}")
    with scratch() as folder, Runner(Limits(), folder) as runner:
        best = isolate(runner, [Path("ada.ipynb")], Path())
        assert best == isolate(runner, [tmp_path / "ada.ipynb"], tmp_path)
        monkeypatch.setattr("labkit.grading.sandbox.isolation._candidates", lambda: [Isolation()])
        open_to_all = isolate(runner, [Path("ada.ipynb")], Path())
    assert not {"submissions", "grades"} & set(open_to_all), "without isolation both can be reached"


@LINUX
def test_a_protection_that_cannot_be_tested_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without files in /proc, as on macOS."""
    no_processes = isolation._is_running("probe", proc=tmp_path)
    assert no_processes is None
    monkeypatch.setattr(isolation, "_memory_paths", lambda process: [])
    monkeypatch.setattr(isolation, "_is_running", lambda name: no_processes)
    with scratch() as folder, Runner(Limits(), folder) as runner:
        assert not {"memory", "descendants"} & set(isolate(runner, [], tmp_path))


def test_lessons_inside_of_what_is_visible_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    installed, elsewhere = (
        Path(sysconfig.get_path("purelib"), "labkit_lessons"),
        Path("/srv/course"),
    )
    monkeypatch.setattr(isolation, "_course_folders", lambda: [installed, elsewhere])
    seen = isolation.view()
    assert [folder for folder, visible in seen if not visible] == [installed]
    assert not any(elsewhere.is_relative_to(folder) for folder, visible in seen if visible)


@LINUX
def test_a_link_to_what_all_may_read_says_nothing_of_the_sandbox(tmp_path: Path) -> None:
    hand_in(tmp_path, "honest", RIGHT)
    (tmp_path / "null.ipynb").symlink_to("/dev/null")
    said: list[str] = []
    rows = grade(find([tmp_path]), 5, Limits(), lesson="06_loss_scaling", progress=said.append)
    assert {row.student for row in rows} == {"honest", "null"}
    (first,) = [line for line in said if line.startswith("sandbox of learners' code")]
    assert "submissions hidden" in first.partition("Missing here")[0]


# An answer that writes more answers into the channel than the exercise has checks, and ends.
FORGED_ANSWERS = """
import os
def my_advance(state, found_inf, config):
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, b'C["forged"]\\n' * 99)
        except OSError:
            pass
    os._exit(1)
"""


def test_more_answers_than_checks_end_no_grading(tmp_path: Path) -> None:
    hand_in(tmp_path, "forger", FORGED_ANSWERS)
    hand_in(tmp_path, "honest", RIGHT)
    rows = grade(find([tmp_path]), 5, Limits(), lesson="06_loss_scaling")
    points = {row.student: row.points for row in rows if row.exercise == "scaling.advance"}
    assert points == {"forger": 0, "honest": 8}


# --- reasons of stopped answers ---


class SilentWorker(Worker):
    """A worker that answers nothing, with a simulated clock.

    Args:
        cpu: Seconds of CPU time that it uses in each second.
        queued: Seconds in which it waits for the processor, in each second.
    """

    tells_cpu = True

    def __init__(self, cpu: float, queued: float) -> None:
        self.cpu = cpu
        self.queued = queued
        self.elapsed = 0.0

    def read(self, seconds: float) -> bytes | None:
        self.elapsed += seconds
        return None

    def end(self) -> int | None:
        return None

    def cpu_seconds(self) -> float:
        return self.cpu * self.elapsed

    def queued_seconds(self) -> float:
        return self.queued * self.elapsed


@pytest.mark.parametrize(
    ("cpu", "queued", "says"),
    [
        (0.0, 0.0, "stopped after 0.5 s: it waits for something"),
        (1.0, 0.0, "stopped after 0.1 s of CPU time"),
        (0.1, 0.9, "stopped after 0.1 s of CPU time"),
        (0.15, 0.0, "stopped after 0.5 s: it computes, on a machine that is too busy"),
    ],
)
def test_the_reason_of_a_stopped_answer_names_what_stopped_it(
    cpu: float, queued: float, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop on a busy machine is not said to wait."""
    worker = SilentWorker(cpu, queued)
    clock = SimpleNamespace(monotonic=lambda: worker.elapsed)
    monkeypatch.setattr("labkit.grading.sandbox.supervisor.time", clock)
    monkeypatch.setattr(Limits, "wall_seconds", 0.5)
    replies: list[Reply] = []
    request = Request("loops", [], "f", "f()", [])
    supervise([request], Limits(seconds=0.1), lambda _: worker, replies.append)
    assert [reply.note for reply in replies] == [says]


def test_a_child_killed_for_memory_costs_the_answer() -> None:
    """Its other processes may continue, and answer as if nothing had happened."""

    class Killed(SilentWorker):
        def __init__(self) -> None:
            super().__init__(0.0, 0.0)
            self.lines = [b"R\n", b'E"asks"\n']

        def read(self, seconds: float) -> bytes | None:
            return self.lines.pop(0) if self.lines else None

        def out_of_memory(self) -> bool:
            return not self.lines

    replies: list[Reply] = []
    request = Request("asks", [], "f", "f()", [])
    supervise([request], Limits(), lambda _: Killed(), replies.append)
    (reply,) = replies
    assert "more than 1024 MiB of memory together" in reply.note
    assert reply.broken


def test_groups_of_a_killed_grading_are_removed_and_others_stay(tmp_path: Path) -> None:
    names = [f"labkit/grading-{2**22 + 1}", f"labkit/grading-{os.getpid()}", "labkit/learner01"]
    for kind in ("", "memory"):
        for name in names:
            (tmp_path / kind / name).mkdir(parents=True)
    remove_groups_of_the_dead(tmp_path)
    for kind in ("", "memory"):
        left = {path.name for path in (tmp_path / kind / "labkit").iterdir()}
        assert left == {f"grading-{os.getpid()}", "learner01"}


# --- limits hold for all processes of a submission together ---

FORKS = """
import os, time
HOG = b"1" * (60 << 20)
LEFT = [8]
def my_advance(state, found_inf, config):
    while LEFT[0]:
        LEFT[0] -= 1
        if os.fork() == 0:
            own = b"2" * (EACH << 20)
            time.sleep(60)
            os._exit(0)
        time.sleep(0.5)
    return right(state, found_inf, config)
"""
BURNS = """
import os, time
def my_advance(state, found_inf, config):
    while True:
        if os.fork() == 0:
            while FOREVER or time.process_time() < 0.4: pass
            os._exit(0)
        os.wait()
"""


def of_class(tmp_path: Path, answers: dict[str, str], *options: str) -> dict[str, dict[str, str]]:
    """Return the lines of learners with these answers to scaling.advance."""
    for learner, answer in answers.items():
        put(tmp_path / "class" / f"{learner}.ipynb", answered(answer=answer))
    marks = graded(tmp_path / "class", tmp_path, *options)
    return {learner: marks[learner, "scaling.advance"] for learner in answers}


@pytest.mark.slow
@pytest.mark.skipif(
    not os.path.exists("/proc/self/smaps_rollup"),
    reason="the system does not tell what processes share",
)
def test_memory_is_that_of_the_whole_submission(tmp_path: Path) -> None:
    """Eight processes of 150 MiB are too much for 300 MiB together.

    Eight that share 60 MiB are not.
    """
    forks = RIGHT.replace("my_advance", "right") + FORKS
    answers = {"hog": forks.replace("EACH", "150"), "sharer": forks.replace("EACH", "1")}
    lines = of_class(tmp_path, answers, "--memory", "300", "--seconds", f"{20 * slowness():.0f}")
    assert lines["hog"]["points"] == "0"
    assert "memory" in lines["hog"]["reason"]
    assert lines["sharer"]["points"] == "8", lines["sharer"]["reason"]


@pytest.mark.slow
@pytest.mark.skipif(
    not os.path.exists("/proc/self/stat"), reason="the system does not tell what processes took"
)
def test_the_time_limit_counts_all_processes(tmp_path: Path) -> None:
    """The first process only waits: for a child that computes forever, or for many short ones."""
    answers = {"lives": BURNS.replace("FOREVER", "True"), "ends": BURNS.replace("FOREVER", "False")}
    for line in of_class(tmp_path, answers, "--seconds", "2").values():
        assert "stopped after 2 s of CPU time" in line["reason"]


# --- without a fork server ---

FORGES = r"""
import os
for descriptor in range(3, 9):
    try:
        os.write(descriptor, b"?\n")
    except OSError:
        pass
"""
CASE_SET = grading_cases(EXERCISES["scaling.advance"], 5)


@pytest.fixture
def no_fork_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_runner, "FORKS", False)


@pytest.mark.usefixtures("no_fork_server")
@pytest.mark.parametrize(
    ("source", "why"),
    [
        # One process answers both requests.
        ("1 / 0", "its cell stopped with ZeroDivisionError"),
        pytest.param(
            "import os\nos._exit(7)",
            "the code ended its process, with exit code 7",
            marks=pytest.mark.slow,
        ),
        # Without a fork server, elapsed time is limited.
        pytest.param("while True: pass", "it loops without end, or waits", marks=pytest.mark.slow),
        pytest.param(FORGES, "wrote into the channel", marks=pytest.mark.slow),
    ],
)
def test_failing_code_costs_its_own_exercise_alone(source: str, why: str) -> None:
    bad = replace(request_of(CASE_SET, [source]), exercise="bad")
    with scratch() as folder, Runner(Limits(seconds=4 * slowness()), folder) as runner:
        assert runner._server is None, "no fork server"
        replies = runner.run([bad, request_of(CASE_SET, [SETUP + RIGHT])])
    assert why in replies["bad"].note
    assert judge(CASE_SET, answers_in(replies["scaling.advance"])).points == 8


@pytest.mark.usefixtures("no_fork_server")
@pytest.mark.slow
def test_a_class_gets_the_rows_it_gets_from_the_fork_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand_in(tmp_path, "honest", RIGHT)
    hand_in(tmp_path, "leaves", BREAKS["os exit in the cell"].source)
    said: list[str] = []
    spawned = grade(
        find([tmp_path]), 5, Limits(2.0), lesson="06_loss_scaling", progress=said.append
    )
    assert "Missing here: " in said[0]
    monkeypatch.setattr(sandbox_runner, "FORKS", True)
    assert spawned == grade(find([tmp_path]), 5, Limits(2.0), lesson="06_loss_scaling")
