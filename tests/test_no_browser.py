"""A test run without a browser: one line says what was skipped, and what to install."""

import os
import subprocess
import sys
from pathlib import Path

from tests import conftest
from tests.browser import chromium

ROOT = Path(__file__).parents[1]
FILES = ("tests/browser/test_predict.py", "tests/widgets/test_underflow.py")


def test_tests_without_a_browser_are_one_line_of_the_summary(tmp_path: Path) -> None:
    without = {**os.environ, "PATH": str(tmp_path), "LABKIT_BROWSER": ""}
    without.pop("LABKIT_REQUIRE_BROWSER", None)
    # in this process, so that no worker is asked
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    run = subprocess.run(
        [*command, "-m", "browser", *FILES],
        cwd=ROOT,
        env=without,
        capture_output=True,
        text=True,
        check=False,
    )
    skipped = [line for line in run.stdout.splitlines() if line.startswith("SKIPPED")]
    assert len(skipped) == 1, run.stdout
    assert "apt-get install chromium" in skipped[0]


def test_the_reason_begins_with_what_the_summary_looks_for() -> None:
    assert chromium.WHERE_TO_GET_ONE.startswith(conftest.NO_BROWSER)
