"""Published measurements of GPUs: the rows of data/published.csv, with source and date.

Idea: a third kind of evidence, beside measurements on this machine and the lab's records. A row names the card, the
workload, the format and its reference, and the source. Data sheets give a card's ceilings.

Invariant: a published number never enters a record, and is drawn with its own mark. A ratio above 1 means that the
narrower format is better, in any unit; for memory it is narrow / wide, so that less is better.

Source: the column `source` of each row; data/README.md explains their selection.
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
    card       short name of the GPU, as in `cards()`; `gpu` is the variant in the source
    format     format of the number; "memory" for a data sheet's bandwidth
    reference  base of the ratio: FP32, TF32, "FP32 or TF32" where the source is ambiguous, "not aligned"
    m, n, k    sides of the product; 0 where unknown
    value      in `unit`
    ratio      factor relative to the reference; None without a reference
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
        """Side of the cube with as many multiplications as the product: (m n k)^(1/3)."""
        return float((self.m * self.n * self.k) ** (1 / 3))

    @property
    def intensity(self) -> float:
        """FLOP of the product for each byte, with each matrix read or written once."""
        size = 2 if self.format in ("FP16", "BF16") else 8 if self.format == "FP64" else 4
        return (
            2
            * self.m
            * self.n
            * self.k
            / (size * (self.m * self.k + self.k * self.n + self.m * self.n))
        )


def published(kind: str | None = None, card: str | None = None) -> list[Published]:
    """Return the published numbers of a kind and a card, or all; [] without the file.

    Raises:
        ValueError: the kind or the card is unknown.

    >>> {row.unit for row in published("data sheet", "V100")} == {"TFLOP/s", "GB/s"}
    True
    """
    rows = _rows(data_folder() / "published.csv")
    if kind is not None and kind not in KINDS:
        raise ValueError(f"expected a kind of {', '.join(KINDS)}, got {kind!r}")
    if card is not None and rows and card not in cards():
        raise ValueError(f"expected a card of {', '.join(cards())}, got {card!r}")
    return [row for row in rows if kind in (None, row.kind) and card in (None, row.card)]


def cards() -> list[str]:
    """Return the cards with published products, the slowest in FP16 first.

    >>> cards()[0], cards()[-1]
    ('P100', 'H100')
    """
    best: dict[str, float] = {}
    for row in _rows(data_folder() / "published.csv"):
        if row.kind == "product" and row.format == "FP16":
            best[row.card] = max(row.value, best.get(row.card, 0.0))
    return sorted(best, key=lambda name: best[name])


def data_sheet(card: str) -> Roofline | None:
    """Return a card's ceilings by its data sheet, or None without a bandwidth or an FP16 peak.

    >>> roof = data_sheet("V100")
    >>> roof.peak(FORMATS["FP16"]) / roof.peak(FORMATS["FP32"]) > 7.9
    True
    """
    rows = published("data sheet", card)
    bandwidth = [row.value * 1e9 for row in rows if row.format == "memory"]
    peaks = {FORMATS[row.format]: row.value * 1e12 for row in rows if row.format in FORMATS}
    return Roofline(bandwidth[0], peaks) if bandwidth and FORMATS["FP16"] in peaks else None


def gains(kind: str, card: str) -> dict[str, list[float]]:
    """Return reference -> the published ratios of FP16 on a card, sorted."""
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
    numbers: dict[str, Any] = {
        side: int(row[side]) if row[side].isdigit() else 0 for side in ("m", "n", "k")
    }
    numbers |= {
        "value": float(row["value"]),
        "ratio": float(row["ratio"]) if row["ratio"] else None,
    }
    texts: dict[str, Any] = {
        field.name: row[field.name] for field in fields(Published) if field.name not in numbers
    }
    return Published(**texts, **numbers)
