"""What is said of four processes: a table of what each did, and what came of it in a sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from labkit.train import Plan
from labkit.widgets.base.figures import RAISED

CELL = "padding: 1px 10px; text-align: right"
SHADES = {"stepped": "", "skipped": "; background: var(--jp-warn-color3); color: black"}
BAR = "display: inline-block; height: 1em; background: "
PARTS = {"model weights": "#0072B2", "gradients": "#E69F00", "master weights": "#777777", "momentum": "#009E73"}


def ready(world: int) -> str:
    """Say that nothing runs yet, or that all wait."""
    return f"{world} processes train one layer together. Press Train."


def starting(world: int) -> str:
    """Say what a first training waits for."""
    return f"torchrun starts {world} processes. Each of them imports torch, which takes some seconds."


def stopping() -> str:
    """Say that the processes were told to end."""
    return "The processes are told to end. Those that still import torch do so first."


def table(steps: Sequence[dict[str, Any]]) -> str:
    """Return a table: a row for each step, a cell for each rank with its scale, and a mark where it skipped."""
    world = len(steps[0]["ranks"])
    head = "".join(f'<th style="{CELL}">{word}</th>' for word in ("step", "loss", *(f"rank {r}" for r in range(world))))
    rows = ""
    for step in steps:
        cells = [_cell(str(step["step"])), _cell(f"{step['loss']:.4g}")]
        for scale, stepped, found, _ in step["ranks"]:
            did = "stepped" if stepped else "skipped"
            power = "2" + f"{math.log2(scale):.0f}".translate(RAISED)
            cells.append(_cell(f"{power} {did}{' (inf here)' if found else ''}", SHADES[did]))
        rows += f"<tr>{''.join(cells)}</tr>"
    return f"<table><tr>{head}</tr>{rows}</table>"


def _cell(text: str, style: str = "") -> str:
    return f'<td style="{CELL}{style}">{escape(text)}</td>'


def verdict(steps: Sequence[dict[str, Any]], plan: Plan) -> str:
    """Say what came of a training, and where its ranks parted.

    >>> rank = (1024.0, True, False, 0.5)
    >>> verdict([{"step": 1, "loss": 0.5, "ranks": [rank] * 2, "sent": 2048, "held": {}}], Plan())
    'All ranks stepped or skipped as one. Skipped: 0 of 1. The loss ended at 0.5. A rank sent 2 KiB a step.'
    """
    apart = next((s["step"] for s in steps if len({(scale, stepped) for scale, stepped, *_ in s["ranks"]}) > 1), None)
    scales = [scale for scale, *_ in steps[-1]["ranks"]]
    lengths = ", ".join(f"{sum(scales) / len(scales) / scale:g}" for scale in scales)
    skipped = sum(not any(stepped for _, stepped, *_ in s["ranks"]) for s in steps)
    first = "All ranks stepped or skipped as one."
    if apart is not None:
        first = (
            f"The ranks parted in step {apart}, and no error said so. "
            f"In the end their steps are {lengths} times as long as they should be."
        )
    sent = f" A rank sent {steps[-1]['sent'] / 1024:.0f} KiB a step." if steps[-1]["sent"] else ""
    return f"{first} Skipped: {skipped} of {len(steps)}. The loss ended at {steps[-1]['loss']:.4g}.{sent}"


def ended(stopped: bool, said: Sequence[str]) -> str:
    """Say that the processes are gone, and why."""
    if stopped:
        return "Stopped: no process is left. Train starts them again."
    why = next((line for line in reversed(said) if "Error" in line or "RankLost" in line), "torchrun said nothing")
    return f"The processes ended by themselves: {escape(why)}"


def bars(held: dict[bool, dict[str, int]]) -> str:
    """Return a bar for each way of holding the weights, as long as the bytes that one rank holds."""
    if len(held) < 2:
        return "Train once with each rank holding a part, and once with each holding all; then run this cell again."
    most, rows = max(sum(parts.values()) for parts in held.values()), ""
    for name, parts in (("all weights (DDP)", held[False]), ("a part (FSDP2)", held[True])):
        bar = "".join(
            f'<span title="{part}: {size:,} bytes" style="{BAR}{PARTS[part]}; width: {30 * size / most:.2f}em"></span>'
            for part, size in parts.items()
        )
        total = sum(parts.values())
        rows += f"<tr>{_cell(name)}<td>{bar}</td>{_cell(f'{total:,} bytes')}</tr>"
    key = " ".join(f'<span style="{BAR}{colour}; width: 1em"></span> {part}' for part, colour in PARTS.items())
    return f"<table>{rows}</table><div>{key}</div>"
