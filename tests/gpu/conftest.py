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
class Asked:
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
def asked(request: pytest.FixtureRequest) -> Asked:
    """Return the request of `labkit gpu`; under pytest alone, a thorough check of the GPU."""
    served: Asked | None = getattr(request.config, "asked", None)
    return served or Asked()


@pytest.fixture(autouse=True)
def _needs_its_gpu(request: pytest.FixtureRequest) -> None:
    rehearsed = hasattr(request.config, "asked") and request.config.asked.device == "cpu"
    if request.node.get_closest_marker("gpu") and not torch.cuda.is_available() and not rehearsed:
        without_a_gpu(os.environ.get("LABKIT_REQUIRE_GPU") == "1")
