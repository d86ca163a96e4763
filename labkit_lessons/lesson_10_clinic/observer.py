"""Observer of a training: the weights of each step, and the dtypes of its products.

A grade rests on the weights: grading repeats every step from them, in another process. Only the
training's own process knows the dtypes of products and the use of an autograd function. A copy of
this module records them, which `unpatched` makes from its source: a cell that replaced a name in
the imported module does not change it.

Invariant: after `observed`, all hooks are removed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.instrument.stream import tap

# name -> operand
PRODUCTS = {
    "mm": 0,
    "addmm": 1,
    "bmm": 0,
    "baddbmm": 1,
    "convolution": 0,
    "convolution_backward": 0,
}
# Read at the first import: afterwards the sandbox hides the lessons' folders, also from the copy
# that `unpatched` makes
SOURCE: bytes = globals().get("SOURCE") or Path(__file__).read_bytes()
MOST_STATES = 256  # of a training's weights; no consultation has more than 64 steps


def unpatched() -> ModuleType:
    """Return a new copy of this module, executed from its source."""
    module = ModuleType(__name__)
    vars(module).update(__file__=__file__, SOURCE=SOURCE)
    exec(compile(SOURCE, __file__, "exec"), vars(module))
    return module


@dataclass
class Observations:
    """Counts and weights of one training.

    Attributes:
        products: dtype -> how many products had inputs of it.
        examples: module -> how many examples it was called with.
        functions: Parameters that an autograd function of the training's own was applied to, by how
            often.
        states: All parameters, one after another, in FP32: whenever they changed.
        norms, rates, scales: Of each optimizer step: length of the gradients, learning rate; of
            each scaler update: scale.
    """

    products: dict[str, int] = field(default_factory=dict)
    examples: dict[int, int] = field(default_factory=dict)
    functions: dict[int, int] = field(default_factory=dict)
    states: list[Tensor] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)


@contextmanager
def observed(model: nn.Module) -> Iterator[Observations]:
    """Observe the training of a model until the block ends."""
    seen = Observations()

    def weights() -> None:
        with torch.no_grad():
            state = torch.cat([p.detach().float().flatten() for p in model.parameters()])
        if len(seen.states) < MOST_STATES and not (seen.states and _same(seen.states[-1], state)):
            seen.states.append(state)

    def before_module(module: nn.Module, inputs: Any) -> None:
        weights()
        examples = (
            len(inputs[0]) if inputs and isinstance(inputs[0], Tensor) and inputs[0].dim() else 0
        )
        seen.examples[id(module)] = seen.examples.get(id(module), 0) + examples

    def before_step(optimizer: Any, *_: Any) -> None:
        weights()
        gradients = [
            p.grad.float().norm()
            for g in optimizer.param_groups
            for p in g["params"]
            if p.grad is not None
        ]
        seen.rates.append(float(optimizer.param_groups[0]["lr"]))
        seen.norms.append(float(torch.stack(gradients).norm()) if gradients else 0.0)

    def around_update(update: Any, scaler: Any, *args: Any, **kwargs: Any) -> None:
        if scaler.is_enabled():
            seen.scales.append(scaler.get_scale())
        update(scaler, *args, **kwargs)

    def around_apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        for parameter in (argument for argument in args if isinstance(argument, nn.Parameter)):
            seen.functions[id(parameter)] = seen.functions.get(id(parameter), 0) + 1
        return apply.__func__(cls, *args, **kwargs)

    class Products(TorchDispatchMode):
        """Observer of each operation below autocast, in the dtype in which it is computed."""

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if (operand := PRODUCTS.get(func.overloadpacket.__name__)) is not None:
                dtype = str(args[operand].dtype).removeprefix("torch.")
                seen.products[dtype] = seen.products.get(dtype, 0) + 1
            return func(*args, **(kwargs or {}))

    weights()
    apply = vars(torch.autograd.Function)["apply"]
    with ExitStack() as stack:
        for module in model.modules():
            stack.callback(module.register_forward_pre_hook(before_module).remove)
        stack.callback(register_optimizer_step_pre_hook(before_step).remove)
        stack.enter_context(tap(torch.amp.GradScaler, "update", around_update))
        stack.callback(setattr, torch.autograd.Function, "apply", apply)
        torch.autograd.Function.apply = classmethod(  # type: ignore[assignment, method-assign]
            around_apply
        )
        stack.enter_context(Products())  # type: ignore[no-untyped-call]
        yield seen
    weights()


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())
