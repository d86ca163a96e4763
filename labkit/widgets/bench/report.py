"""What goes on record of a bench, and what are its runs called?"""

from __future__ import annotations

from labkit.train import RunRecord, bytes_held
from labkit.widgets.bench.controller import Bench
from labkit.widgets.bench.knobs import recipe_of
from labkit.widgets.bench.labels import describe
from labkit.widgets.bench.runs import Branch


def record_of(bench: Bench) -> RunRecord:
    """Return the record of the branch whose knobs are on show.

    Raises:
        ValueError: it has not done a step.
    """
    branch = bench.shown
    if branch.run is None or not bench.path(branch):
        raise ValueError("nothing has run yet, so there is nothing to record. Press Start first.")
    record: RunRecord = branch.run.record(
        bench.path(branch),
        recipe=_name_on_record(bench, branch),
        seconds=float("nan"),  # it waited for a hand: its time says nothing
        stopped=branch.done < bench.total,
        memory=bytes_held(branch.run.engine),
        step_seconds=branch.step_seconds,
    )
    return record


def _name_on_record(bench: Bench, branch: Branch) -> str:
    marks = [f"{mark.label} from step {mark.step}" for mark in branch.marks]
    if branch.origin:
        marks.insert(0, f"forked after step {branch.origin} from {recipe_of(bench.run.wanted).name}")
    plain = branch.wanted.log2_lr == 0 and branch.wanted.epsilon is None
    return "; ".join((recipe_of(branch.wanted).name if plain else describe(branch.wanted), *marks))


def memory(bench: Bench) -> list[tuple[str, dict[str, int]]]:
    """Return name and bytes by category of each run that has done a step."""
    named = zip(("FP32", *names(bench)), (bench.fp32, *bench.branches), strict=True)
    return [(name, bytes_held(b.run.engine)) for name, b in named if b.run is not None and b.done]


def names(bench: Bench) -> list[str]:
    """Return what the branches are called in the figure.

    >>> from labkit.amp import RECIPES
    >>> from labkit.train import TASKS
    >>> names(Bench(TASKS["digits"], RECIPES["O2"])), names(Bench(TASKS["digits"], RECIPES["O0"]))
    (['O2'], ['run'])
    """
    own = recipe_of(bench.run.wanted).name
    short = own if len(own) <= 4 else bench.run.wanted.format
    return ["run" if short in ("FP32", "O0") else short, "fork"][: len(bench.branches)]
