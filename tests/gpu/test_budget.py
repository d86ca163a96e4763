"""Costs of a step on a GPU for each recipe: host waits, copies and dispatched operations.

A step of a small network is bound by the host, which launches each operation and may have to wait
for the card. `BUDGET` limits the operations that a step dispatches, as a multiple of those of
torch.amp with GradScaler on the same network. With and without clipping, a step waits at most once
and copies nothing from the host. Further tests check the choice of NCCL or gloo for ranks.
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

SGD = partial(torch.optim.SGD, lr=0.1)
# The most operations of a step, as a multiple of torch.amp's: at most a tenth above those counted
# on the simulated T4 with torch 2.13.
BUDGET = {
    "FP32": 0.65,
    "O0": 0.65,
    # A T4 has no TF32, so operands are rounded; from an A100 on, it would be 0.65.
    "TF32": 2.95,
    "FP16": 0.9,
    "FP16 static": 0.95,
    # Counted is a step that is skipped.
    "FP16 static too high": 0.8,
    "FP16 dynamic": 0.95,
    "O2": 0.95,
    "BF16": 0.9,
    "FP16 no master": 0.95,
    "BF16 no master": 0.95,
    "O3": 0.9,
    "FP16 stochastic": 1.35,
    "FP16 Kahan": 1.15,
    "BF16 stochastic": 1.1,
    "BF16 Kahan": 1.15,
    "O1": 1.0,
    "O1 graph": 1.0,
    "FP8": 2.85,
    "FP8 current": 2.55,
    "FP8 delayed": 2.7,
    "unit scaled": 1.95,
    "MXFP8": 4.5,
    "NVFP4": 5.2,
}
# The most additional operations of a step that clips.
CLIPPING = 10
# Steps before a step is counted: after them a graph of casts is recorded, FP8 scales have a
# history, and a scale that is too high has skipped several steps.
WARM_UP = 7


def convolutions() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Return a network of 12 parameters with batch norm, and a batch."""
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
    """Return a network and a batch.

    The network has 48 parameters, so that operations for each of them are visible.
    """
    layers = [nn.Linear(16, 16) for _ in range(24)]
    return nn.Sequential(*layers), torch.randn(8, 16), torch.randint(0, 16, (8,))


def steps_of(network: Callable[[], Any], recipe: str) -> list[Callable[[], object]]:
    """Return a step of a recipe without and with clipping; of torch.amp, the step without."""
    torch.manual_seed(0)
    model, inputs, targets = network()
    model = model.cuda()
    inputs = inputs.cuda()
    targets = targets.cuda()
    if recipe == measure.TORCH_AMP:
        return [measure.training(recipe, model, inputs, targets)]
    engine = Engine(model, partial(torch.optim.AdamW, lr=1e-3), RECIPES[recipe])

    def loss() -> torch.Tensor:
        return nn.functional.cross_entropy(engine(inputs), targets)

    return [measure.engine_step(engine, loss, clip=clip) for clip in (False, True)]


def costs_of(steps: list[Callable[[], object]]) -> list[dict[str, Any]]:
    """Warm up with the first kind of step, and count one of each."""
    from tests.gpu.simulated.counting import counted

    for _ in range(WARM_UP):
        steps[0]()
    costs = []
    for step in steps:
        with counted() as counts:
            step()
        waits = [*counts.waits.elements()]
        copies = [*counts.copies]
        costs.append({"operations": counts.operations.total(), "waits": waits, "copies": copies})
    return costs


def all_costs() -> dict[str, Any]:
    """Return the costs of torch.amp and of each recipe for each network."""
    names = (measure.TORCH_AMP, *RECIPES)
    return {
        network.__name__: {name: costs_of(steps_of(network, name)) for name in names}
        for network in (convolutions, many_parameters)
    }


def overflows() -> dict[str, Any]:
    """Return what happens in a step with an infinite loss, and in one with inputs beyond FP16.

    Both come after steps without overflow.
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

    # Steps are skipped until the scale is low enough.
    while not step(ones).stepped:
        pass
    with counted() as counts:
        report = step(ones, 1e38)
    overflow = [report.found_inf, list(report.culprits), counts.waits.total()]
    while not step(ones).stepped:
        pass
    with engine.forward():
        # A forward pass beyond FP16 that no step follows must not affect the next step.
        engine(ones * 1e30)
    scale = engine.scaler.scale
    next_step_taken = step(ones).stepped
    report = step(ones * 1e30)
    beyond = {
        "stepped": report.stepped,
        "found_inf": report.found_inf,
        "fp32 suggested": "FP32" in report.why,
        "scale kept": engine.scaler.scale == scale,
    }
    return {"overflow": overflow, "next step taken": next_step_taken, "beyond": beyond}


def copies_of_a_step() -> list[Any]:
    """Return the copies from the host in a training step, and whether its batch is the CPU's."""
    run, on_cpu = (
        TrainingRun(TASKS["digits"], RECIPES["FP32"], device=device, measure_every=0)
        for device in ("cuda", "cpu")
    )
    run.take_step()
    with HostWaits("cuda") as waits:
        run.take_step()
    same = [
        torch.equal(on_card.cpu(), other)
        for on_card, other in zip(run.batch(3), on_cpu.batch(3), strict=True)
    ]
    return [sum(waits.copies.values()), same]


@pytest.fixture(scope="module")
def outcomes(simulated_gpu: Any) -> Outcomes:
    return simulated_gpu("T4", [all_costs, overflows, copies_of_a_step, choices])


NETWORKS = pytest.mark.parametrize("network", ["convolutions", "many_parameters"])


def test_each_recipe_has_a_budget() -> None:
    assert BUDGET.keys() == RECIPES.keys()


def test_each_recipe_keeps_its_budget(outcomes: Outcomes) -> None:
    costs = outcomes[all_costs]["convolutions"]
    base = costs[measure.TORCH_AMP][0]["operations"]
    spent = {recipe: costs[recipe][0]["operations"] / base for recipe in RECIPES}
    assert {name: ratio for name, ratio in spent.items() if ratio > BUDGET[name]} == {}


@NETWORKS
def test_a_step_of_torch_amp_waits_once(outcomes: Outcomes, network: str) -> None:
    (step,) = outcomes[all_costs][network][measure.TORCH_AMP]
    assert len(step["waits"]) == 1


@NETWORKS
def test_a_step_waits_at_most_once(outcomes: Outcomes, network: str) -> None:
    for name, steps in outcomes[all_costs][network].items():
        for step in steps:
            assert len(step["waits"]) <= 1, (name, step["waits"])


@NETWORKS
def test_a_step_copies_nothing_from_the_host(outcomes: Outcomes, network: str) -> None:
    for recipe in RECIPES:
        copies = [step["copies"] for step in outcomes[all_costs][network][recipe]]
        assert copies == [[], []], recipe


@NETWORKS
def test_clipping_costs_a_few_operations(outcomes: Outcomes, network: str) -> None:
    for recipe in RECIPES:
        plain, clipped = outcomes[all_costs][network][recipe]
        assert clipped["operations"] <= plain["operations"] + CLIPPING, recipe


def test_a_training_step_copies_only_the_indices_of_its_batch(outcomes: Outcomes) -> None:
    copies, _ = outcomes[copies_of_a_step]
    assert copies == 1


def test_the_batch_of_a_step_is_that_of_the_cpu(outcomes: Outcomes) -> None:
    _, equals_the_cpu = outcomes[copies_of_a_step]
    assert equals_the_cpu == [True, True]


def test_overflow_costs_one_more_wait(outcomes: Outcomes) -> None:
    """The names of gradients at fault cost a second wait."""
    assert outcomes[overflows]["overflow"] == [True, ["weight", "bias"], 2]


def test_a_forward_pass_beyond_fp16_skips_no_later_step(outcomes: Outcomes) -> None:
    assert outcomes[overflows]["next step taken"]


def test_inputs_beyond_fp16_skip_their_step(outcomes: Outcomes) -> None:
    """No gradient is at fault, so the scale is kept."""
    expected = {"stepped": False, "found_inf": False, "fp32 suggested": True, "scale kept": True}
    assert outcomes[overflows]["beyond"] == expected


# ---- the choice of NCCL or gloo


def choices() -> dict[str, Any]:
    """Return the device and the backend that rank 0 and rank 1 choose on a machine with one GPU."""
    joined: list[Any] = []
    chosen: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "init_process_group", lambda backend, **_: joined.append(backend))
        patch.delenv("TORCH_NCCL_BLOCKING_WAIT", raising=False)
        for rank, device in itertools.product("01", ("cpu", "cuda")):
            patch.setenv("RANK", rank)
            patch.setenv("LOCAL_RANK", rank)
            try:
                rank_device = str(start_group(device))
                chosen[f"{device} {rank}"] = [
                    rank_device,
                    joined.pop(),
                    os.environ.get("TORCH_NCCL_BLOCKING_WAIT"),
                ]
            except RuntimeError as error:
                chosen[f"{device} {rank}"] = str(error)
    return chosen


def test_a_timeout_while_a_result_is_read_is_a_lost_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL's all_reduce is asynchronous: a timeout is raised where the result is read."""

    class Numbers:
        def tolist(self) -> list[float]:
            raise dist.DistBackendError(
                "NCCL communicator was aborted on rank 0. Watchdog caught a timeout"
            )

    monkeypatch.setattr(group.torch, "tensor", lambda *_, **__: Numbers())
    monkeypatch.setattr(dist, "all_reduce", lambda *_, **__: None)
    with pytest.raises(RankLost, match="while it agreed with the others on a number"):
        largest([0.0])


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_on_a_cpu_use_gloo(outcomes: Outcomes, rank: int) -> None:
    device, backend, _ = outcomes[choices][f"cpu {rank}"]
    assert (device, backend) == ("cpu", "gloo")


def test_ranks_on_gpus_use_nccl_and_wait_for_it(outcomes: Outcomes) -> None:
    assert outcomes[choices]["cuda 0"] == ["cuda:0", "nccl", "1"]


def test_a_rank_without_a_gpu_of_its_own_is_refused(outcomes: Outcomes) -> None:
    message = outcomes[choices]["cuda 1"]
    assert message.startswith(
        "expected a GPU for each rank, got 1 for local rank 1: start at most as many"
    )
    assert 'torchrun --nproc-per-node 1), or use start_group("cpu")' in message
