"""What does the learner's code answer, when it is run where it can do no harm to the marks?

This is the program of the grading process (`python -m labkit.grading.child`). It reads requests, one line of JSON
each, from standard input, and writes one line of JSON per request: the answers of the learner's function to every
case, as labkit.grading.wire writes them. It knows no points, and it decides nothing: what is right is decided by the
process that started it, which never runs a learner's code.

Its standard output is put aside under another descriptor before any of the learner's code runs, and descriptors 0, 1
and 2 then lead nowhere, so prints of any size go nowhere and cannot be taken for answers.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import linecache
import os
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

import labkit
from labkit.grading.answer import last_line, where
from labkit.grading.exercises import EXERCISES
from labkit.grading.judge import Paper, answers_of, paper_of
from labkit.records import system

READY = "ready"


@dataclass(frozen=True)
class Question:
    """A request, with its calls already made, before any of the learner's code has run."""

    paper: Paper
    program: list[str]


def main() -> None:
    """Answer the requests on standard input: one JSON object per line, see labkit.grading.supervise."""
    requests = [json.loads(line) for line in sys.stdin]
    torch.set_num_threads(1)
    questions = [_question(request) for request in requests]
    channel = os.fdopen(os.dup(1), "w", encoding="ascii")
    channel.write(READY + "\n")
    channel.flush()
    _redirect_standard_streams()
    _unload_grading()
    system.limit_this_process(
        memory=max(request["memory"] for request in requests),
        # time is kept by the process that started this one; this limit is for the day when that one was killed itself
        seconds=sum(request["seconds"] for request in requests) + 60,
    )
    for question in questions:
        channel.write(json.dumps(answer(question)) + "\n")
        channel.flush()
    os._exit(0)  # threads and exit handlers that a learner left behind do not keep us


def _question(request: dict[str, Any]) -> Question:
    return Question(paper_of(EXERCISES[request["exercise"]], request["seed"]), request["program"])


def answer(question: Question) -> dict[str, Any]:
    """Return {"exercise": id, "note": what prevented the first call, or "", "answers": answers[check][case]}."""
    exercise = question.paper.exercise
    namespace: dict[str, object] = {"__name__": "__main__", "check": _no_check, **exercise.provides}
    *definitions, own = question.program
    for i, source in enumerate(definitions):
        _run(source, f"<another cell, {i}>", namespace)
    problem = _run(own, f"<exercise {exercise.id}>", namespace)
    function = namespace.get(exercise.entry)
    if function is None:
        why = problem or f"its cell no longer defines {exercise.call}"
        return {"exercise": exercise.id, "note": why, "answers": []}
    return {"exercise": exercise.id, "note": "", "answers": answers_of(question.paper, function, exercise.withheld)}


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


def _unload_grading() -> None:
    """Leave of labkit.grading nothing to import but a `check` that does nothing, and of this program nothing at all.

    References and known mistakes are no longer an import away; one who searches the interpreter still finds them.
    """
    for name in [name for name in sys.modules if name.split(".")[:2] == ["labkit", "grading"]]:
        del sys.modules[name]
    stand_in = ModuleType("labkit.grading", "At grading, `check` does nothing: the grade comes later.")
    stand_in.__dict__["check"] = _no_check
    sys.modules["labkit.grading"] = labkit.__dict__["grading"] = stand_in
    sys.modules["__main__"] = ModuleType("__main__")


def _no_check(*_: object) -> None:
    return None


if __name__ == "__main__":
    main()
