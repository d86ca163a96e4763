"""What is the browser told of the workbench, beside what every bench tells? What to choose, bytes, and plain torch."""

from __future__ import annotations

from typing import Any

from labkit.train import CATEGORIES, places
from labkit.widgets.bench import outbox
from labkit.widgets.bench.controller import Bench
from labkit.widgets.bench.knobs import preset_of, recipe_of
from labkit.widgets.bench.positions import PRESETS
from labkit.widgets.bench.report import memory
from labkit.widgets.workbench.code import code_of
from labkit.widgets.workbench.lines import torch_lines

UNITS = (("MB", 1e6), ("kB", 1e3), ("bytes", 1.0))


def state(bench: Bench) -> dict[str, Any]:
    """Return what the workbench shows beside: tasks and recipes to choose, bytes, and the same in plain torch."""
    knobs = bench.shown.wanted
    return {
        **outbox.state(bench),
        "title": f"Workbench: {bench.task.name.replace('_', ' ')}, seed {bench.seed}",
        "task": bench.task.name,
        "tasks": list(outbox.tasks(places())),
        "recipe": preset_of(recipe_of(knobs)),
        "recipes": list(PRESETS),
        "memory": memory_rows(bench),
        "lines": torch_lines(knobs, bench.task),
        "opens": opening_line(bench),
    }


def opening_line(bench: Bench) -> str:
    """Return the line that opens this workbench elsewhere; "" where task or recipe are a learner's own."""
    try:
        return f'Workbench.from_code("{code_of(bench)}")'
    except ValueError:
        return ""


def memory_rows(bench: Bench) -> list[dict[str, Any]]:
    """Return for each run its bytes by category, as numbers and as text."""
    return [
        {
            "name": name,
            "bytes": [held[category] for category in CATEGORIES],
            "texts": [f"{category} {size(held[category])}" for category in CATEGORIES],
            "total": size(sum(held.values())),
        }
        for name, held in memory(bench)
    ]


def size(count: int) -> str:
    """Return a number of bytes as a person reads it.

    >>> size(104_488), size(12)
    ('104 kB', '12 bytes')
    """
    unit, divisor = next((u for u in UNITS if count >= u[1]), UNITS[-1])
    return f"{count / divisor:.3g} {unit}"
