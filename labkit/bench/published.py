"""What did others measure on real GPUs? Rows of data/published.csv: facts with source and date, none ours.

Idea: a third kind of evidence, beside what is measured here and what the lab recorded elsewhere. A row says which card,
what was run, in which format against which, and where that was published. Data sheets give a card's ceilings.

Invariant: a published number never enters a record, and is drawn with a mark of its own. A ratio above 1 means that the
narrower format is better, whatever the unit; of memory it is narrow / wide, so that less is better.

Source: the column `source` of each row; data/README.md says how they were chosen.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from labkit.bench.roofline import Roofline
from labkit.formats import FORMATS
from labkit.records import data_folder

KINDS = ("data sheet", "product", "alignment", "training", "inference", "memory")


@dataclass(frozen=True)
class Published:
    """One published number.

    kind       one of KINDS
    card       the GPU's short name, as `cards()` lists it; `gpu` is the variant that the source names
    format     the number's format; "memory" where a data sheet gives the bandwidth
    reference  what the ratio compares with: FP32, TF32, "FP32 or TF32" where the source does not say, "not aligned"
    m, n, k    the product's sides; 0 where the source does not give them
    value      in `unit`
    ratio      how many times as good as the reference; None where there is none
    """

    kind: str
    card: str
    gpu: str
    format: str
    reference: str
    workload: str
    m: int
    n: int
    k: int
    batch: str
    value: float
    unit: str
    ratio: float | None
    software: str
    date: str
    source: str

    @property
    def side(self) -> float:
        """Return the side of the cube with as many multiplications as the product: (m n k)^(1/3)."""
        return float((self.m * self.n * self.k) ** (1 / 3))

    @property
    def intensity(self) -> float:
        """Return the product's FLOP for each byte, where each matrix is read or written once."""
        size = 2 if self.format in ("FP16", "BF16") else 8 if self.format == "FP64" else 4
        return 2 * self.m * self.n * self.k / (size * (self.m * self.k + self.k * self.n + self.m * self.n))


def published(kind: str | None = None, card: str | None = None) -> list[Published]:
    """Return the published numbers of a kind, of a card, or all of them; [] where there is no file.

    Raises:
        ValueError: there is no such kind, or no such card; the message lists those there are.

    >>> {row.unit for row in published("data sheet", "V100")} == {"TFLOP/s", "GB/s"}
    True
    """
    rows = _rows(data_folder() / "published.csv")
    if kind is not None and kind not in KINDS:
        raise ValueError(f"nothing of the kind {kind!r} is published; there are {', '.join(KINDS)}")
    if card is not None and rows and card not in cards():
        raise ValueError(f"nothing is published of a card {card!r}; choose one of {', '.join(cards())}")
    return [row for row in rows if kind in (None, row.kind) and card in (None, row.card)]


def cards() -> list[str]:
    """Return the cards that products were published of, the slowest in FP16 first.

    >>> cards()[0], cards()[-1]
    ('P100', 'H100')
    """
    best: dict[str, float] = {}
    for row in _rows(data_folder() / "published.csv"):
        if row.kind == "product" and row.format == "FP16":
            best[row.card] = max(row.value, best.get(row.card, 0.0))
    return sorted(best, key=lambda name: best[name])


def data_sheet(card: str) -> Roofline | None:
    """Return a card's ceilings as its maker promises them, or None where no bandwidth or no FP16 peak is on file.

    >>> roof = data_sheet("V100")
    >>> roof.peak(FORMATS["FP16"]) / roof.peak(FORMATS["FP32"]) > 7.9
    True
    """
    rows = published("data sheet", card)
    bandwidth = [row.value * 1e9 for row in rows if row.format == "memory"]
    peaks = {FORMATS[row.format]: row.value * 1e12 for row in rows if row.format in FORMATS}
    return Roofline(bandwidth[0], peaks) if bandwidth and FORMATS["FP16"] in peaks else None


def gains(kind: str, card: str) -> dict[str, list[float]]:
    """Return reference -> the published ratios of FP16 on a card, sorted: how many times as fast as that reference."""
    found: dict[str, list[float]] = {}
    for row in published(kind, card):
        if row.format == "FP16" and row.ratio is not None:
            found.setdefault(row.reference, []).append(row.ratio)
    return {reference: sorted(ratios) for reference, ratios in found.items()}


@lru_cache(maxsize=4)
def _rows(path: Path) -> tuple[Published, ...]:
    if not path.is_file():
        return ()
    with path.open(newline="", encoding="utf-8") as file:
        return tuple(_row(row) for row in csv.DictReader(file))


def _row(row: dict[str, str]) -> Published:
    numbers: dict[str, Any] = {side: int(row[side]) if row[side].isdigit() else 0 for side in ("m", "n", "k")}
    numbers |= {"value": float(row["value"]), "ratio": float(row["ratio"]) if row["ratio"] else None}
    texts: dict[str, Any] = {field.name: row[field.name] for field in fields(Published) if field.name not in numbers}
    return Published(**texts, **numbers)
