"""The lab leaves torch, IPython, warnings, signals and random states as it finds them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.untouched.fingerprint import changes, fingerprint
from tests.untouched.scenarios import SCENARIOS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def changed() -> dict[str, list[str]]:
    """Return what each scenario changed for good, in a process of its own."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.untouched.scenarios"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["scenarios"] == len(SCENARIOS)
    return dict(found["changed"])


@pytest.mark.parametrize("scenario", [each.__name__ for each in SCENARIOS])
def test_scenario_leaves_its_process_as_found(changed: dict[str, list[str]], scenario: str) -> None:
    assert changed.get(scenario, []) == []


def test_replaced_function_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint()
    monkeypatch.setattr(torch.nn.Linear, "forward", lambda *_: None)
    assert "torch.nn.modules.linear.Linear.forward" in changes(before)


def test_added_method_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint()
    monkeypatch.setattr(torch.nn.Linear, "added", lambda *_: None, raising=False)
    assert "torch.nn.modules.linear.Linear.added" in changes(before)


def test_drawn_random_number_is_found() -> None:
    before = fingerprint()
    torch.rand(1)
    assert changes(before) == ["torch.random"]
