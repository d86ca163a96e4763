"""Widget and still picture of the game against the scaler.

Invariant: a frame that names the command's number answers every command of the browser. The
scaler's scale and the window are drawn only on request and after the end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from labkit.records import made_on
from labkit.train import TASKS, Task
from labkit.widgets.base.figures import (
    FORMAT_COLOURS,
    QUIET,
    Curve,
    Panel,
    on_any_page,
    steps_figure,
    why_still,
)
from labkit.widgets.beat_scaler.game import (
    LOG2_RANGE,
    SCALERS,
    TASK,
    Duel,
    MakeRun,
    make_run,
    on_slider,
    weighted_trace,
)
from labkit.widgets.driven.controller import Command
from labkit.widgets.driven.widget import DrivenWidget, on, row_of
from labkit.widgets.scaler_timeline.trace import config_state, recorded_trace, trace_state

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@on_any_page
def static_duel(duel: Duel, *, why: str = "") -> Figure:
    """Draw the game so far."""
    sides = [
        (duel.scalers.steps[: len(duel.steps)], QUIET, "scaler"),
        (duel.steps, FORMAT_COLOURS["FP16"], "you"),
    ]
    losses = [
        Curve([step.loss for step in steps], colour, name, width=1.3)
        for steps, colour, name in sides
    ]
    scales = [
        Curve(
            [math.log2(step.scale) for step in steps],
            colour,
            crosses=[step.step for step in steps if step.skipped],
        )
        for steps, colour, name in sides
        if name == "you" or duel.revealed
    ]
    window = [step.overflows_at for step in duel.steps], [step.keeps_from for step in duel.steps]
    panels = [
        Panel("Loss of each batch, log scale", "loss", losses),
        Panel(
            "Loss scale (log2), skipped steps ×",
            "scale",
            scales,
            window if duel.revealed else None,
        ),
    ]
    return steps_figure(panels, duel.total, duel.sentence(), why)


class BeatTheScaler(DrivenWidget, folder="beat_scaler"):
    """A game: keep the loss scale of a real training in its window, beside a dynamic scaler.

    Args:
        task: The task that both sides train: a name in `TASKS`, or a Task.
        seed: The seed of the first weights, the batches and the course of the loss's weight.
        steps: The number of steps; at 8 steps per second, 480 steps take a minute.
        pace: The largest number of steps per second.
        device: "gpu", "cpu", a `Place`, or None for the GPU if there is one.
        make_run: Returns the run of a side; see `MakeRun`.

    Python code can do what the learner does: `press("start")`, `move(12)`, `show(True)`.

    Raises:
        TypeError: `steps` is not an int, or `pace` is not a number.
        ValueError: The task or the device does not exist, `steps` is less than 1, or `pace` is not
            positive.

    >>> game = BeatTheScaler(seed=1, steps=20, device="cpu")
    >>> game.phase, game.duel.log2_scale
    (<Phase.IDLE: 'idle'>, 16)
    >>> game.close()
    """

    why_static = why_still(
        'to play, or in code: game.press("start"), game.move(12), game.figure()', "This game stands"
    )

    def __init__(
        self,
        task: Task | str = TASK,
        seed: int = 0,
        *,
        steps: int = 480,
        pace: float = 8.0,
        device: Any = None,
        make_run: MakeRun = make_run,
    ) -> None:
        self.duel = Duel(
            row_of(TASKS, task, "task"),
            seed,
            steps=steps,
            pace=pace,
            device=device,
            make_run=make_run,
        )
        super().__init__(self.duel, range=list(LOG2_RANGE), start=self.duel.log2_scale)

    @property
    def sentence(self) -> str:
        return self.duel.sentence()

    @property
    def record_sentence(self) -> str:
        return self.duel.record_sentence()

    def page_records(self) -> tuple[dict[str, Any], list[bytes]]:
        """Return the recorded gradients under this game's weights, which a page plays with."""
        duel = self.duel
        if duel.recorded is None:
            return {}, []
        trace = recorded_trace()
        where = made_on(trace.device, trace.versions, trace.date)
        game = {
            "trace": trace_state(weighted_trace(trace, duel.course)),
            "scaler": config_state(SCALERS.scaler),
            "pace": duel.pace,
            "source": f"on recorded gradients of {trace.task.replace('_', ' ')}, {where}",
        }
        return {"game": game}, []

    def move(self, log2_scale: int) -> None:
        """Set the learner's scale to 2^log2_scale for the next steps, without waiting for them.

        Raises:
            ValueError: `log2_scale` is not a whole number from -4 to 30.
        """
        self.duel.ask(partial(self.duel.move, on_slider(log2_scale)))

    def show(self, window: bool = True) -> None:
        """Show the window of good scales, or hide it, without waiting for the effect."""
        self.duel.ask(partial(self.duel.show, window))

    def figure(self, why: str = "") -> Figure:
        return static_duel(self.duel, why=why)

    def state(self) -> dict[str, Any]:
        duel = self.duel
        tallies = duel.tallies()
        return {
            **super().state(),
            "title": "Beat the scaler",
            "detail": f"{duel.task.name.replace('_', ' ')}, seed {duel.seed}",
            "place": {
                "key": duel.place.key,
                "says": duel.place.sentence,
                "rates": f"both train on {on(duel.place)}",
            },
            "log2_scale": duel.log2_scale,
            "in_sight": duel.in_sight,
            "revealed": duel.revealed,
            "recorded": "" if duel.recorded is None else duel.recorded.source,
            "skipped": [side.skipped for side in tallies],
            "useful": [side.useful for side in tallies] if duel.revealed else None,
            "scores": [
                {
                    "steps": score.yours.steps,
                    "useful": [score.yours.useful, score.scalers.useful],
                    "skipped": [score.yours.skipped, score.scalers.skipped],
                    "lossy": [score.yours.lossy, score.scalers.lossy],
                    "peeked": score.peeked,
                }
                for score in duel.scores
            ],
        }

    def command(self, content: Mapping[str, Any]) -> Command:
        match content.get("do"):
            case "move":
                return partial(self.duel.move, on_slider(int(content["log2_scale"])))
            case "show":
                return partial(self.duel.show, bool(content["window"]))
        return super().command(content)
