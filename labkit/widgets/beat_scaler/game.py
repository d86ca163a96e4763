"""A game: two runs in lockstep, one with a dynamic scaler, the other scaled by the learner.

In a usual training, the window of good scales hardly moves. Here the loss is multiplied by 2^w, and
w follows a course that neither side knows. The unscaled gradients are clipped to one norm before
the step, so w affects FP16 but not the optimizer. A step is useful if it was taken and kept its
gradients, and the score is the share of useful steps. Until the end, the widget shows only the
number of skipped steps, since a training does not report underflow either.

Invariant: both runs have the same first weights, batches and course. A move takes effect at the
next step. The same seed and moves give the same game. useful + skipped + lossy = steps.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labkit.amp import RECIPES, Recipe, ScalerState, static
from labkit.findings import counted
from labkit.formats.arguments import require_kind
from labkit.instrument import merge, shift, snapshot
from labkit.records import made_on
from labkit.train import TASKS, Place, Task, TrainingRun, place, recorded
from labkit.widgets.base.number_words import percent, short
from labkit.widgets.driven.controller import Button, Controller, Phase, Points
from labkit.widgets.scaler_timeline.trace import (
    Trace,
    keeps_from,
    overflow_exponent,
    recorded_trace,
    replay,
)

# The exponent of both scales at the start.
START_LOG2 = 16
# The range of w. With it, the window moves from about 2^14 ... 2^32 down to 2^-14 ... 2^4.
LOWEST_WEIGHT = -6
HIGHEST_WEIGHT = 22
# The steps before w first moves.
CALM_STEPS = 40
# This is below the norm of any step's gradients, at any w.
CLIP_NORM = 2.0**-20
LEARNING_RATE = 5e-3
EPSILON = 1e-12

# A third of the usual batch: two runs at eight steps a second leave a slow machine time to draw.
TASK = replace(TASKS["segmentation_small"], name="segmentation_small, batches of 8", batch_size=8)
YOURS = replace(RECIPES["FP16 dynamic"], name="FP16 by hand", scaler=static(2.0**START_LOG2))
# This scaler starts at 2^16, too, and grows after 25 clean steps.
SCALERS = RECIPES["FP16 dynamic"]
# The final loss is the mean over this many last steps.
LAST_STEPS = 20
# The range of the slider.
LOG2_RANGE = (-4, 30)
# The steps between two measurements of the window, each of which takes the time of about three.
MEASURE_EVERY = 8


def course(steps: int, seed: int = 0) -> tuple[int, ...]:
    """Return w at each step: it rests, climbs, jumps and falls at random.

    >>> course(100)[:40] == (0,) * 40, len(course(100))
    (True, 100)
    """
    generator = np.random.default_rng(seed)
    weights = [0.0] * CALM_STEPS
    current = 0.0
    levels = range(LOWEST_WEIGHT, HIGHEST_WEIGHT + 1)
    while len(weights) < steps:
        far_levels = [level for level in levels if abs(level - current) >= len(levels) / 2]
        target = float(generator.choice(far_levels))
        # A jump, a quick change or a slow one.
        duration = int(generator.choice([1, 20, 40]))
        weights += list(np.linspace(current, target, duration + 1)[1:])
        weights += [target] * int(generator.integers(20, 45))
        current = target
    return tuple(round(weight) for weight in weights[:steps])


@dataclass(frozen=True)
class GameStep:
    """A step of one side.

    Attributes:
        step: The number of the step, from 1.
        loss: The loss of the batch, without the factor 2^w.
        scale: The loss scale.
        skipped: Whether the gradients held inf or NaN, so that the weights did not change.
        keeps_from: The exponent of the scale below which more than 1% of the activation gradients
            underflow.
        overflows_at: The exponent of the scale from which the step overflows.
    """

    step: int
    loss: float
    scale: float
    skipped: bool
    keeps_from: float
    overflows_at: float

    @property
    def lossy(self) -> bool:
        """Whether the step was taken at a scale that loses gradients."""
        return not self.skipped and math.log2(self.scale) < self.keeps_from

    @property
    def useful(self) -> bool:
        """Whether the step was taken and kept its gradients."""
        return not self.skipped and not self.lossy


# Returns a run for (task, recipe, seed, w at each step, device=).
MakeRun = Callable[..., Any]


class WeightedRun(TrainingRun):
    """A run whose loss is multiplied by a power of two that changes from step to step."""

    def __init__(
        self, task: Task, recipe: Recipe, seed: int, weights: Sequence[int], **where: Any
    ) -> None:
        super().__init__(task, recipe, seed, measure_every=0, **where)
        self.log2_weights = weights

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return super().loss(inputs, targets) * 2.0 ** self.log2_weights[self.steps_done]

    def window(self) -> tuple[float, float]:
        """Return the window of the next step at w = 0, as exponents.

        Returns:
            The exponent of the smallest scale that loses no gradients, and that of the smallest
            scale that overflows.
        """
        twin = self.fp32_twin()
        weight = self.log2_weights[self.steps_done]
        activations = twin.next_gradients("activation gradients")
        weights = twin.next_gradients("weight gradients")
        histogram = merge(
            snapshot(activations, step=self.steps_done, kind="activation gradients").layers.values()
        )
        gradients = [*activations.values(), *weights.values()]
        largest = max(float(gradient.abs().max()) for gradient in gradients)
        overflows_at = overflow_exponent(largest) + weight
        return keeps_from(shift(histogram, -weight)), overflows_at


class ClippedAdam(torch.optim.Adam):
    """Adam on gradients that are always clipped, to one small norm of all together."""

    def step(self, closure: Any = None) -> Any:
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        torch.nn.utils.clip_grad_norm_(parameters, CLIP_NORM)
        return super().step(closure)


def make_run(
    task: Task, recipe: Recipe, seed: int, weights: Sequence[int], **where: Any
) -> WeightedRun:
    """Return a run with clipped gradients; see `MakeRun` for the arguments."""
    clipped = replace(task, make_optimizer=partial(ClippedAdam, lr=LEARNING_RATE, eps=EPSILON))
    return WeightedRun(clipped, recipe, seed, weights, **where)


@dataclass(frozen=True)
class Tally:
    """The result of one side.

    Attributes:
        steps: The number of steps.
        skipped: The number of skipped steps.
        lossy: The number of steps at a scale that loses gradients.
        loss: The mean loss over the last steps; NaN without steps.
    """

    steps: int = 0
    skipped: int = 0
    lossy: int = 0
    loss: float = float("nan")

    @property
    def useful_steps(self) -> int:
        """The number of steps that were taken and kept their gradients."""
        return self.steps - self.skipped - self.lossy

    @property
    def useful(self) -> float:
        """The score: the share of useful steps."""
        return self.useful_steps / self.steps if self.steps else 0.0


def tally(steps: Sequence[GameStep]) -> Tally:
    """Return the result of one side's steps.

    >>> clean = GameStep(
    ...     1, loss=0.5, scale=2.0**16, skipped=False, keeps_from=8.0, overflows_at=20.0
    ... )
    >>> tally([clean, clean]).useful
    1.0
    """
    last = steps[-LAST_STEPS:]
    return Tally(
        steps=len(steps),
        skipped=sum(step.skipped for step in steps),
        lossy=sum(step.lossy for step in steps),
        loss=sum(step.loss for step in last) / len(last) if last else float("nan"),
    )


@dataclass(frozen=True)
class Score:
    """The result of a game.

    Attributes:
        yours: The learner's result.
        scalers: The scaler's result.
        peeked: Whether the window was shown during the game.
    """

    yours: Tally
    scalers: Tally
    peeked: bool


def on_slider(log2_scale: int) -> int:
    """Return an exponent unchanged if the slider has it.

    Raises:
        ValueError: If it is not a whole number in `LOG2_RANGE`.
    """
    low, high = LOG2_RANGE
    is_whole = isinstance(log2_scale, Integral) and not isinstance(log2_scale, bool)
    if not is_whole or not low <= log2_scale <= high:
        raise ValueError(
            f"log2_scale: expected a whole number from {low} to {high}, got {log2_scale!r}"
        )
    return int(log2_scale)


@dataclass
class Side:
    """One of the two sides.

    Attributes:
        make: Returns the run.
        run: The run; None until `build`.
        steps: The steps so far.
        window: The window at w = 0 at its last measurement, as exponents.
    """

    make: Callable[[], Any]
    run: Any = None
    steps: list[GameStep] = field(default_factory=list)
    window: tuple[float, float] = (0.0, 0.0)

    @property
    def done(self) -> int:
        """The number of steps."""
        return len(self.steps)

    def build(self) -> None:
        """Make the run, unless it exists."""
        if self.run is None:
            self.run = self.make()

    def step(self, course: Sequence[int], state: ScalerState | None = None) -> None:
        """Do a step, and record it with its window.

        Args:
            course: w at each step.
            state: The state of the scaler for this step; by default the run's own.
        """
        if state is not None:
            self.run.scaler = state
        log2_weight = course[len(self.steps)]
        if len(self.steps) % MEASURE_EVERY == 0:
            self.window = self.run.window()
        keeps_from, overflows_at = self.window
        record = self.run.step()
        self.steps.append(
            GameStep(
                step=record.step,
                loss=record.loss / 2.0**log2_weight,
                scale=record.scale,
                skipped=not record.stepped,
                keeps_from=keeps_from - log2_weight,
                overflows_at=overflows_at - log2_weight,
            )
        )


class Duel(Controller):
    """The controller of a game.

    Args:
        task: The task that both sides train.
        seed: The seed of weights, batches and course.
        steps: The number of steps.
        pace: Steps per second.
        device: "cpu", "gpu", a `Place`, or None for the best one.
        make_run: Returns a run; see `MakeRun`.
        clock: Returns a monotonic time in seconds.
        wait: Waits for a number of seconds.

    Raises:
        TypeError: If `steps` is not an int, or `pace` not a number.
        ValueError: If `steps` is less than 1, `pace` is not positive, or the device does not exist.
    """

    # A game has no single steps.
    buttons = frozenset(Button) - {Button.STEP}

    def __init__(
        self,
        task: Task,
        seed: int = 0,
        *,
        steps: int = 480,
        pace: float = 8.0,
        device: Any = None,
        make_run: MakeRun = make_run,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        require_kind(steps, int, "steps")
        require_kind(pace, (int, float), "pace")
        if steps < 1 or not pace > 0:
            raise ValueError(
                f"a game: expected 1 step or more and a positive pace, got {steps} and {pace}"
            )
        super().__init__()
        self.task = task
        self.seed = seed
        self.total = steps
        self.pace = pace
        self.place = place(device)
        self.course = course(steps, seed)
        self.make_run = make_run
        self._clock = clock
        self._wait = wait
        self.in_sight = False
        self._peeked = False
        self._begun = False
        self._earlier: list[Score] = []
        self.scalers = Side(lambda: None)
        self.yours = Side(lambda: None)
        self.begin_again()

    def begin_again(self) -> None:
        self._earlier = self.scores
        make_side = partial(self.make_run, seed=self.seed, weights=self.course, device=self.place)
        self.scalers = Side(partial(make_side, self.task, SCALERS))
        self.yours = Side(partial(make_side, self.task, YOURS))
        self.log2_scale = START_LOG2
        self._peeked = self.in_sight
        self._next = 0.0

    # --- commands ---------------------------------------------------------------------------------

    def move(self, log2_scale: int) -> None:
        """Put the scale to 2^log2_scale from the next step on."""
        self.log2_scale = on_slider(log2_scale)

    def show(self, window: bool) -> None:
        """Show the window, or hide it. The score says so if it was shown before the game's end."""
        self.in_sight = window
        if self.phase is Phase.IDLE:
            # Only a window that is still shown at the first step counts.
            self._peeked = window
        elif self.phase is not Phase.FINISHED:
            self._peeked = self._peeked or window

    def train_on(self, where: Place) -> None:
        self.place = where
        self.begin_again()
        self.enter(Phase.IDLE)

    # --- steps ------------------------------------------------------------------------------------

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.scalers, self.yours

    @property
    def steps(self) -> list[GameStep]:
        return self.yours.steps

    def lead(self) -> bool:
        """Wait for the pace, and let the scaler do the step that is due."""
        if len(self.scalers.steps) > len(self.steps):
            return False
        self._begun = True
        self._wait(max(0.0, self._next - self._clock()))
        self._next = max(self._next, self._clock()) + 1 / self.pace
        self.scalers.step(self.course)
        return True

    def follow(self) -> None:
        """Do the learner's step, at the scale of the slider."""
        self.yours.step(self.course, ScalerState(2.0**self.log2_scale))

    # --- what the widget shows --------------------------------------------------------------------

    @property
    def recorded(self) -> Demonstration | None:
        """The recorded game that is shown until the learner's first game begins."""
        if self.phase is not Phase.IDLE or self._begun:
            return None
        try:
            return demonstration(self.total, self.seed)
        except FileNotFoundError:
            # A data folder of the user may lack the record.
            return None

    def points(self) -> list[Points]:
        shown: Sequence[GameStep] = () if self.recorded is None else self.recorded.steps
        sides = (
            (self.yours.steps, len(self.steps)),
            (self.scalers.steps, len(self.steps)),
            (shown, len(shown)),
        )
        return [(steps, _columns, count) for steps, count in sides]

    @property
    def revealed(self) -> bool:
        """Whether the window and the scaler's scale are shown: on request, or after the game."""
        return self.phase is Phase.FINISHED or self.in_sight

    def tallies(self) -> tuple[Tally, Tally]:
        """Return the results of the learner and of the scaler, up to the learner's last step."""
        return tally(self.steps), tally(self.scalers.steps[: len(self.steps)])

    @property
    def scores(self) -> list[Score]:
        """The results of all games of this widget that ended, in the order of the games."""
        if self.phase is not Phase.FINISHED or not self.steps:
            return list(self._earlier)
        return [*self._earlier, Score(*self.tallies(), self._peeked)]

    def sentence(self) -> str:
        """Return the state of the game, or the verdict when it is over."""
        yours, scaler = self.tallies()
        if self.phase is Phase.FAILED:
            return f"The game ended by an error: {self.error} Press Reset to begin again."
        if self.building:
            return "Getting ready: the data, and the same network twice."
        if not yours.steps:
            return (
                "Press Start and keep the scale in the window, which you do not see: ↑ "
                "doubles the scale, ↓ halves it. Beside you a dynamic scaler trains the "
                f"same network on the same batches.{self._on_record()}"
            )
        if self.phase is Phase.FINISHED:
            return self._verdict(yours, scaler)
        return self._standing(yours, scaler)

    def _standing(self, yours: Tally, scaler: Tally) -> str:
        """Return the sentence about a game that has not ended."""
        word = "Paused at step" if self.phase is Phase.PAUSED else "Step"
        where = f"{word} {yours.steps} of {self.total}: "
        if self.in_sight:
            return f"{where}{_useful_counts(yours, scaler, 'your steps')}"
        noun = "step" if yours.skipped == 1 else "steps"
        skipped = f"you have skipped {yours.skipped} {noun}, the scaler {scaler.skipped}."
        return f"{where}{skipped} The end adds those that lost gradients."

    def _verdict(self, yours: Tally, scaler: Tally) -> str:
        """Return the sentences about a game that has ended."""
        verdict = "A draw"
        if yours.useful > scaler.useful:
            verdict = "You win"
        elif yours.useful < scaler.useful:
            verdict = "The scaler wins"
        if self._peeked:
            verdict += " with the window in sight"
        counts = _useful_counts(yours, scaler, f"your {counted(yours.steps, 'step')}")
        if yours.steps < self.total:
            counts += f" You stopped at step {yours.steps} of {self.total}."
        lossy = f"You skipped {yours.skipped} and ran {yours.lossy} at a scale that loses gradients"
        other = f"the scaler {scaler.skipped} and {scaler.lossy}"
        losses = f"Loss at the end: {short(yours.loss)} against {short(scaler.loss)}."
        return f"{verdict}: {counts} {lossy}; {other}. {losses}"

    def record_sentence(self) -> str:
        """Return the sentence about the recorded scaler; "" if there is no record to show."""
        if self.recorded is None:
            return ""
        useful = percent(tally(self.recorded.steps).useful)
        return (
            f"A scaler alone, in a window that moved in another way; {useful} of its steps were "
            "useful."
        )

    def _on_record(self) -> str:
        """Return `record_sentence` as the end of the sentence before a game."""
        shown = self.record_sentence()
        return f" Drawn faintly: {shown[:1].lower()}{shown[1:]}" if shown else ""


@dataclass(frozen=True)
class Demonstration:
    """A scaler alone in a window that moves: its steps, and where they were recorded."""

    steps: tuple[GameStep, ...]
    source: str


@cache
def demonstration(steps: int, seed: int) -> Demonstration:
    """Return the scaler replayed on the recorded trace, under the loss weights of another seed.

    The course is not that of the game with this seed, so it gives nothing away.
    """
    trace = recorded_trace()
    run = recorded(TASKS["segmentation_small"].name, "FP16 static", 0)
    weighted = weighted_trace(trace, course(min(steps, len(trace), len(run.steps)), seed + 1))
    played = replay(SCALERS.scaler, weighted)
    rows = zip(
        run.steps, played.scale, played.skipped, weighted.keeps_from, weighted.largest, strict=False
    )
    shown = tuple(
        GameStep(
            step.step,
            step.loss,
            float(scale),
            bool(skip),
            keeps,
            overflow_exponent(largest),
        )
        for step, scale, skip, keeps, largest in rows
    )
    where = made_on(trace.device, trace.versions, trace.date)
    return Demonstration(shown, f"recorded gradients of {trace.task}, {where}; replayed")


def weighted_trace(trace: Trace, log2_weights: Sequence[int]) -> Trace:
    """Return the first steps of a trace with the loss multiplied by these powers of two."""
    return replace(
        trace,
        largest=tuple(
            largest * 2.0**weight
            for largest, weight in zip(trace.largest, log2_weights, strict=False)
        ),
        keeps_from=tuple(
            edge - weight for edge, weight in zip(trace.keeps_from, log2_weights, strict=False)
        ),
    )


def _useful_counts(yours: Tally, scaler: Tally, what: str) -> str:
    """Return a sentence with the numbers of useful steps.

    Rounded shares could be equal although one side has won.

    Args:
        yours: The learner's result.
        scaler: The scaler's result.
        what: The learner's steps, as text.
    """
    were = "was" if yours.useful_steps == 1 else "were"
    return f"{yours.useful_steps} of {what} {were} useful, {scaler.useful_steps} of the scaler's."


def _columns(step: GameStep) -> tuple[float, ...]:
    """Return the numbers of a step that the page draws (COLUMNS of plot.js)."""
    return (step.loss, step.scale, step.skipped, step.keeps_from, step.overflows_at)
