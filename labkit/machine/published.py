"""Published measurements of GPUs: the rows of data/published.csv, with source and date.

Idea: a third kind of evidence, beside measurements on this machine and the lab's records. A row
names the card, the workload, the format and its reference, and the source.

Invariant: a published number never enters a record, and is drawn with its own mark. A ratio above 1
means that the narrower format is better, in any unit; for memory it is narrow / wide, so that less
is better.

Source: the column `source` of each row; data/README.md explains their selection.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from labkit.records import data_folder

KINDS = ("data sheet", "product", "alignment", "training", "inference", "memory")
# Bytes of an element, with its share of a block's scale: one byte for 32 elements in MXFP8, for 16
# in NVFP4.
BYTES = {
    "FP64": 8.0,
    "FP32": 4.0,
    "TF32": 4.0,
    "FP16": 2.0,
    "BF16": 2.0,
    "FP8": 1.0,
    "MXFP8": 1 + 1 / 32,
    "NVFP4": 0.5 + 1 / 16,
}
# The next word of a device's name that makes it another card: an RTX 3080 Ti is not an RTX 3080.
VARIANTS = {"ti", "super", "laptop", "mobile", "max", "d", "ada"}


@dataclass(frozen=True)
class Published:
    """One published number.

    Attributes:
        kind: one of KINDS.
        card: short name of the GPU, as in `cards()`; `gpu` is the variant in the source.
        format: format of the number; "memory" for a data sheet's bandwidth.
        reference: base of the ratio: a format, "FP32 or TF32" where the source is ambiguous, "not
            aligned", or "data sheet".
        m, n, k: sides of the product; 0 where unknown.
        value: the number, in `unit`.
        ratio: factor relative to the reference; None without a reference.
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
        """Side of the cube with as many multiplications as the product, (m n k)^(1/3).

        It is 0 where a side of the product is unknown.
        """
        return float((self.m * self.n * self.k) ** (1 / 3))

    @property
    def intensity(self) -> float:
        """FLOP of the product for each byte, with each matrix read or written once.

        A product of 8- or 4-bit operands is written in 16 bits; the scales of their blocks count as
        bytes. It is 0 where a side is unknown, as `side` is.
        """
        if not self.side:
            return 0.0
        operand = BYTES.get(self.format, 4.0)
        result = max(operand, 2.0)
        bytes_moved = operand * (self.m + self.n) * self.k + result * self.m * self.n
        return 2 * self.m * self.n * self.k / bytes_moved


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
    """Return the cards with published products or trainings, the slowest in 16-bit products first.

    Cards without a published 16-bit product come last, in alphabetical order.

    >>> cards()[0], "V100" in cards()
    ('GTX 1660 Ti', True)
    """
    best: dict[str, float] = {}
    for row in _rows(data_folder() / "published.csv"):
        if row.kind == "product" and row.format in ("FP16", "BF16"):
            best[row.card] = max(row.value, best.get(row.card, 0.0))
        elif row.kind in ("product", "training"):
            best.setdefault(row.card, 0.0)
    return sorted(best, key=lambda card: (best[card] == 0.0, best[card], card))


def card_named(device: str) -> str | None:
    """Return the card of the published rows that a device's name names, or None.

    The words of the card have to be in the name in the same order, possibly with others between
    them; a variant is another card.

    >>> card_named("NVIDIA A100-SXM4-80GB"), card_named("NVIDIA GeForce RTX 3080 Ti")
    ('A100', None)
    """
    words = re.findall(r"[a-z0-9]+", device.lower())
    unnamed = {row.card for row in published() if row.gpu.startswith("not named")}
    fitting = [
        card
        for card in cards()
        if card not in unnamed and _names(re.findall(r"[a-z0-9]+", card.lower()), words)
    ]
    return max(fitting, key=len, default=None)


def _names(card: list[str], device: list[str]) -> bool:
    """Return whether a device's name is that of a card: its words in order, and no variant's."""
    position = 0
    for word in card:
        if word not in device[position:]:
            return False
        position = device.index(word, position) + 1
    following = device[position : position + 1]
    return not VARIANTS.intersection(following)


def gains(kind: str, card: str, format: str = "FP16") -> dict[str, list[float]]:
    """Return reference -> the published ratios of a format on a card, sorted.

    >>> gains("product", "RTX 2080 Ti", "BF16")
    {'FP32': [0.558282]}
    """
    found: dict[str, list[float]] = {}
    for row in published(kind, card):
        if row.format == format and row.ratio is not None:
            found.setdefault(row.reference, []).append(row.ratio)
    return {reference: sorted(ratios) for reference, ratios in found.items()}


@lru_cache(maxsize=4)
def _rows(path: Path) -> tuple[Published, ...]:
    if not path.is_file():
        return ()
    with path.open(newline="", encoding="utf-8") as file:
        return tuple(_row(row) for row in csv.DictReader(file))


def _row(row: dict[str, str]) -> Published:
    numbers: dict[str, Any] = {"value": float(row["value"]), "ratio": None}
    if row["ratio"]:
        numbers["ratio"] = float(row["ratio"])
    for side in ("m", "n", "k"):
        # the side of a product may be unknown, which is 0
        numbers[side] = int(row[side]) if row[side].isdigit() else 0
    texts: dict[str, Any] = {
        field.name: row[field.name] for field in fields(Published) if field.name not in numbers
    }
    return Published(**texts, **numbers)
