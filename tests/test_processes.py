"""Processes that the lab starts: the end of a group is the end of all in it."""

import subprocess
import sys

from labkit.processes import kill_group, start_group
from tests.slowness import slowness


def test_the_end_of_a_group_is_the_end_of_all_in_it() -> None:
    """The pipe is closed only when the last that holds it has ended: here a process that the command started."""
    waits = "print('here', flush=True); import time; time.sleep(600)"
    starts = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {waits!r}])"
    leader = start_group([sys.executable, "-c", starts], stdout=subprocess.PIPE, text=True)
    assert leader.stdout.readline() == "here\n"
    kill_group(leader)
    assert leader.communicate(timeout=60 * slowness())[0] == ""
    assert leader.returncode != 0
    kill_group(leader)  # where nothing is left, nothing happens
