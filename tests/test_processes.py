"""Processes that the lab starts: their output, and the end of all their children."""

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import pytest

from labkit.processes import LineProcess, kill_group, start_group
from tests.slowness import slowness


def test_the_end_of_a_group_is_the_end_of_all_in_it() -> None:
    """The command starts a process, which holds the pipe: it closes when both have ended."""
    waits = "print('here', flush=True); import time; time.sleep(600)"
    starts = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {waits!r}])"
    leader = start_group([sys.executable, "-c", starts], stdout=subprocess.PIPE, text=True)
    assert leader.stdout.readline() == "here\n"
    kill_group(leader)
    assert leader.communicate(timeout=60 * slowness())[0] == ""
    assert leader.returncode != 0
    # A group that has ended may be ended again.
    kill_group(leader)


# --- a process that answers lines ---


def program(text: str) -> list[str]:
    """Return the command of a Python program, whose output is not buffered."""
    return [sys.executable, "-u", "-c", text]


def limit() -> float:
    """A limit against hangs, in seconds."""
    return 60 * slowness()


ECHO = """
import sys
for line in sys.stdin:
    print("heard", line.strip())
print("the end", file=sys.stderr)
raise SystemExit(3)
"""


def test_lines_are_answered_until_the_input_ends() -> None:
    process = LineProcess(program(ECHO))
    for word in ("one", "two"):
        process.tell(word)
        assert process.read_line(limit()) == f"heard {word}\n".encode()
    process.end_input()
    assert process.end(limit()) == 3


@pytest.fixture
def without_input() -> Iterator[LineProcess]:
    """A process of ECHO whose input is closed."""
    process = LineProcess(program(ECHO))
    process.end_input()
    yield process
    process.kill()


def test_standard_error_is_among_the_lines(without_input: LineProcess) -> None:
    assert without_input.read_line(limit()) == b"the end\n"


def test_after_the_last_line_reading_returns_nothing(without_input: LineProcess) -> None:
    without_input.read_line(limit())
    assert without_input.read_line(limit()) == b""
    assert without_input.read_line(limit()) == b""


def test_a_process_that_has_ended_is_not_running(without_input: LineProcess) -> None:
    without_input.wait(limit())
    assert not without_input.running


def test_a_line_after_the_end_of_the_input_is_refused(without_input: LineProcess) -> None:
    with pytest.raises(ValueError, match="closed file"):
        without_input.tell("too late")


def test_lines_and_the_status_are_handed_to_functions_in_order() -> None:
    events: list[bytes | int] = []
    process = LineProcess(
        program("print('a'); print('b', end=''); raise SystemExit(7)"),
        on_line=events.append,
        on_end=events.append,
    )
    process.wait(limit())
    assert events == [b"a\n", b"b", 7]


def test_a_line_for_a_process_that_has_ended_is_ignored() -> None:
    process = LineProcess(program("pass"))
    process.wait(limit())
    process.tell("nobody reads this")


def test_standard_error_goes_to_a_file_that_is_passed() -> None:
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


def test_no_line_within_the_limit_is_none() -> None:
    process = LineProcess(program("input()"))
    try:
        assert process.read_line(0.0) is None
    finally:
        process.kill()


def test_a_process_that_must_be_killed_has_no_status() -> None:
    process = LineProcess(program("input()"))
    assert process.end() is None
    assert process.read_line(limit()) == b""


def test_a_process_that_closed_its_outputs_is_killed() -> None:
    process = LineProcess(program("import os, time; os.close(1); os.close(2); time.sleep(600)"))
    assert process.read_line(limit()) == b""
    assert process.end() is None


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
    """The child holds the pipe, so that the process counts as running until the child has ended."""
    statuses: list[int] = []
    process = LineProcess(program(LEAVES_ANOTHER), on_end=statuses.append)
    assert process.read_line(limit()) == b"here\n"
    process._process.wait(limit())
    assert process.running
    process.kill()
    process.wait(limit())
    assert not process.running
    assert statuses == [0]
    # A process that has ended may be killed again.
    process.kill()


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
