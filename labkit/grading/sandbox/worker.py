"""The worker process, which runs a learner's code and writes its answers to a channel.

Invariant: descriptors 0, 1 and 2 lead to the null device, so that nothing printed is taken for an
answer.
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

import torch

from labkit.grading.answer_log import hint
from labkit.grading.judge import check
from labkit.grading.sandbox.answer import answer_case
from labkit.grading.sandbox.cell import run_cell
from labkit.grading.sandbox.limits import limit_process

# First byte of a line: the cell has run, the answers to a check, why there are none, the end of a
# request.
RAN = b"R"
CHECK = b"C"
NOTE = b"N"
END = b"E"


@dataclass(frozen=True)
class Limits:
    """Limits of a worker.

    Attributes:
        seconds: Of CPU time, for each exercise.
        memory: Bytes beyond what torch and labkit take.
        processes: At one time.
    """

    seconds: float = 20.0
    memory: int = 1 << 30
    processes: int = 64

    @property
    def wall_seconds(self) -> float:
        """The limit of elapsed time for each exercise: sleeping takes no CPU time."""
        return 3 * self.seconds + 5


@dataclass(frozen=True)
class Request:
    """A learner's program for one exercise, and the calls to make of its function.

    Attributes:
        program: Sources to run: statements of other cells first, the exercise's own cell last.
        call: How the function is called: "my_advance(state, found_inf, config)".
        cases: Cases[check][case]: the arguments of each call, pickled separately, so that calls
            share no object.
        provides: Names that exist although no cell defines them.
        may_change: Names of the arguments that the answer may change.
        run_by: What calls the function, where the cases do not.
    """

    exercise: str
    program: Sequence[str]
    entry: str
    call: str
    cases: Sequence[Sequence[bytes]]
    provides: Mapping[str, object] = field(default_factory=dict)
    may_change: Sequence[str] = ()
    run_by: Callable[..., object] | None = None


def tensor_of(content: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Return the tensor with these bytes."""
    return torch.frombuffer(bytearray(content), dtype=dtype).reshape(shape)


def answer_all(requests: Sequence[Request], channel: BinaryIO, limits: Limits, used: int) -> None:
    """Answer all requests: one line for each check, and one that ends the request.

    It does not return.

    Args:
        requests: The exercises to answer, in order.
        channel: Where the lines are written.
        limits: The limits of the learner's code.
        used: Bytes of address space that this process had before the learner's code.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    # The supervisor measures time; this limit applies if the supervisor was killed.
    limit_process(
        used + limits.memory, sum(limits.seconds for _ in requests) + 60, limits.processes
    )
    for request in requests:
        _answer(request, channel)
        _write(channel, END, request.exercise)
    os._exit(0)  # skips threads and exit handlers that the code left


def _answer(request: Request, channel: BinaryIO) -> None:
    namespace: dict[str, object] = {
        "__name__": "__main__",
        "check": check,
        "hint": hint,
        **request.provides,
    }
    *definitions, own = request.program
    for i, source in enumerate(definitions):
        run_cell(source, f"<another cell, {i}>", namespace)
    problem = run_cell(own, f"<exercise {request.exercise}>", namespace)
    _write(channel, RAN, None)
    function = namespace.get(request.entry)
    if function is None:
        _write(channel, NOTE, problem or f"its cell no longer defines {request.call}")
        return
    rules = (request.may_change, request.run_by)
    for cases in request.cases:
        answers = [
            answer_case(function, request.call, pickle.loads(case), *rules, owned=True)
            for case in cases
        ]
        _write(channel, CHECK, answers)


def _write(channel: BinaryIO, kind: bytes, content: object) -> None:
    channel.write(kind + json.dumps(content).encode("ascii") + b"\n")
    channel.flush()
