"""The checks that `labkit gpu` serves as items of its parts."""

import pytest

from labkit import gpu
from labkit.gpu import catalogue, worker
from labkit.gpu import job as gpu_job
from tests.gpu.checks import __main__ as served_checks
from tests.gpu.checks import test_checks

# The part and the kind of each check.
MARKS = [
    mark.args
    for function in vars(test_checks).values()
    for mark in getattr(function, "pytestmark", [])
    if mark.name == "check"
]


def test_parts_with_checks_are_those_of_the_marks() -> None:
    """A check of an unknown part would run nowhere."""
    assert {part for part, _ in MARKS} == {name for name, part in gpu.PARTS.items() if part.checks}


def test_checks_have_known_kinds() -> None:
    """A check of an unknown kind would not be read."""
    assert {kind for _, kind in MARKS} <= set(worker.Kind)


def test_a_passport_has_checks() -> None:
    assert catalogue.PASSPORT.checks


def test_a_check_that_fails_by_pytest_is_an_assertion(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outcomes of pytest are no Exceptions, and the server catches only these."""
    served = served_checks.Served(gpu_job.Job("cpu", quick=True), only=())

    def fails(*_: object, **__: object) -> None:
        served.raised = pytest.fail.Exception("expected a card")

    monkeypatch.setattr(served_checks, "runtestprotocol", fails)
    with pytest.raises(AssertionError, match="expected a card"):
        served.run(None, "cpu", {})
