"""Cost of grading: CPU seconds of a row, as a multiple of `import torch` in the same run.

    .venv/bin/python -m tests.benchmarks.bench_grading [LEARNERS]

Each learner hands in lesson 06 with six answers of their own, so that no reply is shared. The first
number includes the start of the sandbox; the second is the cost of one more row.
"""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from labkit.cli import main
from tests.grading.hand_ins import SOLUTIONS, code, notebook, put, solved

FEW = 2


def cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def graded(learners: int) -> tuple[float, int]:
    """Grade the hand-ins of so many learners; return the CPU seconds, and the number of rows."""
    with TemporaryDirectory() as folder:
        for n in range(learners):
            own = {id.split(".")[1]: f"{text}\nown_{n} = {n}\n" for id, text in SOLUTIONS.items()}
            cells = solved(**own)
            put(Path(folder, "class", f"learner{n}.ipynb"), notebook(*cells, code(f"n = {n}")))
        before = cpu_seconds()
        with contextlib.redirect_stderr(io.StringIO()):
            assert main(["grade", f"{folder}/class", "--csv", f"{folder}/grades.csv"]) == 0
        return cpu_seconds() - before, learners * len(SOLUTIONS)


def measure(learners: int) -> None:
    """Print the cost of a row."""
    # The first call reads the lessons and the references, which are kept.
    graded(FEW)
    few, rows_of_few = graded(FEW)
    many, rows = graded(learners)
    before = cpu_seconds()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    torch = cpu_seconds() - before
    more = (many - few) / (rows - rows_of_few)
    print(f"import torch: {torch:.2f} s of CPU time")
    for name, seconds in (("a row, the start included", many / rows), ("one more row", more)):
        print(f"{name:<26} {seconds:.4f} s, {seconds / torch:.4f} of import torch")


if __name__ == "__main__":
    learners = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    if learners <= FEW:
        sys.exit(f"expected more than {FEW} learners, got {learners}")
    measure(learners)
