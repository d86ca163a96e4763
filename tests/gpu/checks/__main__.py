"""Worker process that serves the checks of a GPU, and all other items of a part.

`labkit.gpu.catalogue.worker_command` starts it. A check is a test of this folder with the mark
`check(part, kind)`, and the id of its parameter is the name of its item. pytest runs it with its
fixtures. The values that it writes into `check_run.found` are the line of the item, and an
exception, such as a failed assertion, is its error.
"""

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from labkit.gpu.catalogue import catalogue
from labkit.gpu.job import Job
from labkit.gpu.worker import CHECKOUT, Item, Kind, Line, serve
from tests.gpu.conftest import CheckRun

# The environment variable with the device, because marks are evaluated at collection.
DEVICE = "LABKIT_CHECKS_DEVICE"
OPTIONS = (
    "-c",
    os.devnull,
    f"--rootdir={CHECKOUT}",
    f"--confcutdir={CHECKOUT / 'tests' / 'gpu'}",
    "--import-mode=importlib",
    "-p",
    "no:terminal",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:faulthandler",
    "-p",
    "no:timeout",
    "-p",
    "no:xdist",
    "--capture=no",
    "-W",
    "ignore",
)


class Served:
    """A plugin of pytest that runs no test until its name is read from standard input."""

    def __init__(self, job: Job, only: tuple[str, ...]) -> None:
        self.part = job.part
        self.only = only
        self.check_run = CheckRun(job.device, thorough=bool(job.part) and not job.quick)
        self.others = catalogue(job)
        self.raised: BaseException | None = None

    def pytest_configure(self, config: Any) -> None:
        config.check_run = self.check_run

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Serve the items instead of running all tests; timings are last."""
        items = [*self.others, *(self.item(test) for test in session.items if self.is_asked(test))]
        items.sort(key=lambda item: item.kind == Kind.TIMING)
        serve(
            [item for item in items if not self.only or item.name in self.only],
            self.check_run.device,
        )
        return True

    def is_asked(self, test: Any) -> bool:
        mark = test.get_closest_marker("check")
        in_part = mark is not None and (
            mark.args[0] == self.part if self.part else mark.args[0] != "many"
        )
        return in_part and not any(skip.args[0] for skip in test.iter_markers("skipif"))

    def item(self, test: Any) -> Item:
        _, kind = test.get_closest_marker("check").args
        return Item(test.callspec.id, Kind(kind), partial(self.run, test))

    def run(self, test: Any, device: str, found: Line) -> None:
        self.raised = None
        self.check_run.found = found
        runtestprotocol(test, nextitem=None, log=False)
        if isinstance(self.raised, Exception | KeyboardInterrupt | SystemExit):
            raise self.raised
        # pytest's own outcomes, as of `pytest.fail`, are no Exceptions, which the server catches
        if self.raised is not None:
            raise AssertionError(str(self.raised)) from self.raised

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> None:
        if call.excinfo is not None and self.raised is None:
            self.raised = call.excinfo.value


def main(job: Job, only: tuple[str, ...] = ()) -> int:
    os.environ[DEVICE] = job.device
    return pytest.main([*OPTIONS, str(Path(__file__).parent)], [Served(job, only)])


if __name__ == "__main__":
    sys.exit(main(Job.from_words(*sys.argv[1:])))
