"""What is a way of training in mixed precision, as a value?

Idea: O0 to O3, BF16 and a learner's own are rows that name a format for each thing that has one. The training loop
reads them and has no `if` on precision: FP32 is the recipe whose casts, copies and scale do nothing.

Invariant: a recipe that exists is consistent; an inconsistent one is refused with the reason.

Source: apex.amp opt levels O0 to O3 (names and meaning).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from labkit.amp.autocast import autocast
from labkit.amp.scaler import DYNAMIC, NO_SCALING, ScalerConfig, static
from labkit.formats import BF16, FP16, FP32, Format
from labkit.gemm import half_storage


@dataclass(frozen=True)
class Recipe:
    """Which format each part of training uses.

    model           weights and activations of the model
    autocast        format that autocast casts to, or None for no autocast (then `model` alone decides)
    keep_norms      normalisation layers stay in FP32
    master_weights  FP32 weights survive between steps; False: what `model` cannot hold is forgotten after each step
    optimizer       weights, gradients and state inside the optimizer's step
    scaler          how the loss is scaled

    Raises:
        ValueError: the parts contradict each other; the message says which and what would do.
    """

    name: str
    model: Format = FP32
    autocast: Format | None = None
    keep_norms: bool = True
    master_weights: bool = True
    optimizer: Format = FP32
    scaler: ScalerConfig = NO_SCALING

    def __post_init__(self) -> None:
        if self.autocast is not None and self.model != FP32:
            raise ValueError(
                f"recipe {self.name!r}: autocast keeps the model in FP32 and casts by operation, but model is "
                f"{self.model.name}. Take autocast=None (O2 style) or model=FP32 (O1 style)."
            )
        if self.optimizer not in (FP32, self.model):
            raise ValueError(
                f"recipe {self.name!r}: the optimizer steps FP32 weights or the model's own ({self.model.name}); "
                f"it was given {self.optimizer.name}."
            )
        if self.master_weights and self.optimizer != FP32:
            raise ValueError(
                f"recipe {self.name!r}: master weights are FP32, but the optimizer would step {self.optimizer.name} "
                "weights. Take optimizer=FP32 or master_weights=False."
            )

    @contextmanager
    def forward(self, device: torch.device | str) -> Iterator[None]:
        """Open the region in which a forward pass and its loss run under this recipe."""
        with half_storage(device), autocast(self.autocast or FP16, enabled=self.autocast is not None):
            yield


# torch's growth_interval of 2,000 is meant for runs of many thousand steps; the lab's last some hundred.
_SHORT_RUN = ScalerConfig(growth_interval=25)
_O1 = Recipe("O1", autocast=FP16, scaler=DYNAMIC)
_O2 = Recipe("O2", model=FP16, scaler=DYNAMIC)
_ROWS = (
    Recipe("FP32"),
    replace(_O2, name="FP16", scaler=NO_SCALING),
    replace(_O2, name="FP16 static", scaler=static(2.0**10)),
    replace(_O2, name="FP16 static too high", scaler=static(2.0**26)),
    replace(_O2, name="FP16 dynamic", scaler=_SHORT_RUN),
    replace(_O2, name="FP16 no master", scaler=static(2.0**10), master_weights=False),
    Recipe("O0"),
    _O1,
    _O2,
    Recipe("O3", model=FP16, keep_norms=False, master_weights=False, optimizer=FP16),
    Recipe("BF16", model=BF16),
)
RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in _ROWS}
