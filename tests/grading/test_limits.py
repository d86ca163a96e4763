"""Limits of a process that runs learners' code."""

import subprocess
import sys

import pytest


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other limits, or none")
def test_a_limit_counts_from_what_the_process_has_now() -> None:
    program = """
import resource
from labkit.grading.sandbox.limits import address_space, limit_process
limit_process(address_space() + (1 << 28), 60.5, processes=0)
cpu = resource.getrlimit(resource.RLIMIT_CPU)[0]
core = resource.getrlimit(resource.RLIMIT_CORE)[0]
print(len(bytearray(1 << 27)), cpu, core)
try:
    bytearray(1 << 29)
except MemoryError:
    print("no more")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [f"{1 << 27} 60 0", "no more"]
