"""Parts of `labkit gpu` of which one item fails: it is named, and the others stay.

What fails is planted: a network, a task, a case or a run that raises.
"""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from labkit import gpu
from labkit.amp import RECIPES
from labkit.bench import GemmCase, from_json, timing
from labkit.formats import FP32
from labkit.gpu import measure, parts, passport
from labkit.gpu.worker import answer
from labkit.train import TASKS
from tests.gpu.test_passport import serving

PLANTED = "RuntimeError: expected a healthy item, got a planted fault"


def planted(*_: Any, **__: Any) -> Any:
    raise RuntimeError(PLANTED.partition(": ")[2])


def order(folder: Path, part: str, *, quick: bool = True) -> gpu.Job:
    return gpu.Job("cpu", part, quick, time.time() + 60.0, folder)


def items_with_planted_failures() -> dict[str, Any]:
    """Run items on the card, one with a recipe that fails and one that fails altogether."""
    costs = measure.cost("LSTM", "training", measure.AMP_WAYS, {"width": 32, "batch": 4}, steps=1, rounds=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(measure.REGIONS, measure.DROP_IN, (planted, planted))
        kept = {"cost": answer(costs, "cuda")}
    broken = replace(TASKS["digits"], name="broken", make_model=planted)
    for task in (broken, TASKS["digits"]):
        kept[task.name] = answer(measure.pace(task, lambda: 60.0, steps=1, rounds=1), "cuda")
    kept["twice"] = answer(measure.twice(broken, RECIPES["O1"]), "cuda")
    return dict(json.loads(json.dumps(kept)))


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
    found = simulated_gpu("T4", [items_with_planted_failures, memory_held_by_what_came_before])
    assert 1 <= found[memory_held_by_what_came_before] < 1.1, "no less than a step holds"
    kept = found[items_with_planted_failures]
    assert kept["cost"]["failed"] == {"drop-in": PLANTED}
    assert set(kept["cost"]["seconds_a_call"]) == {"torch.amp", "O1", "O2", "FP32"}
    assert all(mebibytes > 0 for mebibytes in kept["cost"]["mebibytes"].values())
    assert f"  drop-in: LEFT OUT, {PLANTED}" in kept["cost"]["summary"].splitlines()
    assert set(kept["digits"]["steps_per_second"]) == {"FP32", "FP16 dynamic", "O1", "BF16"}
    assert kept["broken"]["failed"]["O1"] == PLANTED
    assert (kept["twice"]["outcome"], kept["twice"]["error"]) == ("failed", PLANTED)


# --- parts that keep files, on any machine ---


@pytest.mark.slow
def test_a_run_that_fails_is_named_and_the_next_ones_are_kept(tmp_path: Path) -> None:
    task = replace(TASKS["digits"], steps=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "RACES", (("broken", ("FP32",)), ("short", ("FP32", "O1"))))
        patch.setitem(parts.TASKS, "broken", replace(task, name="broken", make_model=planted))
        patch.setitem(parts.TASKS, "short", replace(task, name="short"))
        items = parts.PARTS["runs"].items(order(tmp_path, "runs", quick=False))
        first, *others = [answer(item, "cpu") for item in items]
    assert (first["item"], first["error"]) == ("broken under FP32", PLANTED)
    assert [path.name for path in sorted(tmp_path.rglob("*.json"))] == ["fp32-seed0.json", "o1-seed0.json"]
    assert all(line["summary"].startswith(str(tmp_path)) for line in others)


def test_a_part_keeps_its_items_as_a_passport_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = serving("time prints", "time fails", "time aborts")
    monkeypatch.setattr(passport, "worker_command", lambda _: command)
    how = gpu.command.run_part(order(tmp_path, "speed"), 60.0)
    assert how == "failed, its process ended with SIGABRT; its last lines say why"
    (path,) = tmp_path.rglob("speed.jsonl")
    assert capsys.readouterr().out.splitlines() == [
        "time prints: done",
        "time fails: FAILED, ValueError: expected an even number, got 3",
        "time aborts: PROCESS LOST, its process ended with SIGABRT",
        f"{path}: 3 of 3 items",
    ]
    assert passport.read_file(path).whole


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
    (item,) = parts.PARTS["size"].items(order(tmp_path, "size"))
    line = answer(item, "cpu")
    assert (line["error"], "8 cases" in line["summary"]) == (PLANTED, True)
    (path,) = tmp_path.rglob("size.json")
    assert from_json(path.read_text()).runs


def test_a_case_that_fails_in_its_turn_is_left_out_and_the_others_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [GemmCase(n, n, n, FP32) for n in (16, 24, 32)]
    turns, seen = timing._PreparedCase.seconds, []

    def seconds(ready: Any) -> float:
        seen.append(ready.case)
        if ready.case == cases[1] and seen.count(cases[1]) > 2:  # in the first round after the warm-up
            planted()
        return turns(ready)

    monkeypatch.setattr(timing._PreparedCase, "seconds", seconds)
    left_out = []
    runs = timing.run_cases(cases, rounds=2, left_out=lambda case, why: left_out.append((case, why)))
    assert [run.case for run in runs] == [cases[0], cases[2]]
    assert left_out == [(cases[1], PLANTED.partition(": ")[2])]
