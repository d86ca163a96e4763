"""What would a scaler have done on a training that is on record?

Idea: `advance` is asked step by step, with the found_inf that the trace has at the scale where the scaler stands. What
comes back is one row of numbers for each step, ready to be drawn.

Invariant: replay.scale[i] is the scale that step i was taken with, or skipped at.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labkit.amp import ScalerConfig, decide, initial
from labkit.widgets.base.number_words import percent, power
from labkit.widgets.scaler_timeline.trace import OVERFLOWS_FROM, Trace

Column = NDArray[np.float64]


@dataclass(frozen=True)
class Replay:
    """A scaler on a trace; each column has one number for each step.

    scale    the scale of the step
    skipped  1 where the step found inf and was skipped, else 0
    tracker  clean steps in a row before the step, since the scale last moved or an overflow was met
    held     1 where the step was skipped and hysteresis kept the scale where it was, else 0
    lossy    1 where the step was taken at a scale at which more than 1% of the gradients underflow, else 0
    """

    scale: Column
    skipped: Column
    tracker: Column
    held: Column
    lossy: Column

    def __len__(self) -> int:
        return len(self.scale)

    @property
    def skips(self) -> int:
        """How many steps were skipped."""
        return int(self.skipped.sum())


def replay(config: ScalerConfig, trace: Trace, steps: int | None = None) -> Replay:
    """Let a scaler drive the first steps of a trace; None takes all of them.

    >>> trace = Trace("task", "recipe", 0, (2.0**-10,) * 4, (3,) * 4, "cpu", {}, "")
    >>> replay(ScalerConfig(init_scale=2.0**27, growth_interval=1), trace).scale.tolist() == [
    ...     2.0**27, 2.0**26, 2.0**25, 2.0**26]
    True
    """
    state = initial(config)
    rows = []
    for magnitude in trace.largest[:steps]:
        overflows = state.scale * magnitude >= OVERFLOWS_FROM
        decision = decide(state, overflows, config)
        rows.append((state.scale, decision.skip, state.growth_tracker, decision.held))
        state = decision.after
    scale, skips, tracker, held = np.array(rows, np.float64).T
    lossy = (scale < np.exp2(trace.keeps_from[:steps])) & (skips == 0)
    return Replay(scale, skips, tracker, held, lossy.astype(np.float64))


def packed(what: Replay) -> bytes:
    """Return what the browser draws, float32 [4, steps]: log2 of the scale, tracker, skipped, lossy."""
    skipped = what.skipped + what.held  # 2 where hysteresis held
    return np.stack([np.log2(what.scale), what.tracker, skipped, what.lossy]).astype("<f4").tobytes()


def window(trace: Trace, steps: int | None = None) -> bytes:
    """Return what the browser draws behind it, float32 [2, steps]: log2 of where overflow and where clean begins."""
    top = np.log2(OVERFLOWS_FROM / np.array(trace.largest[:steps]))
    return np.stack([top, np.array(trace.keeps_from[:steps], np.float64)]).astype("<f4").tobytes()


def sentence(what: Replay) -> str:
    """Say how a scaler fared.

    >>> trace = Trace("task", "recipe", 0, (2.0**-10,) * 4, (3,) * 4, "cpu", {}, "")
    >>> sentence(replay(ScalerConfig(init_scale=2.0**27, growth_interval=1), trace))
    '3 of 4 steps are skipped; in the second half the scale lives between 2^25 and 2^26, and no step runs at a scale
     that loses gradients.'
    """
    skips = f"{what.skips or 'None'} of {len(what)} steps {'is' if what.skips == 1 else 'are'} skipped"
    late = what.scale[len(what) // 2 :]
    low, high = float(late.min()), float(late.max())
    lives = f"stays at {power(low)}" if low == high else f"lives between {power(low)} and {power(high)}"
    lossy = float(what.lossy.mean())
    loss = f"{percent(lossy)} of the steps run" if lossy else "no step runs"
    return f"{skips}; in the second half the scale {lives}, and {loss} at a scale that loses gradients."


def source(trace: Trace) -> str:
    """Say where a trace comes from."""
    return (
        f"Recorded: {trace.task}, {trace.recipe}, seed {trace.seed}, {len(trace):,} steps; {trace.device}, "
        f"torch {trace.versions.get('torch', '?')}, {trace.date[:10]}."
    )
