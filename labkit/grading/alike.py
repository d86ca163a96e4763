"""Which answers of a class are the same program? A training is run once for all who wrote it.

Idea: two programs are alike if they differ in blanks, comments and docstrings at most. The first one is run,
behind walls of its own; the others wait for what came of it.

Invariant: what is asked is the same for a whole class, so programs that are alike get the same answers.
"""

from __future__ import annotations

import ast
import threading
from concurrent.futures import Future

from labkit.grading.given.child import Question
from labkit.grading.given.keeper import Reply
from labkit.grading.supervise import Runner


class Alike:
    """The replies to programs that were run; several threads may ask."""

    def __init__(self, runner: Runner) -> None:
        self._runner, self._replies, self._lock = runner, dict[tuple[str, ...], Future[Reply]](), threading.Lock()

    def reply(self, question: Question) -> Reply:
        """Return what a program answers: run it, unless one like it was run, or is running."""
        key = (question.exercise, *map(plain, question.program))
        with self._lock:
            first = key not in self._replies
            found = self._replies.setdefault(key, Future())
        if first:
            try:
                found.set_result(self._runner.run([question])[question.exercise])
            except BaseException as error:
                found.set_exception(error)
        return found.result()


def plain(source: str) -> str:
    """Return a program without what makes no difference to it.

    >>> plain('def f(x):\\n    "Twice."\\n    return 2*x  # is it?') == plain('def f(x): return 2 * x')
    True
    """
    try:
        tree = ast.parse(source)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
                node.body = node.body[1:] or [ast.Pass()]
        return ast.unparse(tree)
    except Exception:  # it does not run, or is deeper or has longer numbers than can be written anew: it is like itself
        return source
