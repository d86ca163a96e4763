"""Time that a class takes to be graded: `python tests/benchmarks/bench_grading.py [--students 300] [--lessons all]`.

Prints CPU seconds and seconds on the wall of `labkit grade`, all its processes included, and the most memory that they
had together (shared pages counted once); then, for comparison, what a submission takes where each has a program that
loads torch anew, as on Windows.
"""

import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace

from measuring import memory_of, options

ROOT = Path(__file__).parents[2]
build = SimpleNamespace(**run_path(str(ROOT / "notebooks" / "build.py")))
GRADE = "from labkit.cli import main; sys.exit(main(['grade', *sys.argv[1:]]))"
FORKED = f"import sys; {GRADE}"
SPAWNED = f"import sys; from labkit.grading.sandbox import runner; runner.FORKS = False; {GRADE}"


def hand_in(folder: Path, students: int, lessons: list[str], recipes: int) -> None:
    """Write a class: everybody solved everything; in a project there are `recipes` different answers."""
    notebooks = {lesson: build.solved(build.lesson(lesson)) for lesson in lessons}
    for number in range(students):
        for lesson, notebook in notebooks.items():
            place = folder / f"student{number:03d}" / f"{lesson}.ipynb"
            place.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps(notebook)
            if lesson == "12_project":
                text, count = re.subn(r"static\(2\.0\*\*10\)", f"static(2.0**10 + {number % recipes})", text)
                assert count, "the solutions of the project have another recipe by now"
            place.write_text(text, encoding="utf-8")


class Grading:
    """A run of `labkit grade`: its CPU seconds, seconds on the wall and most bytes, and what it said after which."""

    def __init__(self, program: str, place: Path) -> None:
        before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        command = [sys.executable, "-c", program, str(place), "--csv", f"{place}.csv"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        self.bytes, self.said = 0, list[tuple[float, str]]()
        threading.Thread(target=self._watch, args=(process,), daemon=True).start()
        assert process.stderr is not None
        for line in process.stderr:
            self.said.append((time.monotonic() - begun, line.strip()))
        assert process.wait() == 0, self.said[-1]
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        self.wall = time.monotonic() - begun

    def _watch(self, process: subprocess.Popen[str]) -> None:
        while process.poll() is None:
            self.bytes = max(self.bytes, sum(map(memory_of, family(process.pid))))
            time.sleep(0.5)


def family(pid: int) -> list[int]:
    """Return a process and all that it started."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
        children = [n for t in threads for n in Path(f"/proc/{pid}/task/{t}/children").read_text().split()]
    except OSError:
        return []
    return [pid, *(each for child in children for each in family(int(child)))]


def main() -> None:
    """Print the table."""
    args = options(__doc__, students=300, lessons=["06_loss_scaling"], recipes=20)
    lessons = sorted(lesson.name for lesson in build.sources()) if args.lessons == ["all"] else args.lessons
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        hand_in(folder / "class", args.students, lessons, args.recipes)
        hand_in(folder / "one", 1, lessons, 1)
        hand_in(folder / "two", 2, lessons, 1)
        whole, one = Grading(FORKED, folder / "class"), Grading(FORKED, folder / "one")
        rows = sum(1 for _ in (folder / "class.csv").open()) - 1
        anew = Grading(SPAWNED, folder / "two").cpu - Grading(SPAWNED, folder / "one").cpu
    each = (whole.cpu - one.cpu) / max(1, args.students - 1)
    print(f"{args.students} students, {len(lessons)} lessons, {rows} rows: {whole.cpu:.0f} CPU s, {whole.wall:.0f} s")
    print(f"memory of all processes: {whole.bytes / 2**30:.2f} GiB at most")
    print(*(f"told after {seconds:.0f} s: {line}" for seconds, line in whole.said if "trainings, about" in line))
    print(f"one student: {one.cpu:.1f} CPU s; each more: {each:.2f}; with a program of its own: {anew:.2f}")


if __name__ == "__main__":
    main()
