"""Autograder for Gradescope: a zip archive with the teacher's lab, and the results in its form.

Gradescope builds an image with setup.sh, and calls run_autograder for each submission. That grades
the notebooks of the submission as `labkit grade` does, in its sandbox, and writes results.json.

Source: Gradescope autograder documentation, "Autograder specifications" (files, results.json).
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from labkit.records import write_atomic

PYTHON = "3.12"
# The name of the one submission; Gradescope knows the learner.
LEARNER = "learner"
# The date of all files in the archive: the same content gives the same bytes.
DATE = (2020, 1, 1, 0, 0, 0)
# The Unix permissions of a program, in the upper half of a zip entry's attributes.
EXECUTABLE = 0o755 << 16

SETUP = """\
#!/usr/bin/env bash
# Gradescope runs this once, to build the image. uv brings the Python that the lab needs.
set -euo pipefail
python3 -m pip install --quiet uv
uv venv --python {python} /autograder/lab
cd /autograder/source
uv pip install --python /autograder/lab --constraint constraints.txt --torch-backend cpu torch
uv pip install --python /autograder/lab --constraint constraints.txt {wheel}
"""

RUN = """\
#!/usr/bin/env bash
# Gradescope runs this for each submission.
set -euo pipefail
exec /autograder/lab/bin/python -m labkit.classroom.gradescope \\
    /autograder/submission /autograder/results/results.json {lessons}
"""


def autograder(wheel: str, content: bytes, constraints: bytes, lessons: Sequence[str]) -> bytes:
    """Return the zip archive that a teacher uploads.

    Args:
        wheel: File name of the whole lab's wheel, with its solutions.
        content: Content of the wheel.
        constraints: Content of constraints.txt.
        lessons: Names of the lessons of the assignment; () grades all that were handed in.
    """
    scripts = {
        "setup.sh": SETUP.format(python=PYTHON, wheel=wheel),
        "run_autograder": RUN.format(lessons=" ".join(lessons)),
    }
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, text in scripts.items():
            entry = zipfile.ZipInfo(name, DATE)
            entry.external_attr = EXECUTABLE
            archive.writestr(entry, text)
        # a wheel is compressed already
        archive.writestr(zipfile.ZipInfo(wheel, DATE), content)
        archive.writestr(zipfile.ZipInfo("constraints.txt", DATE), constraints)
    return packed.getvalue()


def results_of(rows: Iterable[Mapping[str, str]]) -> dict[str, Any]:
    """Return the grades of one submission in the form of results.json.

    Args:
        rows: Rows of the table that `labkit grade --csv` writes, as `csv.DictReader` reads them.

    >>> row = {"exercise": "scaling.clip", "points": "3", "out_of": "5", "reason": "2 checks fail"}
    >>> results_of([row])["tests"][0]["score"]
    3.0
    """
    tests = [
        {
            "name": row["exercise"],
            "score": float(row["points"]),
            "max_score": float(row["out_of"]),
            "output": row["reason"] or "All checks pass.",
            "visibility": "visible",
        }
        for row in rows
    ]
    results: dict[str, Any] = {"tests": tests, "stdout_visibility": "hidden"}
    if not tests:
        results |= {
            "score": 0.0,
            "output": "No notebook of the lab was found. Hand in the .ipynb files themselves.",
        }
    return results


def main(arguments: Sequence[str]) -> int:
    """Grade a folder of notebooks and write results.json: SUBMISSION RESULTS [LESSON ...]."""
    import csv
    import json
    import shutil
    import subprocess
    import sys
    from tempfile import TemporaryDirectory

    from labkit.grading.submission import NOTEBOOKS, Submission, files_in

    submission, results, *lessons = arguments
    with TemporaryDirectory() as scratch:
        folder = Path(scratch, "submissions", LEARNER)
        folder.mkdir(parents=True)
        unread = []
        # Notebooks of one name in several folders stay apart, and keep the times that decide
        # which of them counts.
        for notebook in files_in(Path(submission), ""):
            if not notebook.name.lower().endswith(NOTEBOOKS):
                continue
            # A browser or a learner may have renamed it, so its cells say which lesson it is.
            handed_in = Submission(LEARNER, notebook.name, notebook, Path(submission).resolve())
            if handed_in.problem:
                unread.append(f"{notebook.name}: {handed_in.problem}.")
            if not lessons or handed_in.lesson in lessons:
                target = folder / notebook.relative_to(submission)
                target.parent.mkdir(parents=True, exist_ok=True)
                # a link out of the submission, or to nothing, stays a link, which grading refuses
                shutil.copy2(notebook, target, follow_symlinks=not handed_in.problem)
        table = Path(scratch, "grades.csv")
        rows: list[dict[str, str]] = []
        if any(folder.iterdir()):
            command = [sys.executable, "-m", "labkit", "grade", str(folder.parent)]
            done = subprocess.run([*command, "--csv", str(table)], check=False)
            if not table.is_file():
                return done.returncode or 1
            with table.open(newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
    found = results_of(rows)
    if not rows and unread:
        found["output"] = " ".join(["No notebook of the lab could be read.", *unread])
    write_atomic(Path(results), json.dumps(found, indent=2).encode())
    return 0


if __name__ == "__main__":
    import sys

    raise SystemExit(main(sys.argv[1:]))
