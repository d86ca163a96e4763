"""Fixtures of the instruments' tests."""

from collections.abc import Iterator

import pytest

from tests.instrument.leftovers import hooks


@pytest.fixture
def nothing_stays_behind() -> Iterator[None]:
    """Require that a test leaves no hook, patch or listener of a watch behind."""
    before = hooks()
    yield
    assert hooks() == before
