"""Parts of `labkit gpu` of which one item fails: it is named, and the others stay.

What fails is planted: a network, a task, a case or a run that raises.
"""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from labkit import gpu
from labkit.bench import GemmCase, device_report, from_json, timing
from labkit.formats import FP32
from labkit.gpu import checks, parts
from labkit.gpu.checks import amp, measure, tasks
from labkit.gpu.checks.measure import complete
from labkit.train import TASKS

PLANTED = "RuntimeError: expected a healthy item, got a planted fault"


def planted(*_: Any, **__: Any) -> Any:
    raise RuntimeError(PLANTED.partition(": ")[2])


def order(folder: Path, seconds: float = 60.0) -> gpu.Order:
    return gpu.Order(device_report(), folder, time.monotonic() + seconds, quick=True)


def parts_with_planted_failures() -> dict[str, Any]:
    """Run two checks on the card, each with a planted failure; all run their items by one function, `measure.each`."""
    kept: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(amp.NETWORKS, "CNN", planted)
        small = {"width": 32, "batch": 4, "steps": 1, "rounds": 1, "networks": ["CNN", "LSTM"]}
        kept["amp"] = json.loads(json.dumps(complete(amp.main("cuda", **small))))
        kept["amp told"] = amp.told(kept["amp"])
    with pytest.MonkeyPatch.context() as patch:
        broken = replace(TASKS["digits"], name="broken", make_model=planted)
        patch.setitem(tasks.BOTH, "broken", broken)
        kept["tasks"] = complete(tasks.main("cuda", names=("digits", "broken"), steps=1, rounds=1))
        kept["tasks told"] = tasks.told(kept["tasks"])
    return kept


def memory_held_by_what_came_before() -> float:
    """Return what `prepared` says that a step of 1 MiB holds, when cycles of an earlier one are still there."""
    import gc

    gc.disable()

    class Cycle:
        def __init__(self) -> None:
            self.itself, self.tensor = self, torch.zeros(2**21, device="cuda")  # 8 MiB

    Cycle()

    def make() -> measure.Step:
        gc.collect()
        held = torch.zeros(2**18, device="cuda")
        return lambda: held.sum()

    mebibytes = measure.prepared(make, "cuda")[1]
    assert mebibytes is not None
    return mebibytes


@pytest.mark.slow
def test_one_item_that_fails_is_named_and_the_others_are_kept(simulated_gpu: Any) -> None:
    found = simulated_gpu("T4", [parts_with_planted_failures, memory_held_by_what_came_before])
    assert 1 <= found[memory_held_by_what_came_before] < 1.1, "no less than a step holds"
    kept = found[parts_with_planted_failures]
    answers = kept["amp"]
    assert answers["left_out"]["training of CNN"] == PLANTED
    assert set(answers["training"]) == {"LSTM"}
    assert len(answers["autocast"]) > 100
    assert {row["way"] for row in answers["prices"] if row["network"] == "LSTM"} >= {"torch.amp", "engine O1", "FP32"}
    assert answers["left_out"]["prices of CNN by torch.amp"] == PLANTED
    assert f"training of CNN: LEFT OUT, {PLANTED}" in kept["amp told"]

    answers = kept["tasks"]
    assert set(answers["rates"]["digits"]) == {"FP32", "FP16 dynamic", "O1", "BF16"}
    assert answers["left_out"]["broken under O1"] == PLANTED
    assert answers["twice"] == {"task": "digits", "steps_that_differ": 0}
    assert "memory" not in kept["tasks told"]


# --- parts that keep files, on any machine ---


@pytest.mark.slow
def test_a_run_that_fails_is_named_and_the_next_ones_are_kept(tmp_path: Path) -> None:
    task = replace(TASKS["digits"], steps=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "RACES", (("broken", ("FP32",)), ("short", ("FP32", "O1"))))
        patch.setitem(parts.TASKS, "broken", replace(task, name="broken", make_model=planted))
        patch.setitem(parts.TASKS, "short", replace(task, name="short"))
        first, *others = parts._races(replace(order(tmp_path), quick=False))
    assert first == f"broken under FP32: FAILED, {PLANTED}"
    assert [path.name for path in sorted(tmp_path.rglob("*.json"))] == ["fp32-seed0.json", "o1-seed0.json"]
    assert all(line.startswith(str(tmp_path)) for line in others)


def test_a_check_is_written_whole_after_each_item_and_what_ends_it_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen = []

    def main(device: str) -> Iterator[dict[str, Any]]:
        for number in range(3):
            yield {"number": number}
            (path,) = tmp_path.rglob("speed.json")
            seen.append(json.loads(path.read_text())["number"])
        planted()

    monkeypatch.setitem(parts.CHECKS, "speed", checks.Check(main, lambda answers: f"told {answers['number']}"))
    (line,) = parts.PARTS["speed"].run(order(tmp_path))
    assert seen == [0, 1, 2]
    assert line.endswith(f"told 2\nspeed was ENDED by {PLANTED}")
    assert {"device", "versions", "date"} <= set(json.loads(next(tmp_path.rglob("speed.json")).read_text()))


def test_a_sweep_is_on_the_disk_after_each_round(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rounds = 0

    def measure(*words: Any, progress: Callable[[Any], None], **options: Any) -> Any:
        def third(record: Any) -> None:
            nonlocal rounds
            rounds += 1
            if rounds == 3:
                planted()
            progress(record)

        return before(*words, progress=third, **options)

    before = parts.measure
    monkeypatch.setattr(parts, "measure", measure)
    (line,) = parts._sweeps("size")(gpu.Order(device_report("cpu"), tmp_path, time.monotonic() + 60, quick=True))
    assert line.endswith(f"; ENDED by {PLANTED}")
    (path,) = tmp_path.rglob("size.json")
    assert from_json(path.read_text()).runs


def test_a_case_that_fails_in_its_turn_is_left_out_and_the_others_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [GemmCase(n, n, n, FP32) for n in (16, 24, 32)]
    turns, seen = timing._Ready.seconds, []

    def seconds(ready: Any, clock: Any) -> float:
        seen.append(ready.case)
        if ready.case == cases[1] and seen.count(cases[1]) > 2:  # in the first round after the warm-up
            planted()
        return turns(ready, clock)

    monkeypatch.setattr(timing._Ready, "seconds", seconds)
    left_out = []
    runs = timing.run_cases(cases, rounds=2, left_out=lambda case, why: left_out.append((case, why)))
    assert [run.case for run in runs] == [cases[0], cases[2]]
    assert left_out == [(cases[1], PLANTED.partition(": ")[2])]


@pytest.mark.slow
def test_every_check_honours_its_seconds() -> None:
    """With no time at all it begins no item, names all, and ends."""
    for name, check in checks.CHECKS.items():
        assert "seconds" in inspect.signature(check.main).parameters, name
        answers = complete(check.main("cpu", seconds=-1.0))
        why = set(answers.get("left_out", {}).values())
        assert why == {measure.TIME_UP} or answers.get("unavailable"), (name, answers)
