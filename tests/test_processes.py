"""Processes that the lab starts: their output, and the end of all their children."""

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import pytest

from labkit.processes import LineProcess, kill_group, start_group
from tests.slowness import slowness


def limit() -> float:
    """Return a time limit that only a hang reaches, in seconds."""
    return 60 * slowness()


def test_kill_group_ends_the_children_of_the_leader() -> None:
    wait = "print('here', flush=True); import time; time.sleep(600)"
    start = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {wait!r}])"
    leader = start_group([sys.executable, "-c", start], stdout=subprocess.PIPE, text=True)
    assert leader.stdout.readline() == "here\n"
    kill_group(leader)
    # The pipe is closed when the child, which has it too, has ended.
    assert leader.communicate(timeout=limit())[0] == ""
    assert leader.returncode != 0
    # A second call does nothing.
    kill_group(leader)


# --- LineProcess ---


# Windows would end lines with two characters.
PLAIN_LINES = """
import sys
for stream in (sys.stdout, sys.stderr):
    stream.reconfigure(newline="\\n")
"""


def program(text: str) -> list[str]:
    """Return the command that runs Python code without buffering its output."""
    return [sys.executable, "-u", "-c", PLAIN_LINES + text]


ECHO = """
import sys
for line in sys.stdin:
    print("heard", line.strip())
print("the end", file=sys.stderr)
raise SystemExit(3)
"""


@pytest.fixture
def echo() -> Iterator[LineProcess]:
    """A process of ECHO, which ends with the test."""
    process = LineProcess(program(ECHO))
    yield process
    process.end(limit())


def test_lines_are_answered(echo: LineProcess) -> None:
    for word in ("one", "two"):
        echo.tell(word)
        assert echo.read_line(limit()) == f"heard {word}\n".encode()


def test_standard_error_is_part_of_the_lines(echo: LineProcess) -> None:
    echo.end_input()
    assert echo.read_line(limit()) == b"the end\n"


def test_the_end_is_an_empty_line_in_each_further_call(echo: LineProcess) -> None:
    echo.end_input()
    echo.read_line(limit())
    assert [echo.read_line(limit()) for _ in range(2)] == [b"", b""]


def test_a_process_ends_with_its_status(echo: LineProcess) -> None:
    echo.end_input()
    assert echo.end(limit()) == 3
    echo.wait(limit())
    assert not echo.running


def test_a_line_after_the_end_of_the_input_is_refused() -> None:
    process = LineProcess(program(ECHO))
    process.end_input()
    with pytest.raises(ValueError, match="closed file"):
        process.tell("too late")
    process.end(limit())


def test_functions_get_the_lines_and_then_the_status() -> None:
    calls: list[bytes | int] = []
    process = LineProcess(
        program("print('a'); print('b', end=''); raise SystemExit(7)"),
        on_line=calls.append,
        on_end=calls.append,
    )
    process.wait(limit())
    assert calls == [b"a\n", b"b", 7]


def test_a_line_to_an_ended_process_is_ignored() -> None:
    process = LineProcess(program("pass"), on_line=print)
    process.wait(limit())
    process.tell("nobody reads this")


def test_standard_error_may_go_to_a_file() -> None:
    with tempfile.TemporaryFile() as errors:
        process = LineProcess(
            program("import sys; print('said', file=sys.stderr); print('answered')"), stderr=errors
        )
        assert process.read_line(limit()) == b"answered\n"
        assert process.end(limit()) == 0
        errors.seek(0)
        assert errors.read() == b"said\n"


def test_a_line_longer_than_the_limit_arrives_in_pieces() -> None:
    process = LineProcess(program("print('x' * 10)"), longest_line=4)
    pieces = [process.read_line(limit()) for _ in range(4)]
    assert pieces == [b"xxxx", b"xxxx", b"xx\n", b""]


def test_a_process_that_answers_nothing_is_still_running() -> None:
    process = LineProcess(program("input()"))
    assert process.read_line(0.0) is None
    # It was killed, so it has no status of its own.
    assert process.end() is None
    assert process.read_line(limit()) == b""


def test_a_process_that_closed_its_output_is_killed() -> None:
    process = LineProcess(program("import os, time; os.close(1); os.close(2); time.sleep(600)"))
    assert process.read_line(limit()) == b""
    assert process.end() is None
    assert process._process.returncode != 0


STARTS_ANOTHER = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-u", "-c", "print('here'); import time; time.sleep(600)"])
time.sleep(600)
"""


def test_end_kills_the_children_of_a_process() -> None:
    process = LineProcess(program(STARTS_ANOTHER))
    assert (process.read_line(limit()) or b"").rstrip() == b"here"
    assert process.end() is None
    # The child has the pipe, so the lines end with it.
    assert process.read_line(limit()) == b""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals")
def test_status_after_a_signal_is_its_number() -> None:
    process = LineProcess(program("import os; os.abort()"))
    assert process.read_line(limit()) == b""
    assert process.end(limit()) == -signal.SIGABRT


LEAVES_ANOTHER = """
import subprocess, sys
subprocess.Popen([sys.executable, "-u", "-c", "print('here'); import time; time.sleep(600)"])
"""


def test_children_of_an_ended_process_are_killed() -> None:
    statuses: list[int] = []
    process = LineProcess(program(LEAVES_ANOTHER), on_end=statuses.append)
    assert (process.read_line(limit()) or b"").rstrip() == b"here"
    process._process.wait(limit())
    # The child has the pipe, so that the lines have not ended.
    assert process.running
    process.kill()
    process.wait(limit())
    assert not process.running
    assert statuses == [0]


EXITS = """
import sys
from labkit.processes import LineProcess
waits = "print('here'); import time; time.sleep(600)"
process = LineProcess([sys.executable, "-u", "-c", waits], stderr=sys.stderr)
process.read_line(600)
print("leaving")
"""


def test_a_process_is_killed_when_its_starter_exits() -> None:
    """Its standard error is the starter's pipe, which is closed when both have ended."""
    done = subprocess.run(
        program(EXITS), capture_output=True, timeout=limit(), text=True, check=True
    )
    assert done.stdout == "leaving\n"
    assert done.stderr == ""


def test_a_command_that_cannot_be_started_is_an_error() -> None:
    with pytest.raises(OSError, match="no such program"):
        LineProcess(["no such program"])
