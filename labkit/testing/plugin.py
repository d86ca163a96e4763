"""Plugin of pytest that shows verdicts; pytest finds it where the lab is installed.

A test that fails with `Unexplained` shows its own line and the verdict, without the frames of this
package. A section at the end of the run lists such tests with what would explain them. The fixture
`explained` is `assert_explained`.

Invariant: nothing is changed in other tests, and labkit.testing, which needs torch, is imported
only by a test that asks for the fixture.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from labkit.testing.verdict import Verdict

# Attribute of a report: the verdict in one line. pytest-xdist sends it from its workers along.
_VERDICT = "labkit_verdict"


@pytest.fixture
def explained() -> Callable[..., Verdict]:
    """Return `labkit.testing.assert_explained`."""
    from labkit.testing.comparison import assert_explained

    return assert_explained


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Replace the traceback of an `Unexplained` by the line of the test and the verdict."""
    report = yield
    # A test that has not imported the module cannot have raised its error.
    comparison = sys.modules.get("labkit.testing.comparison")
    if comparison is None or call.excinfo is None:
        return report
    if isinstance(call.excinfo.value, comparison.Unexplained):
        verdict = call.excinfo.value.verdict
        report.longrepr = f"{_line_of_test(item, call.excinfo)}\n\n{verdict}"
        suspects = "".join(f"; {each}" for each in verdict.suspects[:1])
        setattr(report, _VERDICT, f"{verdict.kind}{suspects}")
    return report


def _line_of_test(item: pytest.Item, error: pytest.ExceptionInfo[BaseException]) -> str:
    """Return the last line that ran in the file of a test, or else outside of this package."""
    own = [entry for entry in error.traceback if Path(entry.path) == item.path]
    if not own:
        # the test was inherited from a class in another file
        package = Path(__file__).parent
        own = [entry for entry in error.traceback if package not in Path(entry.path).parents]
    last = own[-1]
    return f"{Path(last.path).name}:{last.lineno + 1}: {str(last.statement).strip()}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the tests whose differences are not explained."""
    reports = [each for each in terminalreporter.getreports("failed") if hasattr(each, _VERDICT)]
    if not reports:
        return
    terminalreporter.section("differences that rounding does not explain")
    for report in reports:
        terminalreporter.line(f"{report.nodeid}: {getattr(report, _VERDICT)}")
