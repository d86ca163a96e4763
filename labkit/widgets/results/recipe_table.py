"""Table of verdicts, recipes by tasks, from records alone, that a class can fill together.

Idea: a cell is what `labkit.train.Comparison` says about the runs of one task under one recipe,
paired by seed with FP32's: as good, worse, better, or that these runs cannot tell. Without records
the cell is empty, and the table says which command fills it.

Invariant: no cell without records; a run that ended in inf or NaN is called broken, whatever its
metric says.
"""

from __future__ import annotations

import html
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from labkit.records import recorded_files, results_folder
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

# Okabe and Ito's palette as tints, so that the text keeps the colour of the theme; a word in each
# cell says the same.
TINTS = {
    "as good": "rgba(86, 180, 233, 0.28)",
    "better": "rgba(0, 158, 115, 0.32)",
    "worse": "rgba(213, 94, 0, 0.38)",
    "broken": "rgba(204, 121, 167, 0.45)",
    "cannot tell": "rgba(128, 128, 128, 0.22)",
    "one seed": "transparent",
    "": "transparent",
}
CELL = "padding:3px 4px;text-align:center;border:1px solid rgba(128,128,128,0.35)"
VALUE = f"{CELL};white-space:nowrap"
# the name of a row stays in sight where the table is wider than the page
NAME = f"{CELL};text-align:left;position:sticky;left:0;background:var(--jp-layout-color0, Canvas)"
SEEDS = (0, 1, 2)  # what the command for empty cells asks for
# the recipe without scaling: what it loses says what there is to lose
UNSCALED = "FP16"


@dataclass(frozen=True, repr=False)
class RecipeTable:
    """Verdicts of recipes by tasks. A notebook shows it in colour; `str` gives it as text.

    Attributes:
        records: task -> its runs, FP32's first.
    """

    recipes: tuple[str, ...]
    records: dict[str, tuple[RunRecord, ...]]
    seeds: tuple[int, ...]
    folder: Path

    def difference(self, task: str, recipe: str) -> Difference | None:
        """Return how a recipe did on a task against FP32, or None if one of them has no records."""
        found = Comparison(task, self.records[task], margin=margin_of(task))
        if recipe not in found.recipes or "FP32" not in found.recipes:
            return None
        return found.difference(recipe)

    def verdict(self, task: str, recipe: str) -> str:
        """Return one of `labkit.train.VERDICTS`, or "broken"; "" without records."""
        difference = self.difference(task, recipe)
        if difference is None:
            return ""
        return "broken" if difference.broken else difference.verdict

    def missing(self) -> str:
        """Return the command that fills the empty cells, "" if there are none."""
        tasks = [t for t in self.records if any(not self.verdict(t, r) for r in self.recipes)]
        if not tasks:
            return ""
        recipes = [r for r in self.recipes if any(not self.verdict(t, r) for t in tasks)]
        quoted = " ".join(f'"{r}"' if " " in r else r for r in ("FP32", *recipes))
        seeds = " ".join(map(str, self.seeds))
        folder = f'"{self.folder}"' if " " in str(self.folder) else self.folder
        return (
            f"labkit compare {' '.join(tasks)} --recipes {quoted} --seeds {seeds} --folder {folder}"
        )

    def lost(self, task: str) -> float | None:
        """Return the share of activation gradients that FP16 loses without scaling.

        It is the mean of all measured steps.
        """
        steps = [step for r in self.records[task] if r.recipe == UNSCALED for step in r.steps]
        known = [step.underflow for step in steps if step.underflow is not None]
        return statistics.fmean(known) if known else None

    @property
    def sentence(self) -> str:
        """Text of what the table shows."""
        verdicts = [self.verdict(t, r) for t in self.records for r in self.recipes]
        known = [v for v in verdicts if v]
        if not known:
            return "None of these has a record yet."
        counts = {v: known.count(v) for v in (*VERDICTS, "broken") if v in known}
        words = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
        empty = len(verdicts) - len(known)
        return f"Of {len(known)} pairs of recipe and task: {words}." + (
            f" {empty} are not run yet." if empty else ""
        )

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
        wide = max(len(r) for r in ("recipe", *self.recipes))
        widths = {task: max(len(task), *map(len, TINTS)) for task in self.records}
        head = f"{'recipe':<{wide}}  " + "  ".join(
            f"{task:<{width}}" for task, width in widths.items()
        )
        rows = [
            f"{r:<{wide}}  "
            + "  ".join(f"{self.verdict(t, r) or '?':<{width}}" for t, width in widths.items())
            for r in self.recipes
        ]
        return "\n".join((head, *rows, self.sentence))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        names = ("", "FP32", *self.recipes, "lost without a scale")
        head = "".join(f"<th style='{CELL}'>{html.escape(name)}</th>" for name in names)
        rows = "".join(self._row(task) for task in self.records)
        command = self.missing()
        fill = (
            f"<p>To fill the empty cells: <code>{html.escape(command)}</code></p>"
            if command
            else ""
        )
        return (
            "<div style='overflow-x:auto'><table "
            f"style='border-collapse:collapse;font-size:12px'><tr>{head}</tr>{rows}</table></div>"
            f"<p>{html.escape(self.sentence)} {html.escape(self.rule)} "
            f"{html.escape(self._where())}</p>{fill}"
        )

    def _row(self, task: str) -> str:
        lost = self.lost(task)
        metrics = [r.metric for r in self.records[task] if r.recipe == "FP32"]
        first = ("?", "", "not run yet", "transparent")
        if metrics:
            first = (
                f"{min(metrics):.2f} to {max(metrics):.2f}",
                self.records[task][0].metric_name,
                f"{len(metrics)} seeds, margin {margin_of(task):g}",
                "transparent",
            )
        last = ("?" if lost is None else percent(lost), "", "", "transparent")
        cells = [first, *(self._cell(task, recipe) for recipe in self.recipes), last]
        made = "".join(
            (
                f"<td style='{VALUE};background:{tint}' "
                f"title='{html.escape(why, quote=True)}'>{html.escape(text)}<br><span "
                f"style='opacity:0.75'>{html.escape(below) or '&nbsp;'}</span></td>"
            )
            for text, below, why, tint in cells
        )
        return f"<tr><th style='{NAME}'>{html.escape(task.replace('_', ' '))}</th>{made}</tr>"

    def _cell(self, task: str, recipe: str) -> tuple[str, str, str, str]:
        """Return the word, the text below it, the tooltip, and the tint."""
        verdict = self.verdict(task, recipe)
        difference = self.difference(task, recipe)
        if difference is None:
            return "?", "", "not run yet", TINTS[""]
        runs = f"{difference.broken} of {difference.seeds}"
        return (
            verdict,
            runs if verdict == "broken" else signed(difference.mean, 2),
            str(difference),
            TINTS[verdict],
        )

    def _where(self) -> str:
        places = sorted(
            {(r.device, r.versions["torch"]) for runs in self.records.values() for r in runs}
        )
        said = "; ".join(f"Recorded on {device} with torch {version}" for device, version in places)
        return f"{said}." if places else ""


def recipe_table(
    tasks: Iterable[str],
    recipes: Iterable[str],
    seeds: Iterable[int] | None = None,
    folder: Path | str | None = None,
) -> RecipeTable:
    """Read the records of these tasks under FP32 and these recipes, and judge each pair.

    Args:
        tasks: names of tasks, one row each.
        recipes: names of recipes, one column each.
        seeds: which to read; None takes all that were recorded, or requests three if there are
            none.
        folder: where `labkit compare --folder` wrote; None takes the runs that travel with the lab.
            A GPU's runs are in a folder of its name in there.

    Raises:
        ValueError: the folder holds runs of several devices, where those of one belong.

    >>> table = recipe_table(["segmentation"], ["FP16", "FP16 static"])
    >>> table.verdict("segmentation", "FP16"), table.verdict("segmentation", "FP16 static")
    ('worse', 'as good')
    """
    chosen = tuple(dict.fromkeys(recipes))
    given = None if seeds is None else tuple(seeds)
    place = results_folder() / "runs" if folder is None else Path(folder)
    records = {}
    for task in tasks:
        pattern = "*-seed*.json"
        found = (
            recorded_files(f"runs/{task}/{pattern}").values()
            if folder is None
            else (place / task).glob(pattern)
        )
        files = {path.name: path for path in found}
        own = (
            sorted({int(Path(name).stem.rpartition("seed")[2]) for name in files})
            if given is None
            else given
        )
        recorded = dict.fromkeys(("FP32", *chosen, UNSCALED))
        names = [
            record_path(Path(), task, recipe, seed).name for recipe in recorded for seed in own
        ]
        records[task] = tuple(load_for_device(files[name]) for name in names if name in files)
    return RecipeTable(chosen, records, SEEDS if given is None else given, place)


def margin_of(task: str) -> float:
    """Return how large a difference may be and still not matter.

    It is the task's own margin, if the lab knows the task.
    """
    return TASKS[task].margin if task in TASKS else MARGIN
