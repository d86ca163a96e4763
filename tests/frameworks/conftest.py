"""Fixtures of the frameworks' tests: the same random numbers, and torch as it was before apex."""

from collections.abc import Iterator

import pytest
import torch

from tests.frameworks.restoring import restore_torch


@pytest.fixture
def same_numbers() -> None:
    """Seed torch's random numbers."""
    torch.manual_seed(99)


@pytest.fixture
def restored_torch() -> Iterator[None]:
    """Undo what a test does to torch by apex."""
    yield
    restore_torch()
