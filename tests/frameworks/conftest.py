"""Every test that asks for `make_scaler` runs twice: torch's GradScaler must pass what ours must pass."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from labkit.frameworks import GradScaler


@pytest.fixture(params=[torch.amp.GradScaler, GradScaler], ids=["torchs", "ours"])
def make_scaler(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return partial(request.param, "cpu")
