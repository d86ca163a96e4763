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
    observer = _Observer(model)
    observer.record_weights()
    apply = vars(torch.autograd.Function)["apply"]

    def around_apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        observer.count_function(args)
        return apply.__func__(cls, *args, **kwargs)

    with ExitStack() as stack:
        for module in model.modules():
            stack.callback(module.register_forward_pre_hook(observer.before_module).remove)
        stack.callback(register_optimizer_step_pre_hook(observer.before_step).remove)
        stack.enter_context(tap(torch.amp.GradScaler, "update", observer.around_update))
        stack.callback(setattr, torch.autograd.Function, "apply", apply)
        torch.autograd.Function.apply = classmethod(  # type: ignore[assignment, method-assign]
            around_apply
        )
        stack.enter_context(_Products(observer.observations.products))
        yield observer.observations
    observer.record_weights()


class _Observer:
    """The hooks of one training, which fill in its observations."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.observations = Observations()

    def record_weights(self) -> None:
        """Record the parameters, if they have changed since the last record."""
        with torch.no_grad():
            state = torch.cat([p.detach().float().flatten() for p in self.model.parameters()])
        states = self.observations.states
        if states and _is_equal(states[-1], state):
            return
        if len(states) < MOST_STATES:
            states.append(state)

    def before_module(self, module: nn.Module, inputs: Any) -> None:
        """Count the examples with which a module is called."""
        self.record_weights()
        examples = 0
        if inputs and isinstance(inputs[0], Tensor) and inputs[0].dim():
            examples = len(inputs[0])
        counts = self.observations.examples
        counts[id(module)] = counts.get(id(module), 0) + examples

    def before_step(self, optimizer: Any, *_: Any) -> None:
        """Record the learning rate and the norm of all gradients."""
        self.record_weights()
        norms = [
            parameter.grad.float().norm()
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        norm = float(torch.stack(norms).norm()) if norms else 0.0
        self.observations.rates.append(float(optimizer.param_groups[0]["lr"]))
        self.observations.norms.append(norm)

    def around_update(self, update: Any, scaler: Any, *args: Any, **kwargs: Any) -> None:
        """Record the loss scale before a GradScaler updates it."""
        if scaler.is_enabled():
            self.observations.scales.append(scaler.get_scale())
        update(scaler, *args, **kwargs)

    def count_function(self, arguments: tuple[Any, ...]) -> None:
        """Count a call of an autograd function for each parameter among its arguments."""
        counts = self.observations.functions
        for argument in arguments:
            if isinstance(argument, nn.Parameter):
                counts[id(argument)] = counts.get(id(argument), 0) + 1


class _Products(TorchDispatchMode):
    """Counts the matrix products below autocast, by the dtype in which each is computed."""

    def __init__(self, counts: dict[str, int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts = counts

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operand = PRODUCTS.get(func.overloadpacket.__name__)
        if operand is not None:
            dtype = str(args[operand].dtype).removeprefix("torch.")
            self.counts[dtype] = self.counts.get(dtype, 0) + 1
        return func(*args, **(kwargs or {}))


def _is_equal(a: Tensor, b: Tensor) -> bool:
    """Return whether two states are equal; NaN equals NaN."""
    return a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())
