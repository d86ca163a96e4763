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
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from labkit.testing.verdict import Verdict

_VERDICTS = pytest.StashKey["dict[str, Verdict]"]()


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
        own = [
            entry for entry in call.excinfo.traceback if entry.path == item.path
        ] or call.excinfo.traceback[:1]
        report.longrepr = (
            f"{item.path.name}:{own[-1].lineno + 1}: {str(own[-1].statement).strip()}\n\n{verdict}"
        )
        item.config.stash.setdefault(_VERDICTS, {})[item.nodeid] = verdict
    return report


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """List the tests whose differences are not explained."""
    verdicts = config.stash.get(_VERDICTS, {})
    if not verdicts:
        return
    terminalreporter.section("differences that rounding does not explain")
    for test, verdict in verdicts.items():
        suspects = "".join(f"; {each}" for each in verdict.suspects[:1])
        terminalreporter.line(f"{test}: {verdict.kind}{suspects}")
