"""Limits of a process that runs learners' code."""

import subprocess
import sys

import pytest


def printed_by(program: str) -> list[str]:
    """Return the lines that a program prints in a process of its own."""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other limits, or none")
def test_memory_is_limited_beyond_what_the_process_has_now() -> None:
    # What the process has is more than what it may still get.
    program = """
from labkit.grading.sandbox.limits import address_space, limit_process
present = bytearray(1 << 29)
limit_process(address_space() + (1 << 28), 60.5, processes=0)
print(len(bytearray(1 << 27)))
try:
    bytearray(1 << 29)
except MemoryError:
    print("no more")
"""
    assert printed_by(program) == [str(1 << 27), "no more"]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other limits, or none")
def test_cpu_time_and_core_dumps_are_limited() -> None:
    program = """
import resource
from labkit.grading.sandbox.limits import address_space, limit_process
limit_process(address_space() + (1 << 28), 60.5, processes=0)
print(*(resource.getrlimit(limit)[0] for limit in (resource.RLIMIT_CPU, resource.RLIMIT_CORE)))
"""
    assert printed_by(program) == ["60 0"]
