"""A fault of mixed precision as a training in two forms, broken and fixed, and its description.

Idea: one function, `function(fixed)`, builds both forms. They differ under `if fixed`, so that the
fault and its repair are a line or two beside each other. The function's name is the fault's id. Its
docstring has the title, the symptom, the cause, what instruments show, the repair, the messages of
its errors, and where it was reported. `run` runs either form. The code is plain torch, as users
write it.

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
    """What a user notices first; each value is the name of a filter on the wall of cards."""

    ERROR = "an error or a warning"
    NOT_FINITE = "NaN or inf"
    LEARNS_BADLY = "learns little"
    WRONG_NUMBERS = "wrong numbers"
    GPU = "slow, or only on a GPU"


@dataclass(frozen=True, kw_only=True)
class Card:
    """The description of a fault; title and texts are those of its function's docstring.

    Attributes:
        function: the code that shows the fault.
        kind: what a user notices first.
        claims: the ids of related claims in data/claims.csv.
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

    @property
    def symptom(self) -> str:
        """What its author sees."""
        return self._texts("Symptom")[0]

    @property
    def cause(self) -> str:
        """Why it happens."""
        return self._texts("Cause")[0]

    @property
    def reading(self) -> str:
        """What instruments show that identifies it."""
        return self._texts("Reading")[0]

    @property
    def repair(self) -> str:
        """What to do."""
        return self._texts("Repair")[0]

    @property
    def errors(self) -> tuple[str, ...]:
        """The messages of its errors, as people search for them; empty if it raises none."""
        return self._texts("Error")

    @property
    def threads(self) -> tuple[str, ...]:
        """Where it was reported: owner/repository#number, or a URL."""
        return tuple(thread for text in self._texts("Reported") for thread in text.split(", "))

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
        only: the only device whose autocast shows the fault, "cpu" or "cuda"; "" if both do.
        prevented: why labkit.frameworks.torch_amp does not have the fault, although torch does on
            every device; "" if it has it.
        shown: the code to show in place of `function`, if each of several processes runs it.
    """

    function: Callable[[bool], Training]
    limit: float = 0.5
    only: str = ""
    prevented: str = ""
    shown: Callable[..., Any] | None = None

    @property
    def where(self) -> str:
        """Sentences that say where the fault does not occur; "" if it occurs everywhere."""
        sentences = []
        if self.only:
            sentences.append(
                f"Only torch.autocast({self.only!r}) shows it: the lists of other devices differ."
            )
        if self.prevented:
            sentences.append(
                f"Under labkit.frameworks.torch_amp it does not fail: {self.prevented}"
            )
        return " ".join(sentences)

    def failed(self, outcome: TrainingOutcome) -> bool:
        """Return whether a run shows this fault, by its error or a score below the limit."""
        if outcome.error:
            return any(words in outcome.error for words in self.errors)
        # a score of NaN fails, too
        return not outcome.score >= self.limit


def random_state_kept() -> AbstractContextManager[None]:
    """Restore the random states of the CPU and of every GPU after the block.

    torch.manual_seed sets all of them.
    """
    devices = range(0)
    # CUDA cannot be used in a forked process, where manual_seed leaves GPUs out
    if torch.cuda.is_available() and not torch.cuda._is_in_bad_fork():
        devices = range(torch.cuda.device_count())
    return torch.random.fork_rng(devices=devices)


def run(fault: Fault, fixed: bool) -> TrainingOutcome:
    """Run one form to its end, or to the error that ends it, and restore the random state."""
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
    """Return the URL of a thread, of a distribution with its version, or of a page.

    >>> address("NVIDIA/apex#1052")
    'https://github.com/NVIDIA/apex/issues/1052'
    >>> address("torch 2.13.0")
    'https://pypi.org/project/torch/2.13.0/'
    >>> address("https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling")
    'https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling'

    Raises:
        ValueError: it is none of these.
    """
    if thread.startswith("https://"):
        return thread
    if match := re.fullmatch(r"([\w.-]+/[\w.-]+)#(\d+)", thread):
        return f"https://github.com/{match[1]}/issues/{match[2]}"
    if match := re.fullmatch(r"([\w.-]+) ([\w.+-]+)", thread):
        return f"https://pypi.org/project/{match[1]}/{match[2]}/"
    raise ValueError(
        "thread: expected owner/repository#number, a distribution and its version, or a URL, got "
        f"{thread!r}"
    )
