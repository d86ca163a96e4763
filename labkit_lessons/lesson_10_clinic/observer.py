"""Observer of a training: the weights of each step, and the dtypes of its products.

A grade depends on the weights: grading repeats every step from them, in another process. Only the
training's own process knows the dtypes of products and the use of an autograd function. A copy of
this module records them. `unpatched` makes the copy from the source, so that a cell that replaced a
name in the imported module has no effect.

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

# Operations that are matrix products -> the index of an argument that has the dtype of the product.
PRODUCTS = {
    "mm": 0,
    "addmm": 1,
    "bmm": 0,
    "baddbmm": 1,
    "convolution": 0,
    "convolution_backward": 0,
}
# Read at the first import: later, the sandbox hides the folders of lessons. A copy that `unpatched`
# makes has the source already.
SOURCE: bytes = globals().get("SOURCE") or Path(__file__).read_bytes()
# The largest number of recorded states. No consultation has more than 64 steps.
MOST_STATES = 256


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
        products: The number of products by the dtype of their inputs.
        examples: The number of examples by the id of the module that was called with them.
        functions: The number of calls of autograd functions by the id of a parameter in their
            arguments.
        states: All parameters as one FP32 vector, at the beginning and after each change.
        norms: The norm of all gradients at each optimizer step.
        rates: The learning rate at each optimizer step.
        scales: The loss scale at each update of a GradScaler.
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
    observations = Observations()

    def record_weights() -> None:
        with torch.no_grad():
            state = torch.cat([p.detach().float().flatten() for p in model.parameters()])
        states = observations.states
        if states and _is_equal(states[-1], state):
            return
        if len(states) < MOST_STATES:
            states.append(state)

    def before_module(module: nn.Module, inputs: Any) -> None:
        record_weights()
        examples = 0
        if inputs and isinstance(inputs[0], Tensor) and inputs[0].dim():
            examples = len(inputs[0])
        counts = observations.examples
        counts[id(module)] = counts.get(id(module), 0) + examples

    def before_step(optimizer: Any, *_: Any) -> None:
        record_weights()
        norms = [
            parameter.grad.float().norm()
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        observations.rates.append(float(optimizer.param_groups[0]["lr"]))
        observations.norms.append(float(torch.stack(norms).norm()) if norms else 0.0)

    def around_update(update: Any, scaler: Any, *args: Any, **kwargs: Any) -> None:
        if scaler.is_enabled():
            observations.scales.append(scaler.get_scale())
        update(scaler, *args, **kwargs)

    def around_apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        counts = observations.functions
        for argument in args:
            if isinstance(argument, nn.Parameter):
                counts[id(argument)] = counts.get(id(argument), 0) + 1
        return apply.__func__(cls, *args, **kwargs)

    class Products(TorchDispatchMode):
        """Observer of each operation below autocast, in the dtype in which it is computed."""

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            operand = PRODUCTS.get(func.overloadpacket.__name__)
            if operand is not None:
                dtype = str(args[operand].dtype).removeprefix("torch.")
                counts = observations.products
                counts[dtype] = counts.get(dtype, 0) + 1
            return func(*args, **(kwargs or {}))

    record_weights()
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
        yield observations
    record_weights()


def _is_equal(a: Tensor, b: Tensor) -> bool:
    """Return whether two states are equal; NaN equals NaN."""
    return a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())
