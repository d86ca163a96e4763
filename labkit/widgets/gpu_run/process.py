"""How does a notebook run a command without waiting for it? In a process of its own, read by a thread.

Idea: the thread does nothing but read lines, so it ends when the process does; whoever stops the process stops both.

Invariant: no process outlives its kernel or its `stop`: it leads a group of its own, and the whole group is ended.
"""

from __future__ import annotations

import atexit
import contextlib
import subprocess
import threading
from collections.abc import Callable, Sequence

from labkit.records import system


class BackgroundProcess:
    """A command that runs in the background.

    Args:
        command: its words.
        on_line: called with every line that it prints, in the thread.
        on_end: called once with its exit status, in the thread; nothing is called after it.

    Raises:
        OSError: the command cannot be started.
    """

    def __init__(self, command: Sequence[str], on_line: Callable[[str], None], on_end: Callable[[int], None]) -> None:
        self._process = system.start_group(
            command,
            stdin=subprocess.PIPE,  # which ends with this process, however that one ends
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            bufsize=1,
            encoding="utf-8",
            errors="replace",
        )
        atexit.register(self.stop)
        self._thread = threading.Thread(target=self._listen, args=(on_line, on_end), daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        """Say whether the process or the thread that hears it is there."""
        return self._thread.is_alive()

    def tell(self, line: str) -> None:
        """Write a line to the command's standard input; one that has ended hears nothing."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def end_input(self) -> None:
        """Close the command's standard input, by which one that reads it hears that it shall end."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def stop(self) -> None:
        """End the process and those it started; files are written whole, so what was kept by then stays."""
        if self._process.poll() is None:
            system.end_group(self._process)

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until the process and the thread have ended."""
        self._thread.join(timeout_s)

    def _listen(self, on_line: Callable[[str], None], on_end: Callable[[int], None]) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                on_line(line.rstrip("\n"))
        status = self._process.wait()
        atexit.unregister(self.stop)
        on_end(status)
