"""What does the learner's code answer, when it is run where it can do no harm to the marks?

Idea: a question is a learner's program, and the calls to make of the function that it defines. `answer_all` runs the
programs one after another and writes every answer down, as labkit.grading.given.wire does, on a channel of lines: what
is right is decided elsewhere, by a process that runs no learner's code. No seed, no reference, no known mistake and no
points are in this process, nor in the one it was forked from.

Invariant: descriptors 0, 1 and 2 lead nowhere, so prints of any size go nowhere and cannot be taken for answers.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import linecache
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

import torch

from labkit.grading.given.answer import ask, last_line, where
from labkit.records import system

# How lines begin: the cell has run, the answers to a check, why there are none, the end of the question.
RAN, CHECK, NOTE, END = b"R", b"C", b"N", b"E"


@dataclass(frozen=True)
class Limits:
    """seconds: of the CPU, per exercise; memory: bytes beyond what torch and labkit take; processes: at one time."""

    seconds: float = 20.0
    memory: int = 1 << 30
    processes: int = 64

    @property
    def wall_seconds(self) -> float:
        """Return the seconds on the wall after which an exercise ends: sleeping takes no CPU time."""
        return 3 * self.seconds + 5


@dataclass(frozen=True)
class Question:
    """A learner's code, and what it is asked.

    program    the sources to run: what the exercise's cell needs of others, then its own
    call       how the function is called: "my_advance(state, found_inf, config)"
    asked      the arguments of each call, asked[check][case], each pickled by itself: none sees what another changed
    provides   names that exist although no cell defines them
    withheld   functions and types that the answer may not be, nor name, nor call
    may_change names of the arguments that the answer may change
    run_by     what calls the function, where the cases do not
    """

    exercise: str
    program: Sequence[str]
    entry: str
    call: str
    asked: Sequence[Sequence[bytes]]
    provides: Mapping[str, object] = field(default_factory=dict)
    withheld: Sequence[object] = ()
    may_change: Sequence[str] = ()
    run_by: Callable[..., object] | None = None


def tensor_of(content: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Return the tensor of these bytes."""
    return torch.frombuffer(bytearray(content), dtype=dtype).reshape(shape)


def answer_all(questions: Sequence[Question], channel: BinaryIO, limits: Limits, used: int) -> None:
    """Answer one question after another; a line per check, and one that ends each question. Does not return.

    used   bytes of its address space that this process had before the learner's code
    """
    _redirect_standard_streams()
    # time is kept by labkit.grading.given.keeper; this limit is for the day when that one was killed
    system.limit_process(used + limits.memory, sum(limits.seconds for _ in questions) + 60, limits.processes)
    for question in questions:
        _answer(question, channel)
        _write(channel, END, question.exercise)
    os._exit(0)  # threads and exit handlers that a learner left behind do not keep us


def _answer(question: Question, channel: BinaryIO) -> None:
    namespace: dict[str, object] = {"__name__": "__main__", "check": no_check, "hint": no_check, **question.provides}
    *definitions, own = question.program
    for i, source in enumerate(definitions):
        _run(source, f"<another cell, {i}>", namespace)
    problem = _run(own, f"<exercise {question.exercise}>", namespace)
    _write(channel, RAN, None)
    function = namespace.get(question.entry)
    if function is None:
        _write(channel, NOTE, problem or f"its cell no longer defines {question.call}")
        return
    rules = (question.withheld, question.may_change, question.run_by)
    for cases in question.asked:
        answers = [ask(function, question.call, pickle.loads(case), *rules, owned=True) for case in cases]
        _write(channel, CHECK, answers)


def _write(channel: BinaryIO, kind: bytes, content: object) -> None:
    channel.write(kind + json.dumps(content).encode("ascii") + b"\n")
    channel.flush()


def _run(source: str, name: str, namespace: dict[str, object]) -> str:
    """Run a cell; return what stopped it, or ""."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    try:
        code = compile(source, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)  # as a notebook does
        if inspect.iscoroutine(waiting := eval(code, namespace)):
            asyncio.run(waiting)
    except BaseException as error:  # also sys.exit and KeyboardInterrupt: the process goes on
        at = where(error, name)
        return f"its cell stopped with {last_line(error)}" + (f" ({at})" if at else "")
    return ""


def _redirect_standard_streams() -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)


def no_check(*_: object) -> None:
    """Stand in for `check`: at grading it does nothing, for the grade comes later."""
