"""A process of node that runs functions of the widgets' modules."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ENGINE = Path(__file__).with_name("engine.mjs")


def node() -> str | None:
    """Return the path of node; None where it is not installed."""
    return shutil.which("node")


class NodeError(Exception):
    """An error that JavaScript threw, with its stack."""


class NodeEngine:
    """Node with some scripts loaded, in one scope as in a page."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [node() or "node", str(ENGINE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    def load(self, script: str) -> None:
        """Run a script; what it declares stays."""
        self._ask({"script": script})

    def call(self, function: str, arguments: list[Any]) -> Any:
        """Return function(...arguments), both ways as JSON."""
        return self._ask({"function": function, "arguments": arguments})

    def _ask(self, what: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        # A process that has ended is noticed below, where it answers nothing.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(what) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise NodeError(f"node ended with status {self._process.wait()} before it answered")
        reply = json.loads(line)
        if "error" in reply:
            raise NodeError(reply["error"])
        return reply["result"]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
