"""Costs of a step on a GPU for each recipe: host waits, copies and dispatched operations.

A step of a small network is bound by the host, which launches each operation and may have to wait
for the card. The table says how many operations a step may dispatch, as a multiple of torch.amp
with GradScaler on the same network; each recipe waits once at most, with clipping and without, and
copies nothing from the host. Of several ranks, NCCL is taken only where it was chosen.
"""

import itertools
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from labkit.amp import RECIPES, Engine
from labkit.amp.distributed import group
from labkit.amp.distributed.group import RankLost, largest, start_group
from labkit.gpu import measure
from labkit.gpu.passport.probes import HostWaits
from labkit.train import TASKS, TrainingRun
from tests.gpu.simulated import Outcomes

# Operations of a step, at most, as a multiple of torch.amp's.
SGD = partial(torch.optim.SGD, lr=0.1)
BUDGET = {
    "FP32": 0.65,
    "O0": 0.65,
    "TF32": 3.0,  # on a T4, which has none, so that operands are rounded; 0.65 from an A100 on
    "FP16": 1.05,
    "FP16 static": 1.05,
    "FP16 static too high": 1.05,
    "FP16 dynamic": 1.05,
    "O2": 1.05,
    "BF16": 1.05,
    "FP16 no master": 1.4,
    "BF16 no master": 1.4,
    "O3": 1.4,
    "FP16 stochastic": 2.0,
    "FP16 Kahan": 2.0,
    "BF16 stochastic": 2.0,
    "BF16 Kahan": 2.0,
    "O1": 0.95,
    "O1 graph": 0.95,
    "FP8": 3.0,
    "FP8 current": 3.0,
    "FP8 delayed": 3.0,
    "unit scaled": 3.0,
    "MXFP8": 5.0,
    "NVFP4": 5.0,
}
CLIPPING = 10  # operations more, at most
# Steps: a graph is recorded, scales have a history, a scale that is too high has been skipped
# often.
WARM_UP = 7


def convolutions() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A network of 12 parameters with batch norm, and a batch."""
    layers = [
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(256, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    ]
    return nn.Sequential(*layers), torch.randn(8, 3, 16, 16), torch.randint(0, 10, (8,))


def many_parameters() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A network of 48 parameters: whatever is done for each of them shows."""
    layers = [nn.Linear(16, 16) for _ in range(24)]
    return nn.Sequential(*layers), torch.randn(8, 16), torch.randint(0, 16, (8,))


def steps_of(network: Callable[[], Any], recipe: str) -> list[Callable[[], object]]:
    """Return a step of a recipe, and one that clips; of torch.amp, its step alone."""
    torch.manual_seed(0)
    model, inputs, targets = network()
    model = model.cuda()
    inputs = inputs.cuda()
    targets = targets.cuda()
    if recipe == measure.TORCH_AMP:
        return [measure.training(recipe, model, inputs, targets)]
    engine = Engine(model, partial(torch.optim.AdamW, lr=1e-3), RECIPES[recipe])
    loss = lambda: nn.functional.cross_entropy(engine(inputs), targets)  # noqa: E731
    return [measure.engine_step(engine, loss, clip=clip) for clip in (False, True)]


def costs_of(steps: list[Callable[[], object]]) -> list[dict[str, Any]]:
    """Warm up with the first kind of step, and count one of each."""
    from tests.gpu.simulated.counting import counted

    for _ in range(WARM_UP):
        steps[0]()
    found = []
    for step in steps:
        with counted() as counts:
            step()
        waits = [*counts.waits.elements()]
        copies = [*counts.copies]
        found.append({"operations": counts.operations.total(), "waits": waits, "copies": copies})
    return found


def all_costs() -> dict[str, Any]:
    """For each network: torch.amp's cost, and each recipe's, without clipping and with it."""
    ways = (measure.TORCH_AMP, *RECIPES)
    return {
        network.__name__: {way: costs_of(steps_of(network, way)) for way in ways}
        for network in (convolutions, many_parameters)
    }


def overflow_and_reach_beyond() -> dict[str, Any]:
    """A step whose loss is inf after clean ones; and an input beyond FP16 after some that were
    within.
    """
    from tests.gpu.simulated.counting import counted

    torch.manual_seed(0)
    engine = Engine(nn.Linear(4, 2).cuda(), SGD, RECIPES["O2"])
    ones = torch.ones(3, 4, device="cuda")

    def step(inputs: torch.Tensor, factor: float = 1.0) -> Any:
        engine.zero_grad()
        with engine.forward():
            loss = engine(inputs).square().mean() * factor
        engine.backward(loss)
        return engine.step()

    while not step(ones).stepped:  # until the scale has come down to where it fits
        pass
    with counted() as counts:
        report = step(ones, 1e38)
    overflow = [report.found_inf, list(report.culprits), counts.waits.total()]
    while not step(ones).stepped:
        pass
    with engine.forward():
        engine(ones * 1e30)  # no step follows
    scale = engine.scaler.scale
    given_up = step(ones).stepped
    report = step(ones * 1e30)
    beyond = [report.stepped, report.found_inf, "FP32" in report.why, engine.scaler.scale == scale]
    return {"overflow": overflow, "given up": given_up, "beyond": beyond}


@pytest.fixture(scope="module")
def found(simulated_gpu: Any) -> Outcomes:
    return simulated_gpu("T4", [all_costs, overflow_and_reach_beyond, copies_of_a_step, choices])


def test_each_recipe_keeps_its_budget(found: Outcomes) -> None:
    costs = found[all_costs]
    assert BUDGET.keys() >= RECIPES.keys()
    theirs = {name: network.pop(measure.TORCH_AMP)[0] for name, network in costs.items()}
    for name, network in costs.items():
        assert len(theirs[name]["waits"]) == 1
        for recipe, (plain, clipped) in network.items():
            for step in (plain, clipped):
                assert len(step["waits"]) <= 1, (name, recipe, step["waits"])
                assert step["copies"] == [], (name, recipe)
            assert clipped["operations"] <= plain["operations"] + CLIPPING, (name, recipe)
    assert found[copies_of_a_step] == [1, [True, True]], "the numbers of a batch's rows alone"
    base = theirs["convolutions"]["operations"]
    spent = {name: plain["operations"] / base for name, (plain, _) in costs["convolutions"].items()}
    assert {name: ratio for name, ratio in spent.items() if ratio > BUDGET[name]} == {}


def test_what_a_step_finds_for_the_first_time_is_read_then(found: Outcomes) -> None:
    """Names of gradients at fault cost a second wait; a step with inputs beyond FP16 is left out,
    not one after it.
    """
    seen = found[overflow_and_reach_beyond]
    assert seen["overflow"] == [True, ["weight", "bias"], 2]
    assert seen["given up"]
    assert seen["beyond"] == [False, False, True, True]


def choices() -> dict[str, Any]:
    """Join a group as rank 0 and as rank 1 of a machine with one GPU, and return what would be
    joined.
    """
    joined: list[Any] = []
    found: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "init_process_group", lambda backend, **_: joined.append(backend))
        patch.delenv("TORCH_NCCL_BLOCKING_WAIT", raising=False)
        for rank, device in itertools.product("01", ("cpu", "cuda")):
            patch.setenv("RANK", rank)
            patch.setenv("LOCAL_RANK", rank)
            try:
                where = str(start_group(device))
                found[f"{device} {rank}"] = [
                    where,
                    joined.pop(),
                    os.environ.get("TORCH_NCCL_BLOCKING_WAIT"),
                ]
            except RuntimeError as error:
                found[f"{device} {rank}"] = str(error)
    return found


def test_a_rank_that_is_lost_while_the_answer_is_read_is_a_rank_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """NCCL's all_reduce only begins; the timeout comes where the numbers are read."""

    class Numbers:
        def tolist(self) -> list[float]:
            raise dist.DistBackendError(
                "NCCL communicator was aborted on rank 0. Watchdog caught a timeout"
            )

    monkeypatch.setattr(group.torch, "tensor", lambda *_, **__: Numbers())
    monkeypatch.setattr(dist, "all_reduce", lambda *_, **__: None)
    with pytest.raises(RankLost, match="while it agreed with the others on a number"):
        largest([0.0])


def copies_of_a_step() -> list[Any]:
    """Return the copies from the host of one training step, and whether its batch is the CPU's."""
    run, on_cpu = (
        TrainingRun(TASKS["digits"], RECIPES["FP32"], device=place, measure_every=0)
        for place in ("cuda", "cpu")
    )
    run.take_step()
    with HostWaits("cuda") as seen:
        run.take_step()
    same = [
        torch.equal(own.cpu(), other)
        for own, other in zip(run.batch(3), on_cpu.batch(3), strict=True)
    ]
    return [sum(seen.copies.values()), same]


def test_nccl_is_used_only_where_it_was_chosen(
    found: Outcomes,
) -> None:
    chosen = found[choices]
    assert chosen["cpu 0"] == ["cpu", "gloo", None]
    assert chosen["cuda 0"] == ["cuda:0", "nccl", "1"]
    assert chosen["cpu 1"][:2] == ["cpu", "gloo"]
    assert chosen["cuda 1"].startswith(
        "expected a GPU for each rank, got 1 for local rank 1: start at most as many"
    )
    assert 'torchrun --nproc-per-node 1), or use start_group("cpu")' in chosen["cuda 1"]
