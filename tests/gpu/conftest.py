"""Tests with the mark gpu are skipped where there is no GPU, loudly; with LABKIT_REQUIRE_GPU=1 that
is an error.
"""

import os
from dataclasses import dataclass, field
from typing import Any, NoReturn

import pytest
import torch

# no tests: what they import exists in a process with a simulated card alone
collect_ignore = ["simulated"]


@dataclass
class Asked:
    """What a check is asked: on which device, how much, and where it leaves what it found, in plain
    values.
    """

    device: str = "cuda"
    thorough: bool = True
    found: dict[str, Any] = field(default_factory=dict)


def without_a_gpu(required: bool) -> NoReturn:
    if required:
        pytest.fail("LABKIT_REQUIRE_GPU=1, but torch reaches no GPU here", pytrace=False)
    pytest.skip(
        "THERE IS NO GPU: nothing of this was asked of one; `make gpu` on a machine with one "
        "asks it"
    )


@pytest.fixture
def asked(request: pytest.FixtureRequest) -> Asked:
    """Return what `labkit gpu` asks of a check; everything, of the GPU, where pytest
    alone runs it.
    """
    served: Asked | None = getattr(request.config, "asked", None)
    return served or Asked()


@pytest.fixture(autouse=True)
def _needs_its_gpu(request: pytest.FixtureRequest) -> None:
    rehearsed = hasattr(request.config, "asked") and request.config.asked.device == "cpu"
    if request.node.get_closest_marker("gpu") and not torch.cuda.is_available() and not rehearsed:
        without_a_gpu(os.environ.get("LABKIT_REQUIRE_GPU") == "1")
