"""What did this GPU turn out to do? The figures of the lesson that a GPU fills, drawn from what the command kept.

Invariant: only records of the device that was measured are told as measured; a figure without one is not drawn.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from labkit.records import on_record
from labkit.train import Place, pace_sentence
from labkit.widgets.base.figures import data_url, png
from labkit.widgets.gemm.figures import roofline_figure, sweep_figure
from labkit.widgets.gemm.words import recorded_gemm

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURES: dict[str, Callable[[], Figure]] = {
    "ceilings": roofline_figure,
    "size": lambda: sweep_figure("size"),
    "bandwidth": lambda: sweep_figure("bandwidth"),
    "alignment": lambda: sweep_figure("alignment"),
}


def measured(where: Place) -> dict[str, str]:
    """Return sweep -> date of its record on this device, for those that have one and a figure."""
    newest = {sweep: recorded_gemm(sweep, where.device.type)[:1] for sweep in FIGURES}
    return {sweep: found[0].date for sweep, found in newest.items() if found and found[0].device == where.name}


def pictures(where: Place) -> list[dict[str, str]]:
    """Return the figures of this device, in the lesson's order: "src", a PNG as a data URL, and "alt", what it shows.

    One that cannot be drawn, since too little was measured for it, has no "src", and "alt" says why.
    """
    return [_picture(sweep) for sweep in measured(where)]


def _picture(sweep: str) -> dict[str, str]:
    try:
        figure = FIGURES[sweep]()
    except ValueError as too_little:
        return {"src": "", "alt": f"{sweep} is not drawn: {too_little}"}
    alt = f"{figure.get_suptitle()} {figure.get_supxlabel()}".replace("\n", " ").strip()
    return {"src": data_url(png(figure)), "alt": alt}


def paces(where: Place) -> list[str]:
    """Return a sentence for each of the lab's tasks that was timed on this device: steps a second, FP32 and FP16."""
    timed = [json.loads(path.read_text("utf-8")) for path in on_record(f"checks/{where.slug}/tasks.json").values()]
    return [f"{task}: {pace_sentence(each, where.name)}" for one in timed for task, each in one["rates"].items()]
