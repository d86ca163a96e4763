"""The line about hints that `check` adds to a grade after the second failed check.

`check` counts the failures of its process, so these checks run in a process of their own.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
Shown = dict[str, tuple[str, str]]


@pytest.fixture(scope="module")
def shown() -> Shown:
    """The text and the HTML of each grade that checks_in_a_row.py prints."""
    command = [sys.executable, "-m", "tests.grading.checks_in_a_row"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return {when: (text, page) for when, (text, page) in json.loads(run.stdout).items()}


def test_the_text_of_a_second_failure_names_the_hints(shown: Shown) -> None:
    text, _ = shown["second failure"]
    assert 'hint("scaling.advance")' in text


def test_the_table_of_a_second_failure_names_the_hints(shown: Shown) -> None:
    _, page = shown["second failure"]
    assert "hint(&quot;scaling.advance&quot;)" in page


@pytest.mark.parametrize(
    "when",
    [
        "starter",
        "first failure",
        "right answer",
        "right answer after two failures",
        "first failure of another exercise",
    ],
)
def test_no_other_grade_names_the_hints(when: str, shown: Shown) -> None:
    text, page = shown[when]
    assert "hint(" not in text
    assert "hint(" not in page
