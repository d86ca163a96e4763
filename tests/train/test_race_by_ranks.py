"""Is a race under torchrun the same race? Two real ranks share the runs, and go on where they were ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.train import load
from tests.slowness import slowness

ROOT = Path(__file__).parents[2]


def race(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run `labkit race` on two ranks, three runs of the digits."""
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "labkit")
    words = "race digits --recipes FP32 --seeds 0 1 2 --device cpu --folder".split()
    environment, limit = {**os.environ, "PYTHONPATH": str(ROOT)}, 200 * slowness()
    command = [*torchrun, *words, str(folder)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit, check=False)


@pytest.mark.slow
def test_two_ranks_race_and_a_race_goes_on_where_it_was(tmp_path: Path) -> None:
    first = race(tmp_path)
    assert first.returncode == 0, first.stderr
    assert first.stdout.count("seed ") == 3  # one rank speaks
    paths = sorted(tmp_path.glob("digits/*.json"))
    assert [path.stem for path in paths] == ["fp32-seed0", "fp32-seed1", "fp32-seed2"]
    before = {path: (path.stat().st_mtime_ns, load(path)) for path in paths}
    paths[1].unlink()

    again = race(tmp_path)
    assert again.returncode == 0, again.stderr
    assert [path for path in paths if path.stat().st_mtime_ns != before[path][0]] == [paths[1]]
    assert [s.loss for s in load(paths[1]).steps] == [s.loss for s in before[paths[1]][1].steps]
