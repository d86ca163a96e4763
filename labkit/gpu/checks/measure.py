"""The items of a check, run one after the other, and what a training step costs.

What an item cannot do is in the check's answers with the reason. Of a step are measured the seconds, all ways in turn,
and the memory at its peak.

Invariant: after each item the answers are whole, so whoever keeps them keeps all that was found by then.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from labkit.amp import Engine
from labkit.records.turns import host_seconds, take_turns

Answers = dict[str, Any]
TIME_UP = "the time was up"


def each(items: Iterable[tuple[str, Callable[[], object]]], answers: Answers, seconds: float) -> Iterator[Answers]:
    """Run (name, function) pairs, which fill `answers`; yield the answers after each.

    An item that raises, or before which the seconds were over, is named in answers["left_out"] with its reason.

    >>> found = {}
    >>> for _ in each([("a", lambda: found.update(a=1)), ("b", lambda: 1 / 0)], found, 60.0): pass
    >>> found
    {'left_out': {'b': 'ZeroDivisionError: division by zero'}, 'a': 1}
    """
    end = time.monotonic() + seconds
    left_out = answers.setdefault("left_out", {})
    for name, run in items:
        if time.monotonic() > end:
            left_out[name] = TIME_UP
        else:
            try:
                run()
            except Exception as error:
                left_out[name] = reason(error)
            release_memory()
        yield answers


def complete(answers: Iterable[Answers]) -> Answers:
    """Return the last of a check's answers, which is all of them."""
    *_, last = answers
    return last


def reason(error: Exception) -> str:
    """Return what an exception says, in one line with its type.

    >>> reason(RuntimeError("expected scalar type Half but found Float"))
    'RuntimeError: expected scalar type Half but found Float'
    """
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"[:200]


def release_memory() -> None:
    """Give the memory of what an item left, cycles included, back to the device."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def left_out_lines(answers: Answers) -> list[str]:
    """Return a line for each item that a check left out."""
    return [f"{name}: LEFT OUT, {why}" for name, why in answers.get("left_out", {}).items()]


Step = Callable[[], object]


def engine_step(engine: Engine, loss: Callable[[], Tensor], *, clip: bool = False) -> Step:
    """Return a training step of an engine, by a loss that is computed in its region."""

    def step() -> None:
        engine.zero_grad()
        with engine.forward():
            computed = loss()
        engine.backward(computed)
        if clip:
            engine.clip(1.0)
        engine.step()

    return step


def torch_step(optimizer: torch.optim.Optimizer, region: Callable[[], Any], scaler: Any, loss: Step) -> Step:
    """Return a training step as it is written for torch.amp."""

    def step() -> None:
        optimizer.zero_grad()
        with region():
            computed: Any = loss()
        scaler.scale(computed).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def median_seconds(steps: Mapping[str, Step], device: str, count: int, rounds: int) -> dict[str, float]:
    """Return way -> seconds of a step, the median over the rounds; a turn has `count` steps, a first one warms up."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    ways = {way: partial(host_seconds, step, count, wait) for way, step in steps.items()}
    return {way: statistics.median(seconds[1:]) for way, seconds in take_turns(ways, rounds + 1).items()}


def prepared(make: Callable[[], Step], device: str) -> tuple[Step, float | None]:
    """Return a step that has run four times, and the MiB that the fourth held at its peak; None off a GPU.

    The MiB are those of this step alone, optimizer included.
    """
    gc.collect()  # what earlier steps left in cycles is freed now, not while this one is measured
    others = torch.cuda.memory_allocated() if device == "cuda" else 0
    step = make()
    for _ in range(3):  # an optimizer's state is made, and a graph is traced
        step()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    step()
    return step, (torch.cuda.max_memory_allocated() - others) / 2**20 if device == "cuda" else None


def all_prepared(
    ways: Mapping[str, Callable[[], Step]], device: str, left_out: Callable[[str, str], object]
) -> tuple[dict[str, Step], dict[str, float | None]]:
    """Return the steps of all ways, and their MiB; a way that raises is left out, with its reason."""
    steps: dict[str, Step] = {}
    memory: dict[str, float | None] = {}
    for way, make in ways.items():
        try:
            steps[way], memory[way] = prepared(make, device)
        except Exception as error:
            left_out(way, reason(error))
    return steps, memory
