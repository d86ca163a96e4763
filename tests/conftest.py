"""Setup of all tests: one thread, a summary of skipped browser tests, and long modules first.

The models here are so small that handing work to a second thread costs more than the work; on a
shared machine it can be tens of times slower. The variables are set before anything imports torch,
and kernels started by tests inherit them.
"""

import os
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kernels import preloaded

# The start of the reason for tests that are skipped without a browser (tests.browser.chromium).
NO_BROWSER = "no browser found"

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

# The files and folders whose tests take longest. Started last, one of them would keep one process
# busy while the others wait.
LONGEST = (
    "tests/test_notebooks.py",
    "tests/grading/",
    "tests/browser/",
    "tests/classroom/",
    "tests/amp/distributed/",
)

for variable in THREAD_VARIABLES:
    os.environ.setdefault(variable, "1")


def pytest_report_header() -> str:
    return "threads: " + ", ".join(
        f"{variable}={os.environ[variable]}" for variable in THREAD_VARIABLES
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the modules of LONGEST first, in that order.

    pytest-xdist keeps the order with --no-loadscope-reorder.
    """
    items.sort(
        key=lambda item: min(
            [i for i, path in enumerate(LONGEST) if item.nodeid.startswith(path)],
            default=len(LONGEST),
        )
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Give all tests that need a browser one place, so that the summary has one line for them."""
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple) and NO_BROWSER in report.longrepr[2]:
        report.longrepr = ("tests/browser", 0, report.longrepr[2])
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the seconds of each package's tests, set-up included, with --durations."""
    if terminalreporter.config.option.durations is None:
        return
    seconds: Counter[str] = Counter()
    items: Counter[str] = Counter()
    for report in (report for some in terminalreporter.stats.values() for report in some):
        if isinstance(report, pytest.TestReport):
            package = Path(report.nodeid.partition("::")[0]).parent.as_posix()
            package = "/".join(package.split("/")[:2])
            seconds[package] += report.duration
            if report.when == "call":
                items[package] += 1
    terminalreporter.section("seconds of each package")
    for package, total in seconds.most_common():
        terminalreporter.write_line(f"{total:7.1f} s  {items[package]:5} tests  {package}")


@pytest.fixture(scope="module")
def preloaded_kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let Jupyter kernels of this process and its children start with torch and the lab imported.

    See tests.kernels.
    """
    with (
        preloaded(tmp_path_factory.mktemp("kernels")) as environment,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in environment.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium for the tests of a module; Playwright's event loop ends after them."""
    from tests.browser import chromium

    with chromium.running() as browser:
        yield browser


@pytest.fixture(scope="session")
def simulated_gpu() -> Callable[..., Any]:
    """`run` of tests.gpu.simulated: run a function, or several, in a process with a simulated card.

    Where there cannot be one, the test is skipped; with LABKIT_REQUIRE_SIMULATED_GPU=1, it fails.
    """
    from tests.gpu import simulated

    if (reason := simulated.reason_against()) is not None:
        if os.environ.get(simulated.REQUIRE) == "1":
            pytest.fail(f"{simulated.REQUIRE}=1, but {reason}", pytrace=False)
        pytest.skip(f"NO SIMULATED GPU: {reason}")
    return simulated.run
