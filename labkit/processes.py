"""Processes that this process starts: their start, their output in lines, and their end.

Idea: a background program leads its own process group, so that all processes that it starts can be
killed with it. `LineProcess` reads the output of a program in a thread, line by line.

Source: setsid(2), killpg(3), prctl(2); Windows: taskkill.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any

# PR_SET_PDEATHSIG in linux/prctl.h
PARENT_DEATH_SIGNAL = 1


def start_group(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start a command as the leader of a new process group.

    Args:
        command: the program and its arguments.
        options: further arguments of subprocess.Popen.

    Raises:
        OSError: the command cannot be started.
    """
    return subprocess.Popen(list(command), start_new_session=True, **options)


def signal_name(number: int) -> str:
    """Return the name of a signal, or "signal 40" if it has none, as most real-time signals.

    >>> signal_name(9), signal_name(40)
    ('SIGKILL', 'signal 40')
    """
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def kill_group(leader: subprocess.Popen[Any]) -> None:
    """Kill all processes of a group that `start_group` started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(leader.pid, signal.SIGKILL)
        else:
            # Windows
            command = ["taskkill", "/F", "/T", "/PID", str(leader.pid)]
            subprocess.run(command, capture_output=True, check=False)


class LineProcess:
    """A background program whose output is read line by line.

    It leads a process group, and a thread reads its output while it runs.

    A line is bytes, as printed, with its newline. Only the last line may lack the newline: it was
    cut off. The program is killed when this process exits. If this process is killed, the program's
    standard input ends.

    Args:
        command: the program and its arguments.
        on_line: called with each line, in the thread; None keeps the lines for `read_line`.
        on_end: called once with the exit status, in the thread, after the last line.
        stdin: a file as its standard input; subprocess.PIPE lets `tell` write lines to it.
        stderr: a file for its standard error; subprocess.STDOUT adds it to the lines.
        longest_line: size in bytes; a longer line arrives in pieces. None for no limit.
        cwd: its working folder; None for that of this process.
        env: its environment; None for that of this process.

    Raises:
        OSError: the command cannot be started.

    >>> process = LineProcess([sys.executable, "-c", "print(int(input()) + 1)"])
    >>> process.tell("41")
    >>> process.read_line(60).split(), process.read_line(60), process.end(60)
    ([b'42'], b'', 0)
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        on_line: Callable[[bytes], object] | None = None,
        on_end: Callable[[int], object] = lambda status: None,
        stdin: IO[bytes] | int = subprocess.PIPE,
        stderr: IO[bytes] | int = subprocess.STDOUT,
        longest_line: int | None = None,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._on_line = self._lines.put if on_line is None else on_line
        self._on_end = on_end
        self._longest_line = -1 if longest_line is None else longest_line
        self._process: subprocess.Popen[bytes] = start_group(
            command, stdin=stdin, stdout=subprocess.PIPE, stderr=stderr, cwd=cwd, env=env
        )
        atexit.register(self.kill)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether the program, or a process that it started, can still print."""
        return self._thread.is_alive()

    def tell(self, line: str) -> None:
        """Write a line to its standard input; after the program has ended, do nothing.

        Raises:
            ValueError: `end_input` has closed the standard input.
        """
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()

    def end_input(self) -> None:
        """Close its standard input; a program that reads lines to the end then ends by itself."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def read_line(self, seconds: float) -> bytes | None:
        """Return the next line, b"" after the last one, or None if none arrives in this time."""
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            return None
        # put the end back, for further calls
        if not line:
            self._lines.put(line)
        return line

    def wait(self, seconds: float | None = None) -> None:
        """Wait for its end, at most this long; None for no limit."""
        self._thread.join(seconds)

    def kill(self) -> None:
        """Kill the program and all processes that it started, without waiting for their end."""
        if self.running:
            kill_group(self._process)

    def end(self, seconds: float = 0.0) -> int | None:
        """Wait for its end, at most this long; then kill it and all processes that it started.

        Returns:
            Its exit status, or None if it was still running after this time.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        status = self._process.poll()
        kill_group(self._process)
        self._process.wait()
        return status

    def _listen(self) -> None:
        """Read the output until its end; this function runs in the thread."""
        assert self._process.stdout is not None
        # Windows raises an OSError when the writer of a pipe is killed
        with self._process.stdout as output, contextlib.suppress(OSError):
            while line := output.readline(self._longest_line):
                self._on_line(line)
        self._lines.put(b"")
        status = self._process.wait()
        atexit.unregister(self.kill)
        self._on_end(status)


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent ends; on Linux only."""
    if sys.platform == "linux":
        prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)


def prctl(option: int, value: int) -> int:
    """Set an option of this process that takes one number.

    Returns:
        0, or -1 if Linux refuses it.
    """
    return int(_library().prctl(option, ctypes.c_ulong(value), 0, 0, 0))


@cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
