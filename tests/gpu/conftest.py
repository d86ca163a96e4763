"""Tests with the mark gpu are skipped where there is no GPU, loudly; with LABKIT_REQUIRE_GPU=1 that is an error."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest
import torch

collect_ignore = ["simulated"]  # no tests: what they import exists in a process with a simulated card alone


def without_a_gpu(required: bool) -> NoReturn:
    """End a test that needs a GPU where there is none."""
    if required:
        pytest.fail("LABKIT_REQUIRE_GPU=1, but torch reaches no GPU here", pytrace=False)
    pytest.skip("THERE IS NO GPU: nothing of this was asked of one; `make gpu` on a machine with one asks it")


@pytest.fixture(autouse=True)
def _needs_its_gpu(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("gpu") and not torch.cuda.is_available():
        without_a_gpu(os.environ.get("LABKIT_REQUIRE_GPU") == "1")
