"""How long does a class take to be graded? `python tests/benchmarks/bench_grading.py [--students 300] [--lesson 06]`.

Prints CPU seconds and seconds on the wall of `labkit grade`, all its processes included, and the memory of the largest;
then, for comparison, what a submission took when each had a process that loaded torch anew, as on Windows.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RECIPES = ("FP32", "FP16", "FP16 static", "FP16 dynamic", "FP16 no master", "FP16 stochastic", "FP16 Kahan", "O1", "O2")


def solved(lesson: str) -> dict[str, Any]:
    """Return a lesson's notebook with its solutions."""
    spec = importlib.util.spec_from_file_location("build", ROOT / "notebooks" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    notebook: dict[str, Any] = module.solved(ROOT / "notebooks" / "source" / f"{lesson}.py")
    return notebook


def hand_in(folder: Path, students: int, lessons: list[str], recipes: int) -> None:
    """Write a class: everybody solved everything; in a project there are `recipes` different answers."""
    notebooks = {lesson: solved(lesson) for lesson in lessons}
    for number in range(students):
        for lesson, notebook in notebooks.items():
            place = folder / f"student{number:03d}" / f"{lesson}.ipynb"
            place.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps(notebook)
            if lesson == "12_project":
                text = text.replace("static(2.0**10)", f"static(2.0**10 + {number % recipes})")
            place.write_text(text, encoding="utf-8")


def timed(command: list[str]) -> tuple[float, float]:
    """Run a command; return the CPU seconds of all its processes, and seconds on the wall."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(command, check=True, stderr=subprocess.PIPE)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, time.monotonic() - begun


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--students", type=int, default=300)
    parser.add_argument("--lessons", nargs="+", default=["06_loss_scaling"], help="or: all")
    parser.add_argument("--recipes", type=int, default=20, help="different answers to the project")
    args = parser.parse_args()
    lessons = args.lessons
    if lessons == ["all"]:
        lessons = sorted(path.stem for path in (ROOT / "notebooks" / "source").glob("*.py"))
    with tempfile.TemporaryDirectory() as folder:
        hand_in(Path(folder) / "class", args.students, lessons, args.recipes)
        hand_in(Path(folder) / "one", 1, lessons, 1)
        command = [str(Path(sys.executable).parent / "labkit"), "grade"]
        empty = timed([*command, f"{folder}/one", "--csv", f"{folder}/one.csv"])
        cpu, wall = timed([*command, f"{folder}/class", "--csv", f"{folder}/class.csv"])
        rows = sum(1 for _ in (Path(folder) / "class.csv").open()) - 1
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"{args.students} students, {len(lessons)} lessons, {rows} rows: {cpu:.0f} CPU seconds, {wall:.0f} s")
    print(f"one student: {empty[0]:.1f} CPU seconds; each more: {(cpu - empty[0]) / max(1, args.students - 1):.3f}")
    print(f"the largest process: {largest:.0f} MiB")


if __name__ == "__main__":
    main()
