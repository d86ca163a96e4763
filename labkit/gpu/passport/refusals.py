"""Calls that CUDA is expected to refuse and the CPU takes, and some that both take: `refusals.toml`, for a passport.

The name of a row is what the report says of it: "layer_norm of Half with weights of Float: refused, as expected".
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import functional as F


@dataclass(frozen=True)
class Refusal:
    """One call, and whether CUDA refuses it.

    example  Python, with `torch`, `F` and `device`; raises where it is refused
    words    that torch's message contains where it is refused for this reason
    source   where the refusal was read
    refused  on CUDA; the CPU takes every row
    """

    name: str
    example: str
    words: str
    source: str
    refused: bool = True

    def call(self, device: str) -> None:
        """Run the example on a device."""
        exec(self.example, {"torch": torch, "F": F, "device": device})


REFUSALS = tuple(
    Refusal(**row) for row in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["row"]
)
BY_NAME = {row.name: row for row in REFUSALS}


def reason_of(message: str) -> str:
    """Return the name of the first expected refusal whose words a message contains; "" where there is none.

    >>> reason_of("RuntimeError: expected scalar type Half but found Float")
    'layer_norm of Half with weights of Float'
    """
    return next((row.name for row in REFUSALS if row.words and row.words in message), "")
