"""What does a training that fails look like, and what repairs it? A patient: a short training with one fault.

Idea: one function writes both forms, `training(cured)`: what differs stands under `if cured`, so that the fault and its
repair are a line or two beside each other. `run` runs either form and returns what came of it; `snippet` shows one form
as its author would have written it. Everything is plain torch: it is what people bring.

Invariant: `failed` asks the outcome of a real run, never the patient's description.
"""

from __future__ import annotations

import ast
import inspect
import math
import re
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn

from labkit.train.digits import Data, single_digits
from labkit.train.networks import mlp

Batch = tuple[Tensor, Tensor]


def right() -> float:
    """Return the score of a training that has only to come through without an error."""
    return 1.0


@dataclass(frozen=True)
class Training:
    """A training as its author wrote it, ready to run.

    step       does one step on one batch and returns its loss, or None
    batches    what the steps are given, one after another
    score      asked after the last step: how good is what came out; higher is better, NaN is worst
    model, optimizer, scaler   what the step works on, for instruments that listen; None where there is none
    """

    step: Callable[[Any], Any]
    batches: Iterable[Any] = (None,)
    score: Callable[[], float] = right
    model: nn.Module | None = None
    optimizer: torch.optim.Optimizer | None = None
    scaler: Any = None


@dataclass(frozen=True)
class Outcome:
    """What came of a run: the losses, the score (NaN where the run was ended), and the error that ended it, or ""."""

    losses: tuple[float, ...]
    score: float
    error: str = ""


class Kind(StrEnum):
    """What is seen first; each value is the name of a filter on the wall of cards."""

    ERROR = "an error or a warning"
    NOT_FINITE = "NaN or inf"
    LEARNS_BADLY = "learns little"
    WRONG_NUMBERS = "wrong numbers"
    GPU = "slow, or only on a GPU"


@dataclass(frozen=True, kw_only=True)
class Card:
    """What is known about a fault.

    symptom    what its author sees
    cause      why it happens
    reading    what instruments show that gives it away
    repair     what to do
    kind       what is seen first
    errors     the words of the error, as people search for them; () where none is raised
    threads    where it was reported: owner/repository#number, or an address
    claims     the claims of data/claims.csv that it bears on
    """

    symptom: str
    cause: str
    reading: str
    repair: str
    kind: Kind = Kind.LEARNS_BADLY
    errors: tuple[str, ...] = ()
    threads: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()


@dataclass(frozen=True)
class Patient(Card):
    """A fault that people meet, as a training that shows it on a CPU.

    training   builds the training, broken or cured
    limit      the score that the cured training reaches and the broken one does not
    only       the device whose autocast shows the fault, "cpu" or "cuda"; "" where both do
    prevented  why labkit.frameworks.torch_amp does not show it, although torch does on every device; "" where it does
    shown      the code that shows the fault, where that is not `training`: what each of several processes runs
    """

    training: Callable[[bool], Training]
    limit: float = 0.5
    only: str = ""
    prevented: str = ""
    shown: Callable[..., Any] | None = None

    @property
    def id(self) -> str:
        """The name of its file."""
        return self.training.__module__.rpartition(".")[2]

    @property
    def title(self) -> str:
        """The fault in one sentence: the first line of its file."""
        return (sys.modules[self.training.__module__].__doc__ or "").strip().splitlines()[0]

    @property
    def where(self) -> str:
        """Where the fault is not seen, in a sentence; "" for a fault that is seen everywhere."""
        under = (
            f"Only torch.autocast({self.only!r}) shows it: the lists of other devices are others." if self.only else ""
        )
        face = f"Under labkit.frameworks.torch_amp it does not fail: {self.prevented}" if self.prevented else ""
        return " ".join(filter(None, (under, face)))

    def failed(self, outcome: Outcome) -> bool:
        """Say whether a run shows this fault: it was ended by its error, or its score stays below the limit."""
        if outcome.error:
            return any(words in outcome.error for words in self.errors)
        return not outcome.score >= self.limit


def random_state_kept() -> AbstractContextManager[None]:
    """Return a context that puts back the random states of the CPU and of every GPU, all of which manual_seed sets."""
    usable = torch.cuda.is_available() and not torch.cuda._is_in_bad_fork()  # where it is not, no GPU is seeded
    return torch.random.fork_rng(devices=range(torch.cuda.device_count()) if usable else ())


def run(patient: Patient, cured: bool) -> Outcome:
    """Run one form to its end, or to the error that ends it; the global random state is left as it was."""
    losses: list[float] = []
    with random_state_kept():
        try:
            training = patient.training(cured)
            for batch in training.batches:
                loss = training.step(batch)
                losses.append(math.nan if loss is None else loss.item() if isinstance(loss, Tensor) else loss)
            return Outcome(tuple(losses), training.score())
        except Exception as error:
            return Outcome(tuple(losses), math.nan, f"{type(error).__name__}: {error}")


def snippet(patient: Patient, cured: bool) -> str:
    """Return the code of one form, as its author would have written it: every choice by `cured` is made.

    >>> from labkit.clinic import patients
    >>> print(snippet(patients()["log_of_epsilon"], cured=False).splitlines()[-1].strip())
    return Training(lambda batch: step(*batch), batches(300), lambda: accuracy(model), model, optimizer, scaler)
    """
    return code_of(patient.shown or patient.training, cured)


def code_of(function: Callable[..., Any], cured: bool) -> str:
    """Return the body of a function of `cured`, with every choice by it made."""
    tree = _Decided(cured).visit(ast.parse(inspect.getsource(function)))
    (body,) = tree.body
    lines = body.body[ast.get_docstring(body) is not None :]
    code = "\n".join(ast.unparse(ast.fix_missing_locations(line)) for line in lines)
    return re.sub(r"\n(?=(?:def|class) )|(?<=[^\n])\n(?=return )", "\n\n", code)


class _Decided(ast.NodeTransformer):
    """Put True or False for `cured`, and what follows from it: the branch that is taken, the rest of an `and`."""

    def __init__(self, cured: bool) -> None:
        self.cured = cured

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Replace the name by its value."""
        return ast.Constant(self.cured) if node.id == "cured" else node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        """Decide `not cured`."""
        self.generic_visit(node)
        value = _truth(node.operand)
        return node if value is None or not isinstance(node.op, ast.Not) else ast.Constant(not value)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        """Decide `cured and x`, or leave x."""
        self.generic_visit(node)
        decisive = isinstance(node.op, ast.Or)
        if decisive in map(_truth, node.values):
            return ast.Constant(decisive)
        node.values = [value for value in node.values if _truth(value) is None]
        return node if len(node.values) > 1 else node.values[0]

    def visit_If(self, node: ast.If) -> Any:
        """Replace the statement by the lines of its branch."""
        self.generic_visit(node)
        value = _truth(node.test)
        return node if value is None else (node.body if value else node.orelse) or None

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        """Replace the expression by its branch."""
        self.generic_visit(node)
        value = _truth(node.test)
        return node if value is None else node.body if value else node.orelse


def _truth(node: ast.expr) -> bool | None:
    """Return the value of a decided expression, None of another."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, bool) else None


def address(thread: str) -> str:
    """Return where a thread is read.

    >>> address("NVIDIA/apex#1052")
    'https://github.com/NVIDIA/apex/issues/1052'
    """
    return thread if "#" not in thread else "https://github.com/{}/issues/{}".format(*thread.split("#"))


# --- what the patients share: the digits, a small network for them, and how well it does ---


def digits() -> Data:
    """Return handwritten digits: inputs [n, 1, 8, 8] between 0 and 1, targets [n]."""
    return single_digits()


def network(depth: int = 2, seed: int = 0) -> nn.Module:
    """Return a multi-layer perceptron for digits, the same at every call with the same seed."""
    torch.manual_seed(seed)
    return mlp(depth=depth)


def batches(steps: int, size: int = 64, seed: int = 0) -> list[Batch]:
    """Return batches of digits, drawn with replacement: inputs [size, 1, 8, 8] and targets [size]."""
    data, generator = digits(), torch.Generator().manual_seed(seed)
    rows = (torch.randint(len(data.train_inputs), (size,), generator=generator) for _ in range(steps))
    return [(data.train_inputs[row], data.train_targets[row]) for row in rows]


def accuracy(model: Callable[[Tensor], Tensor], cast: Callable[[Tensor], Tensor] = Tensor.float) -> float:
    """Return the share of test digits that a model gets right; `cast` makes its inputs."""
    data = digits()
    with torch.no_grad():
        outputs = model(cast(data.test_inputs)).float()
    return float((outputs.argmax(1) == data.test_targets).float().mean()) if outputs.isfinite().all() else math.nan
