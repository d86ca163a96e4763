"""What is a number? Formats as rows of data, their codes and values, and rounding to them. Needs numpy only."""

from labkit.formats.codes import Fields, decode, encode, join, split
from labkit.formats.format import (
    BF16,
    E2M1,
    E2M3,
    E3M2,
    E4M3,
    E5M2,
    E8M0,
    FORMATS,
    FP16,
    FP32,
    FP64,
    TF32,
    Format,
    Specials,
)
from labkit.formats.rounding import Overflow, Rounding, round_to, ulp

__all__ = [
    "BF16",
    "E2M1",
    "E2M3",
    "E3M2",
    "E4M3",
    "E5M2",
    "E8M0",
    "FORMATS",
    "FP16",
    "FP32",
    "FP64",
    "TF32",
    "Fields",
    "Format",
    "Overflow",
    "Rounding",
    "Specials",
    "decode",
    "encode",
    "join",
    "round_to",
    "split",
    "ulp",
]
