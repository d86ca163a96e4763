"""The program in plain torch that the workbench prints for its knobs."""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from labkit.amp import RECIPES
from labkit.train import TASKS, Task, TrainingRun
from labkit.widgets.live_training.forked_run import ForkedRun
from labkit.widgets.live_training.knobs import (
    Knobs,
    Scaling,
    knobs_of,
)
from labkit.widgets.workbench.lines import torch_lines
from tests.widgets.forked_runs import DIGITS, bench_of, losses, run_through


def plain_losses(knobs: Knobs, task: Task, steps: int = 12) -> list[float]:
    """Return the losses of the printed program, on the batches of the workbench."""
    # The run has the same initial weights and batches.
    run = TrainingRun(task, RECIPES["FP32"], 0)
    scope = {"model": run.model, "make_optimizer": task.make_optimizer, "loss_of": task.loss}
    scope["batches"] = [run.batch(step) for step in range(1, steps + 1)]
    exec(torch_lines(knobs, task), scope)
    return scope["losses"]


@pytest.mark.parametrize("task", ["digits", "autoencoder"])
def test_printed_lines_of_fp32_give_the_same_losses(task: str) -> None:
    bench = run_through(bench_of("FP32", task, 12))
    assert plain_losses(bench.run.wanted, TASKS[task]) == losses(bench.run.steps)


@pytest.mark.parametrize(
    "recipe", ["O1", "O2", "O3", "FP16 static", "FP16 no master", "BF16", "BF16 no master"]
)
def test_printed_lines_of_16_bits_give_close_losses(recipe: str) -> None:
    bench = run_through(bench_of(recipe, "digits", 12))
    # Some ulps of the format, over twelve steps.
    bound = 2.0**-5 if "BF16" in recipe else 2.0**-8
    assert plain_losses(bench.run.wanted, DIGITS) == pytest.approx(
        losses(bench.run.steps), rel=bound
    )


class CustomAdam(torch.optim.Adam):
    """An optimizer with a name that torch.optim lacks."""


def make_custom(weights: Iterable[Tensor], lr: float) -> torch.optim.Optimizer:
    return CustomAdam(weights, lr=lr / 2)


def notebooks_adam() -> type[torch.optim.Adam]:
    """Return an optimizer of a notebook with the name of torch's, which cannot be imported."""

    class Adam(torch.optim.Adam):
        pass

    return Adam


UNNAMED = "optimizer = make_optimizer(model.parameters())"
# A task's optimizer, and its line in the printed program of a run at four times the learning rate.
OPTIMIZERS = {
    "a class that can be imported": (
        partial(CustomAdam, lr=1e-3),
        f"from {__name__} import CustomAdam",
    ),
    "a function": (
        partial(make_custom, lr=1e-3),
        "optimizer = make_custom(model.parameters(), lr=0.001)",
    ),
    "a learning rate of all digits": (
        partial(torch.optim.Adam, lr=0.1 / 3),
        f"torch.optim.Adam(model.parameters(), lr={0.1 / 3 * 4!r})",
    ),
    "an unknown learning rate": (torch.optim.Adam, UNNAMED),
    "a class that cannot be imported": (partial(notebooks_adam(), lr=1e-3), UNNAMED),
    "an option of two numbers": (
        partial(torch.optim.Adam, lr=1e-3, betas=(0.8, 0.9)),
        "torch.optim.Adam(model.parameters(), lr=0.004, betas=",
    ),
    "an option whose repr is no Python literal": (
        partial(CustomAdam, lr=np.float64(1e-3)),
        UNNAMED,
    ),
}


@pytest.fixture(params=OPTIMIZERS)
def optimized(request: pytest.FixtureRequest) -> tuple[ForkedRun, str]:
    """A finished run at four times the learning rate of a task, and the line of its optimizer."""
    make_optimizer, line = OPTIMIZERS[request.param]
    task = replace(DIGITS, name="custom", make_optimizer=make_optimizer)
    bench = ForkedRun(task, RECIPES["FP32"], steps=12, device="cpu")
    bench.handle(partial(bench.turn, {"log2_lr": 2}))
    return run_through(bench), line


def test_printed_lines_name_the_optimizer(optimized: tuple[ForkedRun, str]) -> None:
    bench, line = optimized
    assert line in torch_lines(bench.run.wanted, bench.task)


def test_printed_lines_with_an_optimizer_give_the_same_losses(
    optimized: tuple[ForkedRun, str],
) -> None:
    bench, _ = optimized
    assert plain_losses(bench.run.wanted, bench.task) == losses(bench.run.steps)


def test_printed_lines_have_all_digits_of_a_scaler() -> None:
    growth_factor = 2.0 ** (1 / 1000)
    scaler = replace(
        RECIPES["FP16 dynamic"].scaler, growth_factor=growth_factor, floor=1.0, cap=2.0**24
    )
    knobs = knobs_of(replace(RECIPES["FP16 dynamic"], name="slow", scaler=scaler))
    lines = torch_lines(knobs, DIGITS)
    assert f"growth_factor={growth_factor!r}," in lines
    assert "no such knobs; here they were floor=1.0, cap=16777216.0" in lines


def large_loss(out: Tensor, targets: Tensor) -> Tensor:
    return DIGITS.loss(out, targets) * 1e8


def test_printed_lines_skip_steps_with_inf_as_the_run_does() -> None:
    task = replace(DIGITS, name="large", loss=large_loss)
    bench = ForkedRun(task, RECIPES["FP16"], steps=4, device="cpu")
    run_through(bench)
    assert bench.run.wanted.scaling is Scaling.OFF
    assert not any(step.stepped for step in bench.run.steps)
    # Without a step the loss of a batch is finite, and that of the first weights.
    assert np.isfinite(plain_losses(bench.run.wanted, task, steps=4)).all()
