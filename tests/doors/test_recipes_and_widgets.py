"""Recipes given to widgets: each is trained exactly as given, or refused with a remedy.

The oracle is the loop of `TrainingRun` itself, on a task whose Adam has an epsilon of its own.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial

import pytest
import torch

from labkit.amp import DYNAMIC, PRESETS, RECIPES, Recipe, static
from labkit.train import TASKS, StepRecord, TrainingRun
from labkit.widgets import LiveTraining, StepDebugger, TrainingBar, Workbench
from labkit.widgets.driven.controller import Button

STEPS = 5
TASK = replace(
    TASKS["digits"], batch_size=8, make_optimizer=partial(torch.optim.Adam, lr=3e-3, eps=3e-5)
)
O2 = RECIPES["O2"]
SCALERS = {
    **PRESETS,
    "a factor of 3": replace(DYNAMIC, growth_factor=3.0, backoff_factor=0.25, growth_interval=2),
    "static, no power of two": static(1000.0),
    "static, nobody looks for inf": static(2.0**30, skip_on_inf=False),
    "none, nobody looks for inf": static(1.0, skip_on_inf=False),
    "an overflow, then hysteresis": replace(
        DYNAMIC, init_scale=2.0**30, hysteresis=3, floor=2.0**20
    ),
}
GIVEN = [
    *RECIPES.values(),
    *(replace(O2, name=f"O2, {name}", scaler=scaler) for name, scaler in SCALERS.items()),
]


@cache
def by_hand(recipe: Recipe) -> list[StepRecord]:
    run = TrainingRun(TASK, recipe, seed=5)
    return [run.step() for _ in range(STEPS)]


def driven(kind: type[LiveTraining | Workbench], recipe: Recipe) -> list[StepRecord]:
    """Press Start and take every step here, not in the widget's thread."""
    widget = kind(TASK, recipe, 5, steps=STEPS, device="cpu")
    widget.forked_run.handle(Button.START)
    while widget.forked_run.due:
        widget.forked_run.tick()
    widget.close()
    assert widget.forked_run.error == ""
    return list(widget.history)


def bar(recipe: Recipe) -> list[StepRecord]:
    widget = TrainingBar(TASK, recipe, 5, steps=STEPS, device="cpu")
    widget.start()
    return list(widget.wait(60).steps)


def debugger(recipe: Recipe) -> list[StepRecord]:
    widget = StepDebugger(TASK, recipe, seed=5)
    steps = []
    for _ in range(4):
        seen = widget.watched
        steps.append(StepRecord(seen.step, seen.loss, seen.scale, seen.found_inf, seen.stepped))
        widget.another_step()
    return steps


def plain(steps: list[StepRecord]) -> list[str]:
    """Return steps as text, in which NaN equals NaN, without what was measured of them."""
    return [repr(replace(step, underflow=None, swallowed=None)) for step in steps]


NO_SLIDER = ["O2, Megatron", "O2, static, no power of two"]


@pytest.mark.parametrize(
    ("trained", "refused"),
    [
        (partial(driven, LiveTraining), NO_SLIDER),
        (partial(driven, Workbench), ["FP8", *NO_SLIDER]),
        (bar, []),
        (debugger, []),
    ],
    ids=["live", "workbench", "bar", "debugger"],
)
def test_recipe_is_trained_as_given_or_refused(trained, refused) -> None:
    """Refused is only what a knob cannot show."""
    refusals = {}
    for recipe in GIVEN:
        try:
            steps = trained(recipe)
            assert steps
            assert plain(steps) == plain(by_hand(recipe))[: len(steps)], recipe.name
        except ValueError as error:
            refusals[recipe.name] = str(error)
    assert list(refusals) == refused
    assert all(name in message and "Take " in message for name, message in refusals.items())


@pytest.fixture
def bench() -> Iterator[Workbench]:
    """A workbench with DeepSpeed's scaler, which has a hysteresis and a floor."""
    widget = Workbench(TASK, replace(O2, scaler=PRESETS["DeepSpeed"]), 5, steps=STEPS, device="cpu")
    yield widget
    widget.close()


def test_the_program_in_plain_torch_names_what_it_cannot_have(bench: Workbench) -> None:
    for line in (
        "growth_interval=1000",
        "# torch's GradScaler has no such knobs; here they were hysteresis=2, floor=1",
        "eps=3e-05",
    ):
        assert line in bench.lines


def test_a_knob_keeps_what_it_does_not_turn(bench: Workbench) -> None:
    """Off and on again: hysteresis and floor are still those of the recipe."""
    for knob, value in (("log2_scale", 20), ("scaling", "off"), ("scaling", "dynamic")):
        bench.forked_run.handle(bench.command({"do": "turn", "knob": knob, "to": value}))
    bench.forked_run.handle(Button.STEP)
    bench.forked_run.tick()
    assert bench.forked_run.run.run.recipe.scaler == replace(
        PRESETS["DeepSpeed"], init_scale=2.0**20
    )
