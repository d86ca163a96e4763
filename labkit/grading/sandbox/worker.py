"""The worker process, which runs a learner's code and writes its answers to a channel.

Invariant: descriptors 0, 1 and 2 lead to the null device, so that printed text is not taken for an
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

# A line of the channel begins with one of these bytes, and continues with JSON.
# The cell has run.
RAN = b"R"
# The answers to a check.
CHECK = b"C"
# The reason why a request has no answers.
NOTE = b"N"
# The end of a request.
END = b"E"
# Time beyond the limits of all exercises after which the system ends a worker.
SPARE_SECONDS = 60


@dataclass(frozen=True)
class Limits:
    """Limits of a worker.

    Attributes:
        seconds: The CPU time for each exercise.
        memory: The bytes beyond those that torch and labkit take.
        processes: The number of processes at one time.
    """

    seconds: float = 20.0
    memory: int = 1 << 30
    processes: int = 64

    @property
    def wall_seconds(self) -> float:
        """The limit of elapsed time for each exercise, since sleeping takes no CPU time."""
        return 3 * self.seconds + 5


@dataclass(frozen=True)
class Request:
    """A learner's program for one exercise, and the calls to make of its function.

    Attributes:
        exercise: The id of the exercise.
        program: The sources to run: statements of other cells, then the exercise's own cell.
        entry: The name of the function that the program defines.
        call: A call of the function as text, such as "my_advance(state, found_inf, config)".
        cases: The arguments of each call as cases[check][case], pickled separately, so that calls
            share no object.
        provides: Names that exist although no cell defines them.
        may_change: The names of the arguments that the answer may change.
        run_by: A function that calls the answer with a case, for example in a training. None if the
            arguments are passed to the answer itself.
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
    """Write the answers to all requests, and end the process.

    Args:
        requests: The requests, in order.
        channel: The file for the lines.
        limits: The limits of the learner's code.
        used: The bytes of address space that this process has before it runs the learner's code.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    # The supervisor measures time. This limit applies if the supervisor was killed.
    seconds = len(requests) * limits.seconds + SPARE_SECONDS
    limit_process(used + limits.memory, seconds, limits.processes)
    for request in requests:
        _answer(request, channel)
        _write(channel, END, request.exercise)
    # This skips threads and exit handlers that the code left.
    os._exit(0)


def _answer(request: Request, channel: BinaryIO) -> None:
    namespace: dict[str, object] = {
        "__name__": "__main__",
        "check": check,
        "hint": hint,
        **request.provides,
    }
    *other_cells, own_cell = request.program
    for i, source in enumerate(other_cells):
        run_cell(source, f"<another cell, {i}>", namespace)
    problem = run_cell(own_cell, f"<exercise {request.exercise}>", namespace)
    _write(channel, RAN, None)
    function = namespace.get(request.entry)
    if function is None:
        _write(channel, NOTE, problem or f"its cell no longer defines {request.call}")
        return
    for cases in request.cases:
        answers = []
        for case in cases:
            arguments = pickle.loads(case)
            answer = answer_case(
                function, request.call, arguments, request.may_change, request.run_by, owned=True
            )
            answers.append(answer)
        _write(channel, CHECK, answers)


def _write(channel: BinaryIO, kind: bytes, content: object) -> None:
    channel.write(kind + json.dumps(content).encode("ascii") + b"\n")
    channel.flush()
