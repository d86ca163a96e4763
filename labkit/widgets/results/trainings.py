"""Static pictures of trainings: recorded runs of several recipes, and one training of the clinic.

Invariant: recorded runs are marked as recorded, with device, version and date. In the picture of a
training of the clinic, a loss that is not finite is a cross, and so is a step after which the scale
fell.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from textwrap import fill
from typing import TYPE_CHECKING, Protocol

import numpy as np

from labkit.findings import counted
from labkit.train import RunRecord, recorded_throughput, throughput_sentence
from labkit.widgets.base.figures import (
    BROAD,
    FATE_COLOURS,
    FORMAT_COLOURS,
    INK,
    End,
    described,
    name_ends,
    new_figure,
    on_any_page,
    panel,
    power_ticks,
    raised,
    wrapped,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The format by which a recipe is coloured, by the recipe's first word. All others are FP16.
FORMAT_OF = {
    "FP32": "FP32",
    "O0": "FP32",
    "TF32": "TF32",
    "BF16": "BF16",
    **dict.fromkeys(("FP8", "MXFP8", "NVFP4", "unit"), "E4M3"),
}
# FP32 is broad and the next line solid. The others have gaps, which show the lines below them.
DASHES = ("-", "-", (0, (6, 5)), (0, (2, 5)), (0, (1, 2)), (0, (6, 3, 1, 3)))
MARKERS = "os^DvP"
# The number of losses in a mean that is drawn; fewer for shorter runs.
SMOOTHED_STEPS = 10


class Treatment(Protocol):
    """The results of a training of the clinic: the attributes of its Treatment that are drawn.

    Attributes:
        losses: The loss of each step.
        scales: The loss scale of each step; empty without a GradScaler.
        steps: The number of optimizer steps.
        score: The score of the trained model.
        error: The error that ended the training, or "".
    """

    losses: Sequence[float]
    scales: Sequence[float]
    steps: int
    score: float
    error: str


@on_any_page
def race_figure(records: Sequence[RunRecord]) -> Figure:
    """Draw runs of one task: smoothed losses on the left, the metric of each seed on the right.

    Raises:
        ValueError: `records` is empty, or has several tasks, devices or versions of torch, or a
            run without steps.
    """
    from matplotlib.ticker import LogLocator, NullFormatter

    origins = sorted({(r.task, r.device, r.versions["torch"]) for r in records})
    if len(origins) != 1:
        raise ValueError(
            f"race_figure draws runs of one task, device and torch; these are {origins or 'none'}"
        )
    if not all(r.steps for r in records):
        raise ValueError("race_figure draws losses; expected runs with steps, got one without")
    recipes = list(dict.fromkeys(r.recipe for r in records))
    figure = new_figure(11, 4, layout="constrained")
    losses, metrics = figure.subplots(1, 2, width_ratios=(3, 2))
    window = min([SMOOTHED_STEPS, *(len(r.steps) for r in records)])
    ends = []
    for i, recipe in enumerate(recipes):
        runs = [r for r in records if r.recipe == recipe]
        ends.append(_draw_losses(losses, runs, i, window))
        _draw_metrics(metrics, runs, i)
    losses.set(xlabel="step", ylabel=f"loss (mean of {counted(window, 'step')})", yscale="log")
    losses.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    losses.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    losses.yaxis.set_minor_formatter(NullFormatter())
    losses.set_xlim(0, max(len(r.steps) for r in records))
    name_ends(losses, ends)
    metrics.set(xlabel=records[0].metric_name, yticks=range(len(recipes)), yticklabels=recipes)
    metrics.set_ylim(len(recipes) - 0.5, -0.5)
    metrics.grid(axis="x", alpha=0.3)
    for axes in (losses, metrics):
        axes.spines[["top", "right"]].set_visible(False)
    figure.supxlabel(fill(race_sentence(records), 150), fontsize=10)
    figure.suptitle(_title(records), fontsize=10)
    return described(figure, f"{_title(records)}.", race_sentence(records))


def _title(records: Sequence[RunRecord]) -> str:
    """Return the task of runs, and where and when they were recorded."""
    first = records[0]
    dates = sorted({r.date[:10] for r in records})
    when = dates[0]
    if len(dates) > 1:
        when = f"{dates[0]} to {dates[-1]}"
    return f"Recorded: {first.task}, on {first.device} with torch {first.versions['torch']}, {when}"


def race_sentence(records: Sequence[RunRecord]) -> str:
    """Return a text with each recipe's mean metric, the range of FP32's metrics, and the speeds.

    The range is given for several seeds. Speeds are given only for runs that were timed, each alone
    on one device.

    Raises:
        ValueError: `records` is empty.
    """
    if not records:
        raise ValueError("expected at least one record, got none")
    metrics: dict[str, list[float]] = {}
    for record in records:
        metrics.setdefault(record.recipe, []).append(record.metric)
    means = "; ".join(f"{recipe} {fmean(values):.2f}" for recipe, values in metrics.items())
    sentences = [f"Mean {records[0].metric_name}: {means}."]
    fp32 = metrics.get("FP32", [])
    if len(fp32) > 1:
        sentences.append(f"FP32's seeds range from {min(fp32):.2f} to {max(fp32):.2f}.")
    throughput = recorded_throughput(records)
    if throughput:
        sentences.append(throughput_sentence(throughput, records[0].device))
    return " ".join(sentences)


def _colour(recipe: str) -> str:
    """Return the colour of a recipe, which is that of its format."""
    return FORMAT_COLOURS[FORMAT_OF.get(recipe.split()[0], "FP16")]


def _draw_losses(axes: Axes, runs: Sequence[RunRecord], row: int, window: int) -> End:
    """Draw the losses of a recipe's runs, as means of `window` steps.

    Args:
        axes: Where to draw.
        runs: The runs of one recipe.
        row: The number of the recipe, which decides the style of the line.
        window: The number of losses in a mean, at most the steps of the shortest run.

    Returns:
        The recipe's name at the median of the last finite means.
    """
    recipe = runs[0].recipe
    # Later lines are thinner and lie above, so that the edges of lines below stay visible.
    width = max(2.0 - 0.25 * row, 0.8)
    order = 2.0
    if recipe == "FP32":
        width = BROAD
        order = 1.5
    ends = []
    for run in runs:
        run_losses = [step.loss for step in run.steps]
        smooth = np.convolve(run_losses, np.ones(window) / window, mode="valid")
        steps = np.arange(window, window + len(smooth))
        finite = smooth[np.isfinite(smooth)]
        if len(finite):
            ends.append(finite[-1])
        axes.plot(
            steps,
            smooth,
            color=_colour(recipe),
            ls=DASHES[row % len(DASHES)],
            lw=width,
            zorder=order,
        )
    return End(recipe, float(np.median(ends or [np.nan])), _colour(recipe))


def _draw_metrics(axes: Axes, runs: Sequence[RunRecord], row: int) -> None:
    """Draw the metric of each run of a recipe, and name the numbers of skipped steps if any."""
    values = [r.metric for r in runs]
    colour = _colour(runs[0].recipe)
    axes.plot(
        values,
        [row] * len(values),
        MARKERS[row % len(MARKERS)],
        color=colour,
        mfc="none",
        ms=8,
        mew=1.5,
    )
    skipped = [r.skipped for r in runs]
    if any(skipped):
        noun = "step" if skipped == [1] else "steps"
        text = f"{', '.join(map(str, skipped))} {noun} skipped"
        axes.annotate(
            text,
            (max(values), row),
            xytext=(12, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
        )


@on_any_page
def treatment_figure(treatment: Treatment) -> Figure:
    """Draw the losses and the loss scale of a training of the clinic."""
    rows = 2 if treatment.scales else 1
    figure = new_figure(8, 0.7 + 1.7 * rows, layout="constrained")
    panels = figure.subplots(rows, 1, sharex=True, squeeze=False)[:, 0]
    _draw_treatment(panels[0], np.array(treatment.losses, float))
    panel(panels[0], "Loss")
    if treatment.scales:
        # After enough overflows a scale is 0, whose log2 is -inf.
        with np.errstate(divide="ignore"):
            _draw_scales(panels[1], np.log2(treatment.scales))
        panel(panels[1], "Loss scale, and × for each step after which it fell")
    figure.axes[-1].set_xlabel("step", fontsize=9)
    words = treatment_sentence(treatment)
    figure.supxlabel(raised(wrapped(words, 110)), fontsize=9.5, color=INK)
    return described(figure, words)


def treatment_sentence(treatment: Treatment) -> str:
    """Return a text about a training: its losses, skipped steps and score, or its error.

    >>> from types import SimpleNamespace
    >>> treatment_sentence(SimpleNamespace(losses=(2.0, 1.0), score=0.5, steps=2, error=""))
    'The loss goes from 2 to 1 in 2 steps. Score at the end: 0.50.'
    >>> treatment_sentence(SimpleNamespace(error="ValueError: no"))
    'It ended with an error: ValueError: no'
    """
    if treatment.error:
        return f"It ended with an error: {treatment.error}"
    losses = treatment.losses
    steps = len(losses)
    if not steps:
        return f"It did no steps. Score at the end: {treatment.score:.2f}."
    bad = [step for step, loss in enumerate(losses) if not math.isfinite(loss)]
    if bad:
        sentences = [
            f"The loss is not finite in {len(bad)} of {counted(steps, 'step')}, "
            f"first in step {bad[0]} (counted from 0)."
        ]
    else:
        ends = f"from {losses[0]:.3g} to {losses[-1]:.3g}"
        sentences = [f"The loss goes {ends} in {counted(steps, 'step')}."]
    skipped = steps - treatment.steps
    if skipped:
        were = "was" if skipped == 1 else "were"
        sentences.append(f"{counted(skipped, 'step')} {were} skipped.")
    sentences.append(f"Score at the end: {treatment.score:.2f}.")
    return " ".join(sentences)


def _draw_treatment(axes: Axes, losses: np.ndarray[tuple[int], np.dtype[np.float64]]) -> None:
    """Draw losses, with a cross at the top for each one that is not finite."""
    finite = np.isfinite(losses)
    axes.plot(np.where(finite, losses, np.nan), color=FORMAT_COLOURS["FP16"], lw=1.6)
    (bad,) = np.nonzero(~finite)
    if len(bad):
        top = 1.05 * losses[finite].max() if finite.any() else 1.0
        axes.plot(
            bad, np.full(len(bad), top), "x", color=FATE_COLOURS["overflowed"], ms=5, clip_on=False
        )
        axes.annotate(
            "inf or NaN",
            (bad[0], top),
            xytext=(0, 6),
            textcoords="offset points",
            fontsize=8.5,
            color=INK,
        )
    axes.margins(y=0.2)


def _draw_scales(axes: Axes, exponents: np.ndarray[tuple[int], np.dtype[np.float64]]) -> None:
    """Draw log2 of the scale of each step, with a cross at each step after which it fell."""
    axes.step(range(len(exponents)), exponents, where="mid", color=FORMAT_COLOURS["FP16"], lw=1.6)
    # A scale falls after a step that found inf or NaN, and so was skipped.
    (skipped,) = np.nonzero(exponents[1:] < exponents[:-1])
    axes.plot(skipped, exponents[skipped], "x", color=INK, ms=5)
    # A scale of 0 is below the axis.
    drawn = exponents[np.isfinite(exponents)]
    if not len(drawn):
        drawn = np.zeros(1)
    low = math.floor(drawn.min()) - 1
    high = math.ceil(drawn.max()) + 1
    axes.set_ylim(low, high)
    power_ticks(axes.set_yticks, range(low, high + 1, max(1, (high - low) // 4)))
