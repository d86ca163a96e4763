"""What did a training really do, that somebody diagnosed and repaired? It is run here, and looked at meanwhile.

Idea: a consultation of lesson 10 is a model, batches, and a score. Whoever is consulted writes the training between
them, `(model, batches) -> (losses, diagnosis)`. While it runs, a dispatch mode counts in which format its products are
computed, and hooks count the examples that went in and the steps that were taken. So a repair that gives up 16 bits, or
leaves data out, shows, whatever it returns.

Invariant: the same training, seed and number of batches give the same treatment; torch's random state stays as it was.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.clinic.patient import accuracy, batches
from labkit.instrument.sources import tap
from labkit.train.networks import mlp

SIXTEEN_BITS = (torch.float16, torch.bfloat16)
PRODUCTS = {"mm": 0, "addmm": 1, "bmm": 0, "baddbmm": 1, "convolution": 0, "convolution_backward": 0}  # name -> operand
Batch = tuple[Tensor, ...]
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


@dataclass(frozen=True)
class Consultation:
    """What a training is given, and what is asked of it.

    model    makes the model, in FP32; torch's generator is seeded before
    batches  (how many, seed) -> what it is trained on
    steps    how many batches a treatment has
    limit    the score that a repaired training reaches and a broken one does not
    score    of a trained model
    skips    at most so many steps may be skipped
    half     at least this share of its products is to be computed in 16 bits
    weights  the dtypes that its parameters may have in the end
    rates    the learning rate of the first step that is taken is at least, of the last at most; None: of no account
    products  in each step there are at least so many
    """

    model: Callable[[], nn.Module]
    batches: Callable[[int, int], list[Batch]]
    steps: int
    limit: float
    score: Callable[[nn.Module], float] = field(default_factory=lambda: _reached)
    skips: int = 0
    half: float = 0.9
    weights: tuple[str, ...] = ("float32",)
    rates: tuple[float, float] | None = None
    products: int = 0


def treat(name: str, work: Work, seed: int = 0, steps: int | None = None) -> Treatment:
    """Run a training of a consultation and return what it did. Whatever it raises is raised.

    steps   how many batches it is given; None: as many as the consultation has

    Raises:
        KeyError: there is no consultation of this name.
        ValueError: the training did not return a pair of losses and diagnosis.
    """
    case = CONSULTATIONS[name]
    with torch.random.fork_rng(devices=[]):
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
    still = tuple(name for name, was in before.items() if torch.equal(was.to(after[name].dtype), after[name]))
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

    def around_update(self, update: Any, scaler: Any, *args: Any) -> None:
        if scaler.is_enabled():
            self.scales.append(scaler.get_scale())
        update(scaler, *args)

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


# --- the consultations of lesson 10 ---


def _reached(model: nn.Module, call: Callable[[Any, Tensor], Any] = nn.Module.__call__) -> float:
    """Return the share of test digits that a model gets right as it is used after training: in eval(), in FP16."""
    model.eval()
    dtype = next(model.parameters()).dtype
    with torch.autocast("cpu", torch.float16, enabled=dtype is torch.float32):
        return accuracy(partial(call, model), lambda inputs: inputs.to(dtype))


def _gains_moved(model: Any) -> float:
    """Return the share of a norm's gains, which begin at 1, that are no longer 1."""
    return float((model.norm.weight != 1).float().mean())


def _normed() -> nn.Module:
    named = {"flatten": nn.Flatten(), "norm": nn.LayerNorm(64), "linear": nn.Linear(64, 10)}
    return nn.Sequential(OrderedDict(named))


def _with_batch_norm() -> nn.Module:
    conv, norm = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8)
    named = {"conv": conv, "norm": norm, "relu": nn.ReLU(), "flatten": nn.Flatten(), "linear": nn.Linear(512, 10)}
    return nn.Sequential(OrderedDict(named))


def _body_and_last() -> nn.Module:
    last = nn.Linear(10, 10, bias=False)
    nn.init.eye_(last.weight)
    return nn.ModuleDict({"body": _small(), "last": last})


def _body_and_head() -> nn.Module:
    return nn.ModuleDict({"body": nn.Linear(64, 64), "head": nn.Linear(64, 10)})


def _normalised(model: Any, inputs: Tensor) -> Any:
    features = model["body"](255 * inputs.flatten(1)).relu().float()
    return model["head"](12 * features / features.square().sum(1, keepdim=True).sqrt())


def _attention() -> nn.Module:
    return nn.ModuleDict({"embed": nn.Linear(8, 32), "mix": nn.Linear(32, 96), "head": nn.Linear(32, 10)})


def _attended(model: Any, inputs: Tensor) -> Any:
    hidden = model["embed"](inputs.view(-1, 8, 8))
    query, key, value = model["mix"](hidden).chunk(3, dim=2)
    return model["head"](((query @ key.mT / 32**0.5).softmax(-1) @ value).mean(1))


def odd_step(seed: int) -> int:
    """Return the number of the batch, counted from 0, in which something is odd: another one for each seed."""
    return 11 + 7 * seed % 16


def _one_broken_picture(steps: int, seed: int) -> list[Batch]:
    """Return batches in one of which one picture is three million times too bright."""
    given: list[Batch] = [(inputs.clone(), targets) for inputs, targets in batches(steps, seed=seed)]
    for inputs, _ in given[odd_step(seed) : odd_step(seed) + 1]:
        inputs[0] *= 3e6
    return given


LITTER = 15.0  # what stands where there is no token: whoever attends to it learns little


def _padded(steps: int, seed: int) -> list[Batch]:
    """Return batches of digits as eight tokens of eight numbers, and which of them are padding."""
    given: list[Batch] = []
    for number, (inputs, targets) in enumerate(batches(steps, seed=seed)):
        padding = torch.zeros(len(inputs), 8, dtype=torch.bool)
        padding[::2, 5:] = True
        padding[5] |= number == odd_step(seed)
        litter = LITTER * torch.randn(len(inputs), 8, 8)
        tokens = torch.where(padding[..., None], litter, inputs.view(-1, 8, 8))
        given.append((tokens, targets, padding))
    return given


def _of_digits(steps: int, seed: int) -> list[Batch]:
    return list(batches(steps, seed=seed))


_small = partial(mlp, hidden=64, depth=1)
_digits = Consultation(_small, _of_digits, steps=40, limit=0.6)

CONSULTATIONS: dict[str, Consultation] = {
    "unscale": _digits,
    "clip": _digits,
    "region": replace(_digits, skips=2),  # an epsilon that FP16 has is a cure, too
    "penalty": replace(_digits, steps=30, products=8),  # a penalty on gradients has a backward pass of its own
    "schedule": replace(_digits, steps=64, skips=24, rates=(0.5, 0.05)),
    "mask": Consultation(_attention, _padded, steps=40, limit=0.25, score=partial(_reached, call=_attended)),
    "function": Consultation(
        _body_and_last, _of_digits, 40, 0.6, partial(_reached, call=lambda m, x: m["last"](m["body"](x))), half=0.4
    ),
    "gains": Consultation(
        _normed, _of_digits, 20, 0.5, _gains_moved, weights=("bfloat16", "float32"), rates=(0.0, 1e-3)
    ),
    "eval": Consultation(_with_batch_norm, _one_broken_picture, 30, 0.6, skips=1),
    "overflow": Consultation(_body_and_head, _of_digits, 40, 0.6, partial(_reached, call=_normalised)),
}
