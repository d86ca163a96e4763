"""Execution of one cell of a notebook, with the error that stopped it as a sentence."""

from __future__ import annotations

import ast
import asyncio
import inspect
import linecache
from collections.abc import Coroutine

from labkit.grading.sandbox.answer import last_line, where


def run_cell(source: str, name: str, namespace: dict[str, object]) -> str:
    """Run a cell in a namespace.

    Args:
        source: Its Python; it may wait for something at its top level, as in a notebook.
        name: What tracebacks call it: "<exercise numbers.ulp>".
        namespace: The names that it finds, and to which it adds its own.

    Returns:
        The error that stopped it, with its line, or "".
    """
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    try:
        # A notebook, too, allows `await` outside of functions. The cell must not inherit this
        # module's `from __future__ import annotations`: its annotations would be texts.
        code = compile(
            source, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True
        )
        result = eval(code, namespace)
        if inspect.iscoroutine(result):
            _finish(result)
    except BaseException as error:
        # Also sys.exit and KeyboardInterrupt.
        line = where(error, name)
        return f"its cell stopped with {last_line(error)}" + (f" ({line})" if line else "")
    return ""


def _finish(waiting: Coroutine[object, object, object]) -> None:
    """Run a cell that waits for something; in a page, whose Python cannot wait, refuse it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(waiting)
        return
    waiting.close()
    raise RuntimeError(
        "expected a cell that ends at once, got `await`, for which Python in a page cannot wait. "
        "Leave it out, or solve the exercise in a notebook."
    )
