"""How does one training step hang together, when nothing in the loop may ask for the precision?

Idea: the engine holds what belongs to a step (model weights and their master, optimizer, loss scale) and offers the
five verbs that any loop has: forward, backward, clip, step, zero_grad. What they do follows from the recipe's values;
for FP32 the casts, the copies and the scale do nothing.

Invariant: a step happens with unscaled, finite FP32 gradients or not at all; its `StepReport` says which, and why.

Source: arXiv:1710.03740, section 3 (the loop); torch.amp.GradScaler (the order of unscaling, clipping and stepping).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from labkit.amp.convert import to_model_format
from labkit.amp.recipe import Recipe
from labkit.amp.scaler import ScalerState, StepReport, advance, initial, must_skip
from labkit.amp.unscale import unscale
from labkit.amp.weights import Weights
from labkit.interop import dtype_of


class Engine:
    """A model, its optimizer and a recipe, ready to be trained by a loop that does not know the recipe.

    Args:
        model: converted in place to the recipe's format, and moved to `device`.
        make_optimizer: parameters -> torch optimizer, called once with the weights that the recipe steps.
        recipe: in which precision.
        device: where.

    >>> from functools import partial
    >>> from labkit.amp import RECIPES
    >>> engine = Engine(nn.Linear(2, 1), partial(torch.optim.SGD, lr=0.1), RECIPES["O2"])
    >>> engine.zero_grad()
    >>> with engine.forward():
    ...     loss = engine(torch.ones(4, 2)).square().mean()
    >>> engine.backward(loss)
    >>> engine.step().stepped
    True
    """

    def __init__(
        self,
        model: nn.Module,
        make_optimizer: Callable[[Iterable[Tensor]], torch.optim.Optimizer],
        recipe: Recipe,
        *,
        device: torch.device | str = "cpu",
    ) -> None:
        self.device, self.recipe = torch.device(device), recipe
        self.model = to_model_format(model, recipe.model, keep_norms=recipe.keep_norms).to(self.device)
        self.weights = Weights(
            self.model, make_optimizer, master=recipe.master_weights, optimizer_dtype=dtype_of(recipe.optimizer)
        )
        self.scaler: ScalerState = initial(recipe.scaler)
        self.steps = 0
        self.skips_in_a_row = 0
        self._unscaled: list[Tensor] | None = None
        self._found_inf = False

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The torch optimizer, for a learning-rate scheduler to hold on to."""
        return self.weights.optimizer

    def forward(self) -> AbstractContextManager[None]:
        """Open the region in which a forward pass and its loss run under the recipe."""
        return self.recipe.forward(self.device)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model: FP32 tensors in, FP32 tensors out, whatever it computes in."""
        dtype = dtype_of(self.recipe.model)
        args, kwargs = tree_map_only(Tensor, partial(_cast, dtype), (args, kwargs))
        return tree_map_only(Tensor, partial(_cast, torch.float32), self.model(*args, **kwargs))

    def backward(self, loss: Tensor) -> None:
        """Multiply the loss by the scale and run the backward pass."""
        (loss * self.scaler.scale).backward()

    def clip(self, max_norm: float) -> Tensor:
        """Shorten the unscaled gradients to a common length of at most `max_norm`; return the length they had."""
        self._unscale()
        gradients = self._unscaled or []
        norm = torch.nn.utils.get_total_norm(gradients)
        torch._foreach_mul_(gradients, torch.clamp(max_norm / (norm + 1e-6), max=1.0))
        return norm

    def step(self) -> StepReport:
        """Step the weights if every gradient is finite, move the scale, and say what happened."""
        self._unscale()
        found_inf, scale = self._found_inf, self.scaler.scale
        skip = must_skip(self.scaler, found_inf, self.recipe.scaler)
        if not skip:
            self.weights.step(self._unscaled or [])
        self.skips_in_a_row = self.skips_in_a_row + 1 if skip else 0
        why = "a gradient held inf or NaN" if found_inf else "every gradient was finite"
        self.scaler = advance(self.scaler, found_inf, self.recipe.scaler)
        self.steps += 1
        self._unscaled = None
        return StepReport(not skip, found_inf, scale, why, (), self.skips_in_a_row)

    def zero_grad(self) -> None:
        """Forget the gradients of the last step."""
        self.weights.zero_grad()
        self._unscaled = None

    def _unscale(self) -> None:
        if self._unscaled is None:
            self._unscaled, self._found_inf = unscale(self.weights.gradients(), self.scaler.scale)

    def state_dict(self) -> dict[str, Any]:
        """Return what a run needs to go on."""
        return {
            "model": self.model.state_dict(),
            "master": [m.detach() for m in self.weights.master_weights],
            "optimizer": self.optimizer.state_dict(),
            "scaler": vars(self.scaler),
            "steps": self.steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self.model.load_state_dict(state["model"])
        with torch.no_grad():
            for master, stored in zip(self.weights.master_weights, state["master"], strict=True):
                master.copy_(stored)
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler = ScalerState(**state["scaler"])
        self.steps = state["steps"]


def _cast(dtype: torch.dtype, tensor: Tensor) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor
