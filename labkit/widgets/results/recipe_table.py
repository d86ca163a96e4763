"""Table of verdicts on recipes by task, computed from records, which a class can fill together.

Idea: a cell is the verdict of `labkit.train.Comparison` on the runs of one task under one recipe,
paired by seed with FP32's: as good, worse, better, or that these runs cannot tell. Without records
the cell is empty, and the table names the command that fills it.

Invariant: a verdict needs records. A run that ended in inf or NaN is called broken, whatever its
metric is.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from labkit.findings import counted
from labkit.records import recorded_files, results_folder
from labkit.records.templates import render
from labkit.train import (
    MARGIN,
    TASKS,
    VERDICTS,
    Comparison,
    Difference,
    RunRecord,
    load_for_device,
    record_path,
    signed,
)
from labkit.widgets.base.number_words import percent

# Okabe and Ito's palette as tints, so that the text keeps the colour of the theme. The word in a
# cell has the same meaning as its tint.
TINTS = {
    "as good": "rgba(86, 180, 233, 0.28)",
    "better": "rgba(0, 158, 115, 0.32)",
    "worse": "rgba(213, 94, 0, 0.38)",
    "broken": "rgba(204, 121, 167, 0.45)",
    "cannot tell": "rgba(128, 128, 128, 0.22)",
    "one seed": "transparent",
    "": "transparent",
}
# The seeds in the command for empty cells, unless others are chosen.
SEEDS = (0, 1, 2)
# The recipe without scaling, whose lost gradients are those that scaling can keep.
UNSCALED = "FP16"


@dataclass(frozen=True)
class Cell:
    """A cell of the table in a notebook.

    Attributes:
        text: The verdict, or a number.
        below: A second line, in a quieter colour.
        tooltip: The text that the browser shows at the pointer.
        tint: The colour of the background, as CSS.
    """

    text: str
    below: str = ""
    tooltip: str = ""
    tint: str = "transparent"


NOT_RUN = Cell("?", tooltip="not run yet")


@dataclass(frozen=True, repr=False)
class RecipeTable:
    """Verdicts of recipes by tasks. A notebook shows it in colour; `str` gives it as text.

    Attributes:
        recipes: The names of the recipes, one column each.
        records: Task -> its runs, those of FP32 first.
        seeds: The seeds in the command for empty cells.
        folder: The folder in that command.
    """

    recipes: tuple[str, ...]
    records: dict[str, tuple[RunRecord, ...]]
    seeds: tuple[int, ...]
    folder: Path

    def difference(self, task: str, recipe: str) -> Difference | None:
        """Return how a recipe did on a task against FP32, or None if one of them has no records."""
        comparison = Comparison(task, self.records[task], margin=margin_of(task))
        if recipe not in comparison.recipes or "FP32" not in comparison.recipes:
            return None
        return comparison.difference(recipe)

    def verdict(self, task: str, recipe: str) -> str:
        """Return one of `labkit.train.VERDICTS`, or "broken"; "" without records."""
        difference = self.difference(task, recipe)
        if difference is None:
            return ""
        return "broken" if difference.broken else difference.verdict

    def missing(self) -> str:
        """Return the command that trains the runs of the empty cells, "" if there are none."""
        empty = [
            (task, recipe)
            for task in self.records
            for recipe in self.recipes
            if not self.verdict(task, recipe)
        ]
        if not empty:
            return ""
        tasks = dict.fromkeys(task for task, _ in empty)
        lacking = {recipe for _, recipe in empty}
        # The recipes are in the order of the table.
        recipes = [recipe for recipe in self.recipes if recipe in lacking]
        words = ["labkit compare", *tasks, "--recipes", *map(_quoted, ["FP32", *recipes])]
        words += ["--seeds", *map(str, self.seeds), "--folder", _quoted(str(self.folder))]
        return " ".join(words)

    def lost(self, task: str) -> float | None:
        """Return the share of activation gradients that FP16 loses without scaling.

        It is the mean of all measured steps.
        """
        shares = [
            step.underflow
            for record in self.records[task]
            if record.recipe == UNSCALED
            for step in record.steps
            if step.underflow is not None
        ]
        return statistics.fmean(shares) if shares else None

    @property
    def sentence(self) -> str:
        """The counts of the verdicts, as a sentence."""
        verdicts = [self.verdict(task, recipe) for task in self.records for recipe in self.recipes]
        known = [verdict for verdict in verdicts if verdict]
        if not known:
            return "None of these has a record yet."
        counts = [
            f"{known.count(verdict)} {verdict}"
            for verdict in (*VERDICTS, "broken")
            if verdict in known
        ]
        pairs = "pair" if len(known) == 1 else "pairs"
        sentence = f"Of {len(known)} {pairs} of recipe and task: {', '.join(counts)}."
        empty = len(verdicts) - len(known)
        if empty:
            are = "is" if empty == 1 else "are"
            sentence += f" {empty} {are} not run yet."
        return sentence

    @property
    def rule(self) -> str:
        """What the verdicts mean, with the margin of each task."""
        margins = {margin_of(task) for task in self.records}
        margin = f"the margin of {margins.pop():g}" if len(margins) == 1 else "its task's margin"
        return (
            f"As good: the 90% interval of the difference lies inside {margin}. Worse or "
            "better: the difference is larger than FP32's own seeds scatter, and its 95% "
            "interval leaves out zero. Cannot tell: neither."
        )

    def __str__(self) -> str:
        first = max(len(name) for name in ("recipe", *self.recipes))
        longest_verdict = max(map(len, TINTS))
        widths = {task: max(len(task), longest_verdict) for task in self.records}
        head = [f"{'recipe':<{first}}"]
        head += [f"{task:<{width}}" for task, width in widths.items()]
        lines = ["  ".join(head)]
        for recipe in self.recipes:
            cells = [f"{recipe:<{first}}"]
            for task, width in widths.items():
                cells.append(f"{self.verdict(task, recipe) or '?':<{width}}")
            lines.append("  ".join(cells))
        return "\n".join([*lines, self.sentence])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        html = render(
            "widgets/results/recipe_table.html.jinja",
            table=self,
            rows=[self._row(task) for task in self.records],
            columns=["", "FP32", *self.recipes, "lost without a scale"],
            command=self.missing(),
            origin=self._origin(),
        )
        return str(html)

    def _row(self, task: str) -> dict[str, object]:
        """Return the name of a task, and its cells: FP32, the recipes, and what FP16 loses."""
        baseline = [record for record in self.records[task] if record.recipe == "FP32"]
        if baseline:
            metrics = [record.metric for record in baseline]
            first = Cell(
                f"{min(metrics):.2f} to {max(metrics):.2f}",
                baseline[0].metric_name,
                tooltip=f"{counted(len(metrics), 'seed')}, margin {margin_of(task):g}",
            )
        else:
            first = NOT_RUN
        lost = self.lost(task)
        last = Cell("?") if lost is None else Cell(percent(lost))
        cells = [first, *(self._cell(task, recipe) for recipe in self.recipes), last]
        return {"name": task.replace("_", " "), "cells": cells}

    def _cell(self, task: str, recipe: str) -> Cell:
        """Return the cell of a verdict, with the mean difference or the number of broken runs."""
        difference = self.difference(task, recipe)
        if difference is None:
            return NOT_RUN
        verdict = self.verdict(task, recipe)
        if difference.broken:
            below = f"{difference.broken} of {difference.seeds}"
        else:
            below = signed(difference.mean, 2)
        return Cell(verdict, below, tooltip=str(difference), tint=TINTS[verdict])

    def _origin(self) -> str:
        """Return where the runs were recorded, as a sentence; "" without records."""
        origins = {
            f"{record.device} with torch {record.versions['torch']}"
            for records in self.records.values()
            for record in records
        }
        if not origins:
            return ""
        return "; ".join(f"Recorded on {origin}" for origin in sorted(origins)) + "."


def recipe_table(
    tasks: Iterable[str],
    recipes: Iterable[str],
    seeds: Iterable[int] | None = None,
    folder: Path | str | None = None,
) -> RecipeTable:
    """Read the records of these tasks under FP32 and these recipes, and judge each pair.

    Args:
        tasks: The names of tasks, one row each.
        recipes: The names of recipes, one column each.
        seeds: The seeds whose runs are read; None for all recorded ones. The command for empty
            cells has these seeds, or `SEEDS` for None.
        folder: The folder that was given to `labkit compare --folder`; None for the records of the
            lab. The runs of a GPU are in a folder with its name in there.

    Raises:
        ValueError: The folder of one device has runs of several.

    >>> table = recipe_table(["segmentation"], ["FP16", "FP16 static"])
    >>> table.verdict("segmentation", "FP16"), table.verdict("segmentation", "FP16 static")
    ('worse', 'as good')
    """
    chosen = tuple(dict.fromkeys(recipes))
    chosen_seeds = None if seeds is None else tuple(seeds)
    all_recipes = dict.fromkeys(("FP32", *chosen, UNSCALED))
    records = {}
    for task in tasks:
        files = _files(task, folder)
        own_seeds = chosen_seeds
        if own_seeds is None:
            # A file is named <recipe>-seed<number>.json.
            numbers = {int(Path(name).stem.rpartition("seed")[2]) for name in files}
            own_seeds = tuple(sorted(numbers))
        names = [
            record_path(Path(), task, recipe, seed).name
            for recipe in all_recipes
            for seed in own_seeds
        ]
        records[task] = tuple(load_for_device(files[name]) for name in names if name in files)
    return RecipeTable(
        recipes=chosen,
        records=records,
        seeds=SEEDS if chosen_seeds is None else chosen_seeds,
        folder=results_folder() / "runs" if folder is None else Path(folder),
    )


def _files(task: str, folder: Path | str | None) -> dict[str, Path]:
    """Return the records of a task by file name; without a folder, those of the lab."""
    pattern = "*-seed*.json"
    paths: Iterable[Path]
    if folder is None:
        paths = recorded_files(f"runs/{task}/{pattern}").values()
    else:
        paths = (Path(folder) / task).glob(pattern)
    return {path.name: path for path in paths}


def _quoted(word: str) -> str:
    """Return a word of a command; one with a space is in quotes."""
    return f'"{word}"' if " " in word else word


def margin_of(task: str) -> float:
    """Return the largest difference of metrics that counts as equally good.

    It is the task's own margin, or `MARGIN` for a task that is not one of the lab's.
    """
    return TASKS[task].margin if task in TASKS else MARGIN
