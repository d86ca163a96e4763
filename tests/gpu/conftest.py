"""Fixtures of the tests on a GPU, which are skipped without one.

With LABKIT_REQUIRE_GPU=1, they fail instead.
"""

import os
from dataclasses import dataclass, field
from typing import Any, NoReturn

import pytest
import torch

# These modules are no tests; they import what exists only in a process with a simulated card.
collect_ignore = ["simulated"]


@dataclass
class CheckRun:
    """The request of `labkit gpu` to a check, and the plain values that the check found."""

    device: str = "cuda"
    thorough: bool = True
    found: dict[str, Any] = field(default_factory=dict)


def without_a_gpu(required: bool) -> NoReturn:
    if required:
        pytest.fail("LABKIT_REQUIRE_GPU=1, but torch reaches no GPU here", pytrace=False)
    pytest.skip(
        "THERE IS NO GPU: this test did not run; `make gpu` runs it on a machine with a GPU"
    )


@pytest.fixture
def check_run(request: pytest.FixtureRequest) -> CheckRun:
    """Return the request of `labkit gpu`; under pytest alone, a thorough check of the GPU."""
    served: CheckRun | None = getattr(request.config, "check_run", None)
    return served or CheckRun()


@pytest.fixture(autouse=True)
def _needs_its_gpu(request: pytest.FixtureRequest) -> None:
    rehearsed = hasattr(request.config, "check_run") and request.config.check_run.device == "cpu"
    if request.node.get_closest_marker("gpu") and not torch.cuda.is_available() and not rehearsed:
        without_a_gpu(os.environ.get("LABKIT_REQUIRE_GPU") == "1")
