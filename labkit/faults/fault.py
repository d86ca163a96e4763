"""A fault of mixed precision as a training in two forms, broken and fixed, and its description.

Idea: one function writes both forms, `function(fixed)`: what differs is under `if fixed`, so
that the fault and its repair are a line or two beside each other. The function's name is the
fault's id; its docstring has the title, what is seen, why, how instruments show it, the repair, the
words of its errors, and where it was reported. `run` runs either form. Everything is plain torch:
it is what people bring.

Invariant: `failed` judges the outcome of a real run, never the description of the fault.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn

from labkit.instrument.events import GradScalerLike


def completed() -> float:
    """Return the score of a training that only has to end without an error."""
    return 1.0


@dataclass(frozen=True)
class Training:
    """A training as its author wrote it, ready to run.

    Attributes:
        step: does one step on one batch and returns its loss, or None.
        batches: the arguments of the steps, one after another.
        score: quality of the result after the last step; higher is better, NaN is worst.
        model: the model that the step trains, for instruments, or None.
        optimizer: its optimizer, or None.
        scaler: its loss scaler, or None.
    """

    step: Callable[[Any], Any]
    batches: Iterable[Any] = (None,)
    score: Callable[[], float] = completed
    model: nn.Module | None = None
    optimizer: torch.optim.Optimizer | None = None
    scaler: GradScalerLike | None = None


@dataclass(frozen=True)
class TrainingOutcome:
    """Result of a run: the losses, the score, and the error that ended it, or "".

    The score is NaN if the run was ended.
    """

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
    """What is known about a fault; its title and texts stand in the docstring of its function.

    Attributes:
        kind: what is seen first.
        claims: the claims of data/claims.csv that it bears on.
    """

    function: Callable[..., Any]
    kind: Kind = Kind.LEARNS_BADLY
    claims: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """The name of its function."""
        return self.function.__name__

    @property
    def title(self) -> str:
        """The fault in one sentence."""
        return (inspect.getdoc(self.function) or "").partition("\n")[0]

    symptom = property(lambda self: self._texts("Symptom")[0], doc="What its author sees.")
    cause = property(lambda self: self._texts("Cause")[0], doc="Why it happens.")
    reading = property(
        lambda self: self._texts("Reading")[0], doc="What instruments show that gives it away."
    )
    repair = property(lambda self: self._texts("Repair")[0], doc="What to do.")

    @property
    def errors(self) -> tuple[str, ...]:
        """The words of its errors, as people search for them; () where none is raised."""
        return self._texts("Error")

    @property
    def threads(self) -> tuple[str, ...]:
        """Where it was reported: owner/repository#number, or an address."""
        return tuple(", ".join(self._texts("Reported")).split(", "))

    def _texts(self, name: str) -> tuple[str, ...]:
        """Return the paragraphs of the docstring that begin with a name.

        Their further lines are indented.
        """
        found = re.findall(
            rf"^{name}:(.*(?:\n    .*)*)", inspect.getdoc(self.function) or "", re.MULTILINE
        )
        return tuple(" ".join(text.split()) for text in found)


@dataclass(frozen=True)
class Fault(Card):
    """A fault of mixed precision, as a training that shows it on a CPU.

    Attributes:
        function: builds the training, broken (False) or fixed (True).
        limit: the score that the fixed training reaches and the broken one does not.
        only: the device whose autocast shows the fault, "cpu" or "cuda"; "" where both do.
        prevented: why labkit.frameworks.torch_amp does not show it, although torch does on every
            device; "" where it does.
        shown: the code that shows the fault, where that is not `function`: what each of several
            processes runs.
    """

    function: Callable[[bool], Training]
    limit: float = 0.5
    only: str = ""
    prevented: str = ""
    shown: Callable[..., Any] | None = None

    @property
    def where(self) -> str:
        """Where the fault is not seen, in a sentence; "" for a fault that is seen everywhere."""
        under = (
            f"Only torch.autocast({self.only!r}) shows it: the lists of other devices are others."
            if self.only
            else ""
        )
        face = (
            f"Under labkit.frameworks.torch_amp it does not fail: {self.prevented}"
            if self.prevented
            else ""
        )
        return " ".join(filter(None, (under, face)))

    def failed(self, outcome: TrainingOutcome) -> bool:
        """Return whether a run shows this fault, by its error or a score below the limit."""
        if outcome.error:
            return any(words in outcome.error for words in self.errors)
        return not outcome.score >= self.limit


def random_state_kept() -> AbstractContextManager[None]:
    """Restore the random states of the CPU and of every GPU after the block.

    manual_seed sets all of them.
    """
    # where it is not, no GPU is seeded
    usable = torch.cuda.is_available() and not torch.cuda._is_in_bad_fork()
    return torch.random.fork_rng(devices=range(torch.cuda.device_count()) if usable else ())


def run(fault: Fault, fixed: bool) -> TrainingOutcome:
    """Run one form to its end, or to the error that ends it.

    The global random state is left as it was.
    """
    losses: list[float] = []
    with random_state_kept():
        try:
            training = fault.function(fixed)
            for batch in training.batches:
                loss = training.step(batch)
                if loss is None:
                    losses.append(math.nan)
                else:
                    losses.append(loss.item() if isinstance(loss, Tensor) else loss)
            return TrainingOutcome(tuple(losses), training.score())
        except Exception as error:
            return TrainingOutcome(tuple(losses), math.nan, f"{type(error).__name__}: {error}")


def address(thread: str) -> str:
    """Return where a thread, or a distribution with its version, is read.

    >>> address("NVIDIA/apex#1052")
    'https://github.com/NVIDIA/apex/issues/1052'
    >>> address("torch 2.13.0")
    'https://pypi.org/project/torch/2.13.0/'
    """
    if "#" in thread:
        return "https://github.com/{}/issues/{}".format(*thread.split("#"))
    if " " in thread:
        return "https://pypi.org/project/{}/{}/".format(*thread.split())
    return thread
