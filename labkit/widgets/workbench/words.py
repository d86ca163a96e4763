"""What does the workbench show now, in words?

Idea: one sentence for where the run is, one for its fork, one for what goes wrong; each names only what was measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from labkit.train import StepRecord
from labkit.widgets.live.runs import streak
from labkit.widgets.live.state import Phase
from labkit.widgets.live.words import number, power
from labkit.widgets.underflow.words import percent
from labkit.widgets.workbench.controller import Bench
from labkit.widgets.workbench.knobs import describe, recipe_of
from labkit.widgets.workbench.runs import Branch

MANY_SKIPS = 3


def sentence(bench: Bench) -> str:
    """Return what the bench shows.

    >>> from labkit.amp import RECIPES
    >>> from labkit.train import TASKS
    >>> sentence(Bench(TASKS["digits"], RECIPES["FP16"]))[:77]
    'Nothing has run yet. Press Start: FP16 (without scaling) trains beside FP32, '
    """
    if bench.phase is Phase.FAILED:
        return f"Training ended after step {bench.run.done} by an error: {bench.error} Press Reset to begin again."
    if bench.building:
        return "Getting ready: the data, and networks with the same first weights."
    if not bench.run.steps:
        return (
            f"Nothing has run yet. Press Start: {who(bench.run)} trains beside FP32, with the same first weights and "
            f"the same batches, for {bench.total} steps."
        )
    return " ".join(filter(None, (_where(bench), _lost(bench.run.steps), _bad(bench.run.steps), _fork(bench))))


def who(branch: Branch) -> str:
    """Return a branch's recipe: its name, and what it is in brackets."""
    recipe, words = recipe_of(branch.wanted), describe(branch.wanted)
    if recipe.name == words:
        return words
    return f"{recipe.name} ({words.removeprefix(recipe.name + ' ')})"


def _where(bench: Bench) -> str:
    step, last = bench.run.done, bench.run.steps[-1]
    ended = bench.phase is Phase.FINISHED
    where = f"Finished at step {step}" if ended and step >= bench.total else f"Step {step} of {bench.total}"
    metric = _metric(bench, bench.run) if ended else ""
    if metric:
        return f"{where}: {who(bench.run)} has {metric}; its loss is {number(last.loss)}{_fp32_loss(bench, step)}."
    return f"{where}: {who(bench.run)} is at {number(last.loss)}{_fp32_loss(bench, step)}."


def _fp32_loss(bench: Bench, step: int) -> str:
    return f", FP32 at {number(bench.fp32.steps[step - 1].loss)}" if step <= len(bench.fp32.steps) else ""


def _metric(bench: Bench, branch: Branch) -> str:
    both = branch.metrics.keys() & bench.fp32.metrics.keys()
    if not both:
        return ""
    at, name = max(both), bench.task.metric_name
    when = "" if at == branch.done else f" at step {at}"
    return f"{name} {branch.metrics[at]:.3f}{when}, FP32 {bench.fp32.metrics[at]:.3f}"


def _lost(steps: Sequence[StepRecord]) -> str:
    under, still = latest(steps, "underflow"), latest(steps, "swallowed")
    if under is None or not math.isfinite(steps[-1].loss):
        return ""
    words = f"{percent(under)} of its gradient elements underflow"
    if still is not None:
        words += f", {percent(still)} of its updates are swallowed"
    return words + "."


def latest(steps: Sequence[StepRecord], what: str) -> float | None:
    """Return the last measured share of a kind, or None."""
    return next((v for s in reversed(steps) if (v := getattr(s, what)) is not None), None)


def _bad(steps: Sequence[StepRecord]) -> str:
    since = streak(steps, lambda s: not math.isfinite(s.loss))[1]
    if since is not None:
        return f"Its loss has been {number(steps[-1].loss)} since step {since}, and no loss scale takes that out."
    skipped, in_a_row = sum(not s.stepped for s in steps), streak(steps, lambda s: not s.stepped)[0]
    if in_a_row >= MANY_SKIPS:
        return f"Its last {in_a_row} steps were skipped at scale {power(steps[-1].scale)}."
    return "" if not skipped else "1 step was skipped." if skipped == 1 else f"{skipped} steps were skipped."


def _fork(bench: Bench) -> str:
    fork = bench.fork
    if fork is None:
        return ""
    apart = bench.parted()
    how = f"({apart})" if apart else "with the same settings"
    if not fork.steps:
        return f"The fork {how} stands after step {fork.origin} and has not moved yet."
    metric = _metric(bench, fork) if bench.phase is Phase.FINISHED else ""
    end = f"has {metric.split(', FP32')[0]}" if metric else f"is at {number(fork.steps[-1].loss)}"
    same = [s.loss for s in fork.steps] == [s.loss for s in bench.run.steps[fork.origin : fork.done]]
    equal = " Bit for bit they are the same." if same and not apart else ""
    broken = "" if math.isfinite(fork.steps[-1].loss) else f" {_bad(fork.steps)}"
    return f"The fork {how} left it after step {fork.origin} and {end}.{equal}{broken}"
