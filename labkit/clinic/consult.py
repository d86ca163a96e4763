"""What did a training really do, that somebody diagnosed and repaired? It is run here, and looked at meanwhile.

Idea: a consultation of lesson 10 is a model, batches, and a score. Whoever is consulted writes the training between
them, `(model, batches) -> (losses, diagnosis)`. While it runs, a dispatch mode counts in which format its products are
computed, and hooks count the examples that went in and the steps that were taken. So a repair that gives up 16 bits, or
leaves data out, shows, whatever it returns.

Invariant: the same training, seed and number of batches give the same treatment; torch's random state stays as it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.clinic.consultations import CONSULTATIONS
from labkit.clinic.patient import random_state_kept
from labkit.instrument.sources import tap

SIXTEEN_BITS = (torch.float16, torch.bfloat16)
PRODUCTS = {"mm": 0, "addmm": 1, "bmm": 0, "baddbmm": 1, "convolution": 0, "convolution_backward": 0}  # name -> operand
Work = Callable[[Any, Any], object]  # (model, batches) -> (losses, diagnosis)


@dataclass(frozen=True)
class Treatment:
    """What a training returned, and what was seen of it.

    losses     of each step, as it returned them
    diagnosis  what else it returned
    score      what its model reaches: higher is better, NaN is worst
    products   how many products it computed: of matrices, and convolutions
    half       the share of them whose inputs had 16 bits
    examples   how many went through the model
    steps      how often an optimizer was stepped
    norms      the length of all gradients together, at each of those steps
    rates      the learning rate in each of them
    scales     of the loss in each step, by a GradScaler; () without one
    weights    the dtypes of the model's parameters at the end
    still      the names of parameters that are what they were at the beginning
    error      what ended it, or ""
    """

    losses: tuple[float, ...] = ()
    diagnosis: object = None
    score: float = math.nan
    products: int = 0
    half: float = 0.0
    examples: int = 0
    steps: int = 0
    norms: tuple[float, ...] = ()
    rates: tuple[float, ...] = ()
    scales: tuple[float, ...] = ()
    weights: tuple[str, ...] = ()
    still: tuple[str, ...] = ()
    error: str = ""


def treat(name: str, work: Work, seed: int = 0, steps: int | None = None) -> Treatment:
    """Run a training of a consultation and return what it did. Whatever it raises is raised.

    steps   how many batches it is given; None: as many as the consultation has

    Raises:
        KeyError: there is no consultation of this name.
        ValueError: the training did not return a pair of losses and diagnosis.
    """
    case = CONSULTATIONS[name]
    with random_state_kept():
        torch.manual_seed(seed)
        model, given = case.model(), case.batches(case.steps if steps is None else steps, seed)
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        with _Witness().of(model) as witness:
            answer = work(model, given)
        score = case.score(model)
    if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[0], list)):
        raise ValueError("a treatment returns two things: the list of its losses, and the diagnosis")
    losses = tuple(loss.item() if isinstance(loss, Tensor) else float(loss) for loss in answer[0])
    after = dict(model.named_parameters())
    weights = tuple(sorted({str(p.dtype).removeprefix("torch.") for p in after.values()}))
    kept = {name: (was, after[name]) for name, was in before.items() if name in after}  # a layer may be another one now
    still = tuple(name for name, (was, now) in kept.items() if torch.equal(was.to(now.dtype), now))
    return replace(witness.tell(), losses=losses, diagnosis=answer[1], score=score, weights=weights, still=still)


def look(name: str, work: Work, seed: int = 0) -> Treatment:
    """Run a training of a consultation, and return what it did up to its end, or to the error that ended it."""
    try:
        return treat(name, work, seed)
    except Exception as error:
        return Treatment(error=f"{type(error).__name__}: {error}")


@dataclass
class _Witness:
    """Counts what a training does."""

    wide: int = 0
    narrow: int = 0
    examples: dict[int, int] = field(default_factory=dict)
    norms: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)

    @contextmanager
    def of(self, model: nn.Module) -> Iterator[_Witness]:
        with ExitStack() as stack:
            for module in model.modules():
                stack.callback(module.register_forward_pre_hook(self.before_module).remove)
            stack.callback(register_optimizer_step_pre_hook(self.before_step).remove)
            stack.enter_context(tap(torch.amp.GradScaler, "update", self.around_update))
            stack.enter_context(_Products(self))
            yield self

    def before_module(self, module: nn.Module, inputs: Any) -> None:
        seen = len(inputs[0]) if inputs and isinstance(inputs[0], Tensor) and inputs[0].dim() else 0
        self.examples[id(module)] = self.examples.get(id(module), 0) + seen

    def around_update(self, update: Any, scaler: Any, *args: Any, **kwargs: Any) -> None:
        if scaler.is_enabled():
            self.scales.append(scaler.get_scale())
        update(scaler, *args, **kwargs)

    def before_step(self, optimizer: Any, *_: Any) -> None:
        gradients = [p.grad.float().norm() for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
        self.rates.append(float(optimizer.param_groups[0]["lr"]))
        self.norms.append(float(torch.stack(gradients).norm()) if gradients else 0.0)

    def tell(self) -> Treatment:
        products = self.narrow + self.wide
        return Treatment(
            products=products,
            half=self.narrow / max(1, products),
            examples=max(self.examples.values(), default=0),
            steps=len(self.norms),
            norms=tuple(self.norms),
            rates=tuple(self.rates),
            scales=tuple(self.scales),
        )


class _Products(TorchDispatchMode):
    """Sees each operation below autocast, in the dtype in which it is computed."""

    def __init__(self, witness: _Witness) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.witness = witness

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operand = PRODUCTS.get(func.overloadpacket.__name__)
        if operand is not None:
            narrow = args[operand].dtype in SIXTEEN_BITS
            self.witness.narrow, self.witness.wide = self.witness.narrow + narrow, self.witness.wide + (not narrow)
        return func(*args, **(kwargs or {}))
