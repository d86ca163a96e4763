"""Trainings on the simulated card and on the CPU: recipes, tasks, checkpoints, copies, full memory.

The functions of `ON_CARD` run one after the other in a process that has the simulated card, and a
parametrized test reports the outcome of each.
"""

import copy
import io
import itertools
import math
import pickle
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from labkit.amp import RECIPES, Ema, Engine, layer_scales, load_checkpoint, save_checkpoint
from labkit.formats import BF16, FP16
from labkit.gemm import SPECS
from labkit.instrument import exponent_histogram, probe
from labkit.train import TASKS, TrainingRun, train
from tests.gpu.simulated import Outcomes
from tests.slowness import slowness

# Recipes that draw random numbers, which differ between devices.
STOCHASTIC = {"FP16 stochastic", "BF16 stochastic", "NVFP4"}
# Recipes that are tested with flat master weights, too.
ALSO_FLAT = {"O2", "BF16", "FP16 Kahan", "FP16 stochastic"}
ADAM = partial(torch.optim.AdamW, lr=1e-2)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 48), nn.LayerNorm(48), nn.ReLU(), nn.Linear(48, 16))


def engine(recipe: str = "O2", device: str = "cuda", **options: Any) -> Engine:
    return Engine(network().to(device), ADAM, RECIPES[recipe], **options)


def batch(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def step(trained: Engine, x: torch.Tensor) -> float:
    trained.zero_grad()
    with trained.forward():
        loss = (trained(x.to(trained.device)) - 1).square().mean()
    trained.backward(loss)
    trained.step()
    return loss.item()


def steps(trained: Engine, count: int = 3, seed: int = 0) -> list[str]:
    """Take steps on batches that follow from the seed, and return their losses in hexadecimal.

    As text, NaN equals NaN.
    """
    return [step(trained, batch(8, 32, seed=100 * seed + number)).hex() for number in range(count)]


def finite(losses: list[str]) -> bool:
    return not {"nan", "inf", "-inf"} & set(losses)


def weights(trained: Engine) -> dict[str, bytes]:
    return {
        name: master.float().cpu().numpy().tobytes()
        for name, master in trained.weights.named_masters().items()
    }


@contextmanager
def recorded_warnings() -> Iterator[list[str]]:
    """Open a region whose list has the messages of all warnings when the region is closed."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        messages: list[str] = []
        yield messages
        messages += [str(warning.message) for warning in caught]


# ---- on the card


def checkpoints_continue_on_the_other_device() -> None:
    """Continue a run of each recipe on the CPU from the card, and the other way round.

    It continues bit for bit, or with a warning where a recipe draws random numbers.
    """
    with tempfile.TemporaryDirectory() as folder:
        for recipe in RECIPES:
            for here, there in (("cuda", "cpu"), ("cpu", "cuda")):
                first = engine(recipe, here)
                second = engine(recipe, there)
                steps(first, 2)
                path = save_checkpoint(Path(folder, "run.pt"), first, epoch=3)
                before = weights(first)
                with recorded_warnings() as messages:
                    assert load_checkpoint(path, second) == {"epoch": 3}
                assert weights(second) == before, (recipe, here)
                assert all(p.device.type == there for p in second.model.parameters())
                losses = steps(second, 2, seed=1)
                if recipe in STOCHASTIC:
                    assert len(messages) == 1, (recipe, here, messages)
                    assert "not bit for bit" in messages[0]
                    assert finite(losses), (recipe, losses)
                else:
                    assert messages == [], (recipe, here, messages)
                    assert losses == steps(first, 2, seed=1), (recipe, here)
                    assert weights(first) == weights(second), (recipe, here)


def checkpoints_and_copies_continue_on_the_card_bit_for_bit() -> None:
    """Continue from a checkpoint, a deep copy and a pickle of a run of each recipe."""
    with tempfile.TemporaryDirectory() as folder:
        for recipe in RECIPES:
            for flat in (False, True) if recipe in ALSO_FLAT else (False,):
                first = engine(recipe, flat=flat)
                loaded = engine(recipe, flat=flat, seed=9)
                steps(first, 2)
                path = save_checkpoint(Path(folder, "run.pt"), first)
                copied = copy.deepcopy(first)
                pickled = pickle.loads(pickle.dumps(first))
                expected = steps(first, 1, seed=1)
                assert steps(copied, 1, seed=1) == expected, (recipe, flat)
                assert steps(pickled, 1, seed=1) == expected, (recipe, flat)
                assert all(
                    p.is_cuda for p in (*copied.model.parameters(), *pickled.model.parameters())
                )
                # Last, because loading restores the card's random state.
                load_checkpoint(path, loaded)
                assert steps(loaded, 1, seed=1) == expected, (recipe, flat)


def forks_and_twins_of_a_run() -> None:
    for recipe in ("FP16 dynamic", "O1", "BF16 stochastic", "FP8 delayed", "NVFP4"):
        run = TrainingRun(TASKS["digits_cnn"], RECIPES[recipe], 0, device="gpu")
        for _ in range(2):
            run.step()
        fork = run.fork()
        twin = run.fp32_twin()
        other = run.fork(RECIPES["FP32"])
        assert [run.step().loss for _ in range(2)] == [fork.step().loss for _ in range(2)], recipe
        for derived in (fork, twin, other):
            derived.step()
            assert all(p.is_cuda for p in derived.model.parameters())


# Each of these functions must return the same on the card and on the CPU.


def with_flat_masters_and_groups(device: str) -> Any:
    def groups(model: nn.Module) -> list[dict[str, Any]]:
        return [
            {"params": list(model[0].parameters()), "lr": 0.0},
            {"params": list(model[1:].parameters()), "lr": 0.1},
        ]

    engines = [
        engine(recipe, device, groups=groups, flat=True) for recipe in ("O2", "FP16 Kahan", "BF16")
    ]
    engines.append(engine("O2", device, groups=groups))
    return [[steps(trained), weights(trained)] for trained in engines]


def averaged(device: str) -> Any:
    trained = engine("O2", device)
    average = Ema(trained, decay=0.5)
    again = Ema(trained, decay=0.9)
    for seed in range(3):
        steps(trained, 1, seed)
        average.update()
    with average.in_model():
        inside = trained.model[0].weight.tolist()
    on_cpu = {name: value.cpu() for name, value in average.averages.items()}
    again.load_state_dict({**average.state_dict(), "averages": on_cpu})
    assert all(value.device.type == device for value in again.averages.values())
    return inside, {name: value.tolist() for name, value in again.averages.items()}


def instrumented(device: str) -> Any:
    """Histograms, probes, and scales of single layers."""
    dtypes = (torch.float32, torch.float16, torch.bfloat16)
    tensors = [(batch(1000) * 1e-6).to(device, dtype) for dtype in dtypes]
    model = network().to(device)
    ones = torch.ones(2, 32, device=device)
    with probe(model) as probed:
        model(ones).square().mean().backward()
    assert probed.gradients
    with layer_scales(model, {"0": 8}) as remaining:
        model(ones).square().sum().backward()
    assert remaining == {}
    counts = [
        exponent_histogram(tensor).counts.tolist()
        for tensor in (*tensors, *probed.gradients.values())
    ]
    return counts, model[0].weight.grad.tolist()


def several_losses(device: str) -> Any:
    encoder = engine("O2", device)
    head = Engine(nn.Linear(16, 1).to(device), ADAM, RECIPES["O1"], losses=2)
    losses = []
    for _ in range(6):
        encoder.zero_grad()
        head.zero_grad()
        with encoder.forward():
            middle = encoder(batch(8, 32).to(device))
        with head.forward():
            first = head(middle).square().mean()
            second = head(middle.detach()).mean() * 1e-6
        head.backward(first, 0, other_engines=[encoder])
        head.backward(second, 1)
        encoder.clip(1.0)
        head.clip(1.0)
        reports = [encoder.step(), head.step()]
        losses += [first.item(), second.item(), *(report.found_inf for report in reports)]
    return losses, [s.scale for s in head.scalers], encoder.scaler.scale


def sparse(device: str) -> Any:
    losses = []
    for recipe in ("FP32", "O1"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.EmbeddingBag(10, 4, sparse=True), nn.Linear(4, 1)).to(device)
        trained = Engine(model, partial(torch.optim.SGD, lr=0.1), RECIPES[recipe])
        losses.append([step(trained, torch.tensor([[1, 2, 2], [4, 5, 1]])) for _ in range(3)])
    return losses


def with_an_emulated_accumulator(device: str) -> Any:
    torch.manual_seed(0)
    recipe = replace(RECIPES["O2"], name="V100", accumulator=SPECS["V100"])
    trained = Engine(nn.Linear(32, 8).to(device), ADAM, recipe)
    return step(trained, batch(8, 32)), {
        name: g.tolist() for name, g in trained.gradients().items()
    }


EQUAL_ON_BOTH: tuple[Callable[[str], Any], ...] = (
    with_flat_masters_and_groups,
    averaged,
    instrumented,
    several_losses,
    sparse,
    with_an_emulated_accumulator,
)


def the_card_gives_what_the_cpu_gives() -> dict[str, str]:
    """Return the functions whose results differ, which should be none."""
    return {
        function.__name__: "differs"
        for function in EQUAL_ON_BOTH
        if function("cuda") != function("cpu")
    }


SCRIPT = """
import torch, torch.nn.functional as F
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3)).cuda()
optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
for number in range(1000):
    optimizer.zero_grad()
    with torch.autocast("cuda", torch.float16):
        inputs = torch.randn(16, 8, device="cuda")
        targets = torch.randint(3, (16,), device="cuda")
        loss = F.cross_entropy(model(inputs), targets)
    scaler.scale(loss).backward()
    CLIP
    scaler.step(optimizer)
    scaler.update()
"""
CLIPS_BEFORE_UNSCALING = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"


def diagnosis_of_a_script_that_trains_on_the_card() -> None:
    from labkit.cli import main

    with tempfile.TemporaryDirectory() as folder:
        for line, clips in (("pass", False), (CLIPS_BEFORE_UNSCALING, True)):
            path = Path(folder, "train.py")
            path.write_text(SCRIPT.replace("CLIP", line))
            with redirect_stdout(io.StringIO()) as out:
                main(["diagnose", str(path)])
            assert "Error" not in out.getvalue(), out.getvalue()
            assert ("clip_before_unscale" in out.getvalue()) == clips, out.getvalue()


def a_model_or_a_batch_on_another_device_is_refused() -> None:
    """After the refusal of a batch, the engine trains as before."""
    for recipe, flat in itertools.product(("FP32", "O1", "O2", "FP16 no master"), (False, True)):
        moved = engine(recipe, "cpu", flat=flat)
        steps(moved)
        moved.model.cuda()
        with pytest.raises(
            RuntimeError, match=r"moved to cuda:0 after the engine was made, .* are on cpu"
        ):
            moved.forward()
    for recipe in ("FP32", "O1", "O1 graph", "O2", "BF16", "FP8 delayed", "NVFP4"):
        trained = engine(recipe)
        steps(trained)
        expected = steps(copy.deepcopy(trained), seed=1)
        trained.zero_grad()
        with pytest.raises(RuntimeError, match="cpu"), trained.forward():
            trained(torch.ones(4, 32))
        assert steps(trained, seed=1) == expected, recipe


def a_card_that_is_full_in_a_step() -> None:
    """A step without enough memory raises OutOfMemoryError and changes no weight.

    So the next step can be taken.
    """
    from tests.gpu.simulated.runtime import limited_memory

    for recipe in (
        "FP32",
        "O1",
        "O1 graph",
        "O2",
        "FP16 no master",
        "BF16 stochastic",
        "FP8 delayed",
        "NVFP4",
    ):
        plain = engine(recipe)
        steps(plain)
        expected = steps(copy.deepcopy(plain), 2, seed=1)
        ended_in = set()
        # From 512 bytes, the smallest block of the allocator, to 3 MiB, which suffice for a step.
        for size in (2**9 * 3**k for k in range(9)):
            trained = copy.deepcopy(plain)
            try:
                with limited_memory(size):
                    steps(trained, 1, seed=1)
                ended_in.add("nowhere")
            except torch.OutOfMemoryError as error:
                files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
                in_optimizer = any("torch/optim" in file for file in files)
                ended_in.add("optimizer" if in_optimizer else "elsewhere")
                again = steps(trained, 2, seed=1)
                assert finite(again), (recipe, size)
                # An optimizer that failed may have updated a part of the weights, and stochastic
                # rounding may have drawn random numbers.
                if not in_optimizer and "without_master.py" not in files[-1]:
                    assert again == expected, (recipe, size, files[-3:])
        assert {"elsewhere", "nowhere"} <= ended_in, (recipe, ended_in)


# ---- the tests

ON_CARD = (
    checkpoints_continue_on_the_other_device,
    checkpoints_and_copies_continue_on_the_card_bit_for_bit,
    forks_and_twins_of_a_run,
    the_card_gives_what_the_cpu_gives,
    diagnosis_of_a_script_that_trains_on_the_card,
    a_model_or_a_batch_on_another_device_is_refused,
    a_card_that_is_full_in_a_step,
)


@pytest.fixture(scope="module")
def outcomes(simulated_gpu: Any) -> Outcomes:
    return simulated_gpu("T4", list(ON_CARD), timeout=200 * slowness())


@pytest.mark.slow
@pytest.mark.parametrize("function", ON_CARD)
def test_on_the_card(outcomes: Outcomes, function: Callable[[], Any]) -> None:
    assert not outcomes[function]


RECIPES_MOVED = ("O1", "O2", "FP8 delayed", "BF16 stochastic")


def losses_after_saving(folder: str) -> dict[str, list[str]]:
    """Save a run of each recipe on the card, take more steps, and return their losses."""
    losses = {}
    for recipe in RECIPES_MOVED:
        trained = engine(recipe)
        steps(trained)
        save_checkpoint(Path(folder, f"{recipe}.pt"), trained)
        losses[recipe] = steps(trained, seed=1)
    return losses


@pytest.mark.slow
def test_a_run_continues_on_a_machine_without_a_gpu(simulated_gpu: Any, tmp_path: Path) -> None:
    on_card = simulated_gpu("T4", losses_after_saving, str(tmp_path))
    for recipe in RECIPES_MOVED:
        resumed = engine(recipe, "cpu")
        with recorded_warnings() as messages:
            load_checkpoint(tmp_path / f"{recipe}.pt", resumed)
        losses = steps(resumed, seed=1)
        if recipe in STOCHASTIC:
            assert "not bit for bit" in messages[0]
            assert finite(losses)
        else:
            assert losses == on_card[recipe], recipe
            assert messages == [], recipe


# ---- every recipe on every task: the same losses, bit for bit where it can be

STEPS = 4


def on_both(pairs: list[list[str]]) -> list[list[Any]]:
    """Train pairs of a task and a recipe on the card and on the CPU.

    The simulated card runs the CPU's kernels, so a difference comes from labkit. Three things
    differ as on a real card: random numbers; attention, which has several kernels, so both devices
    use the plain one here; and an LSTM, whose fused cells store the two products of a step in the
    input's format.

    Returns:
        For each pair its names, and the losses and the metric on the card and on the CPU.
    """
    rows = []
    for task, recipe in pairs:
        results = []
        for device in ("cuda", "cpu"):
            with sdpa_kernel(SDPBackend.MATH):
                record = train(
                    replace(TASKS[task], steps=STEPS),
                    RECIPES[recipe],
                    0,
                    device=device,
                    measure_every=2,
                )
            assert ("simulated" in record.device) == (device == "cuda")
            results.append([*(step.loss for step in record.steps), record.metric])
        rows.append([task, recipe, *results])
    return rows


def problem(task: str, recipe: str, card: list[float], cpu: list[float]) -> str:
    """Return how the results of both devices contradict each other, or ""."""
    if len(card) != STEPS + 1:
        return f"{len(card) - 1} steps"
    if recipe in STOCHASTIC:
        if not all(math.isfinite(loss) for loss in card[:STEPS]):
            return "not finite"
        # Only the first loss was computed before a number was drawn.
        card = card[:1]
        cpu = cpu[:1]
    if task == "char_lstm":
        # The fused cell rounds once more: by half of epsilon.
        unit = (BF16 if recipe.startswith("BF16") else FP16).epsilon / 2
        return (
            ""
            if np.allclose(card[:STEPS], cpu[:STEPS], rtol=unit, atol=0.0, equal_nan=True)
            else "not near"
        )
    return "" if np.array_equal(card, cpu, equal_nan=True) else "not equal"


def assert_equal_results(rows: list[list[Any]]) -> None:
    problems = {
        (task, recipe): [problem(task, recipe, card, cpu), card, cpu]
        for task, recipe, card, cpu in rows
    }
    assert rows
    assert {row: details for row, details in problems.items() if details[0]} == {}


def test_recipes_and_tasks_train_equally_on_the_card(simulated_gpu: Any) -> None:
    pairs = [("digits", recipe) for recipe in RECIPES]
    tasks = [task for task in TASKS if task not in ("digits", "segmentation")]
    pairs += zip(tasks, itertools.cycle(("O1", "O2")), strict=False)
    assert_equal_results(simulated_gpu("T4", on_both, pairs, timeout=200 * slowness()))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("task", TASKS)
def test_all_recipes_train_each_task_equally_on_the_card(simulated_gpu: Any, task: str) -> None:
    pairs = [(task, recipe) for recipe in RECIPES]
    assert_equal_results(simulated_gpu("T4", on_both, pairs, timeout=600 * slowness()))
