"""Live training: a bench with three knobs and no fork. What has no knob here stays as the recipe has it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from labkit.amp import DYNAMIC, RECIPES, Recipe
from labkit.train import Task, places
from labkit.widgets.base.figures import why_still
from labkit.widgets.base.widget import script, style
from labkit.widgets.bench.bench import Bench, MakeRun, make_run
from labkit.widgets.bench.knobs import GROWTH_INTERVAL
from labkit.widgets.bench.widget import BenchWidget, position, tasks
from labkit.widgets.driven.widget import row_of

OFFERED = ("scaling", "log2_scale", "masters")


class LiveTraining(BenchWidget):
    """A training that runs while you change it, beside the FP32 run of the same seed.

    Args:
        task: what to learn; a name in `TASKS` (before a GPU, in `GPU_TASKS` too), or a Task.
        recipe: in which precision; a name in `RECIPES`, or a Recipe. The controls start where the recipe stands.
        seed: decides first weights and batches, of both runs.
        steps: how many; None takes the task's own number.
        device: where to train: "gpu", "cpu"; None takes the GPU where there is one.
        growth_interval: clean steps before a dynamic scale doubles. None: the recipe's own, or 25 where dynamic
            scaling is switched on here. (torch's 2,000 never happen in a short run.)
        make_run: (task, recipe, seed, device=) -> run, for those who bring their own.

    Everything the learner can press is here for code too: `press("start")`, `change(scaling="dynamic", log2_scale=12)`.

    Raises:
        ValueError: an unknown task, recipe or device, or a scale that the slider cannot show.

    >>> live = LiveTraining("digits", "FP16 static", seed=1, steps=20, device="cpu")
    >>> live.phase, live.history
    (<Phase.IDLE: 'idle'>, ())
    >>> live.sentence[:67]
    'Nothing has run yet. Press Start: FP16 with a static scale of 2^10 '
    >>> live.close()
    """

    title = "Live training"
    _esm = script("driven", "bench", "live")
    _css = style("driven", "bench", "live")
    why_static = why_still(
        'for its buttons, or go on in code: live.press("start"), live.change(scaling="off"), live.figure()'
    )

    def __init__(
        self,
        task: Task | str = "segmentation_small",
        recipe: Recipe | str = "FP16",
        seed: int = 0,
        *,
        steps: int | None = None,
        device: Any = None,
        growth_interval: int | None = None,
        make_run: MakeRun = make_run,
    ) -> None:
        chosen = row_of(RECIPES, recipe, "recipe")
        if growth_interval is not None:
            scaler = chosen.scaler if chosen.scaler.dynamic else DYNAMIC
            scaler = replace(scaler, growth_interval=growth_interval)  # refuses what is no interval
            chosen = replace(chosen, scaler=scaler) if chosen.scaler.dynamic else chosen
        super().__init__(
            Bench(
                row_of(tasks(places()), task, "task"),
                chosen,
                seed,
                steps=steps,
                device=device,
                offered=OFFERED,
                forkable=False,
                growth_interval=GROWTH_INTERVAL if growth_interval is None else growth_interval,
                make_run=make_run,
            )
        )

    def change(
        self, *, scaling: str | None = None, log2_scale: int | None = None, master_weights: bool | None = None
    ) -> None:
        """Change what is given, from the next step on; returns at once."""
        asked = {"scaling": scaling, "log2_scale": log2_scale, "masters": master_weights}
        knobs = {knob: position(knob, to) for knob, to in asked.items() if to is not None}
        self.bench.ask(partial(self.bench.turn, knobs))
