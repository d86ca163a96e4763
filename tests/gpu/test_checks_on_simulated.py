"""Each part of `labkit gpu` on the simulated T4, with one item that fails: it is named, and the others stay.

What fails is planted: a network, a task's recipe, a card, a layer, a tile or a run that raises.
"""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from labkit import gpu
from labkit.bench import GemmCase, device_report, from_json, timing
from labkit.bench.triton_gemm import TILES
from labkit.formats import FP32
from labkit.gpu import checks, parts
from labkit.gpu.checks import amp, cards, networks, price, progress, recurrent, speed, tasks, triton
from labkit.gpu.checks.progress import complete
from labkit.train import TASKS

PLANTED = "RuntimeError: expected a healthy item, got a planted fault"


def planted(*_: Any, **__: Any) -> Any:
    raise RuntimeError(PLANTED.partition(": ")[2])


def order(folder: Path, seconds: float = 60.0) -> gpu.Order:
    return gpu.Order(device_report(), folder, time.monotonic() + seconds, quick=True)


def parts_with_planted_failures() -> dict[str, Any]:
    """Run every check and part on the card, each with its planted failure; return what was kept."""
    kept: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(networks.NETWORKS, "CNN", planted)
        small = {"width": 32, "batch": 4, "steps": 1, "rounds": 1, "networks": ["CNN", "LSTM"]}
        kept["amp"] = json.loads(json.dumps(complete(amp.main("cuda", **small))))
        kept["amp told"] = amp.told(kept["amp"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(recurrent.LAYERS, "GRU", planted)
        patch.setattr(recurrent, "_compared", lambda layer, *_: layer() if layer is planted else "equal")
        kept["recurrent"] = complete(recurrent.main("cuda", width=8))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(speed.WAYS, "O2", ("a recipe that does not exist", ""))
        patch.setattr(torch, "compile", lambda model: model)  # whose minutes say nothing on a simulated card
        every = speed.tasks
        patch.setattr(speed, "tasks", lambda *sizes: dict(list(every(*sizes).items())[:1]))
        kept["speed"] = complete(speed.main("cuda", width=64, batch=8, steps=1, rounds=1))
        kept["speed told"] = speed.told(kept["speed"])
    with pytest.MonkeyPatch.context() as patch:
        chosen = dict(list(cards.gpu_cards().items())[:3])
        patch.setattr(cards, "gpu_cards", lambda: chosen)
        first = next(iter(chosen.values()))
        measured = cards.measured
        patch.setattr(cards, "measured", lambda card, *rest: planted() if card is first else measured(card, *rest))
        kept["cards"] = complete(cards.main("cuda", width=64))
        kept["cards expected"] = list(chosen)
    with pytest.MonkeyPatch.context() as patch:
        broken = replace(TASKS["digits"], name="broken", make_model=planted)
        patch.setitem(tasks.BOTH, "broken", broken)
        kept["tasks"] = complete(tasks.main("cuda", names=("digits", "broken"), steps=1, rounds=1))
        kept["tasks told"] = tasks.told(kept["tasks"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton, "why_unavailable", lambda device: "")
        patch.setattr(triton, "SHAPES", ((8, 8, 8),))

        def matmul(a: torch.Tensor, b: torch.Tensor, tile: object) -> torch.Tensor:
            return planted() if tile == TILES[1] else (a.float() @ b.float()).to(a.dtype)

        patch.setattr(triton, "matmul", matmul)
        kept["triton"] = complete(triton.main("cuda"))
    return kept


def memory_held_by_what_came_before() -> float:
    """Return what `prepared` says that a step of 1 MiB holds, when cycles of an earlier one are still there."""
    import gc

    gc.disable()

    class Cycle:
        def __init__(self) -> None:
            self.itself, self.tensor = self, torch.zeros(2**21, device="cuda")  # 8 MiB

    Cycle()

    def make() -> price.Step:
        gc.collect()
        held = torch.zeros(2**18, device="cuda")
        return lambda: held.sum()

    mebibytes = price.prepared(make, "cuda")[1]
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

    assert set(kept["recurrent"]["recurrent"]) == {"RNN", "RNN, packed", "LSTM", "LSTM, packed"}
    assert kept["recurrent"]["left_out"] == {"GRU": PLANTED}

    rows, left_out = kept["speed"]["rows"], kept["speed"]["left_out"]
    by_way = {row["way"] for row in rows}
    assert by_way >= {"FP32", "TF32", "O1", "O1 graph", "torch.amp", "BF16"}
    assert "O2" not in by_way
    assert sum("a recipe that does not exist" in why for why in left_out.values()) == 2, "for each kind"
    compiled = ["compiled" in row["way"] for row in rows]
    assert compiled == sorted(compiled), "plain ways first"
    assert "LEFT OUT, KeyError" in kept["speed told"]

    first, *others = kept["cards expected"]
    assert list(kept["cards"]["cards"]) == others
    assert kept["cards"]["left_out"] == {first: PLANTED}

    answers = kept["tasks"]
    assert set(answers["rates"]["digits"]) == {"FP32", "FP16 dynamic", "O1", "BF16"}
    assert answers["left_out"]["broken under O1"] == PLANTED
    assert answers["twice"] == {"task": "digits", "steps_that_differ": 0}
    assert "memory" not in kept["tasks told"]

    answers = kept["triton"]
    assert set(answers["wrong"].values()) == {0}
    assert len(answers["wrong"]) == len(TILES) - 1
    assert any(TILES[1].name in name for name, why in answers["left_out"].items() if why == PLANTED)
    assert answers["left_out"][f"{TILES[0].name} torch.bfloat16"] == "BF16 needs compute capability 8.0 or higher"


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

    def measured(*words: Any, **options: Any) -> Iterator[Any]:
        nonlocal rounds
        for record in before(*words, **options):
            rounds += 1
            if rounds == 3:
                planted()
            yield record

    before = parts.measured
    monkeypatch.setattr(parts, "measured", measured)
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
        assert why == {progress.TIME_UP} or answers.get("unavailable"), (name, answers)
