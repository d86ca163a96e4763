"""Vectors of a GPU: dot products that tell its Tensor Cores from others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from labkit.formats import FP64, Format
from labkit.gemm import SPECS, MmaSpec, emulate
from labkit.testing.bound import Arithmetic
from labkit.testing.orders import sums
from labkit.testing.vectors.tables import Table, Vectors

TERMS = 32
# a rule, and a dot product: a, b and C
Row: TypeAlias = tuple[str, NDArray[Any], NDArray[Any], float]


class CardVectors(Vectors):
    """Dot products, and their sums by a GPU's FP16 instruction with FP32 results."""

    def __init__(self, name: str) -> None:
        self.spec = SPECS[name]

    def table(self) -> Table:
        random = np.random.default_rng(0)
        rows = [*_aligned(), *_cancelled(), *_of_products(random), *_any(random)]
        a = np.array([row[1] for row in rows]).astype(np.float16)
        b = np.array([row[2] for row in rows]).astype(np.float16)
        c = np.array([row[3] for row in rows], np.float32)
        return {
            "rule": np.array([row[0] for row in rows]),
            "a": a,
            "b": b,
            "c": c,
            "d": _sums(a, b, c, self.spec),
        }

    def format_of(self, key: str) -> Format | None:
        return None

    def mistakes(self, table: Table) -> dict[str, Table]:
        a = table["a"]
        b = table["b"]
        c = table["c"]
        found = {f"the sums of a {name}": _sums(a, b, c, spec) for name, spec in SPECS.items()}
        # C is one term more
        x = np.column_stack([c, a]).T.astype(np.float64)
        y = np.column_stack([np.ones_like(c), b]).T.astype(np.float64)
        one_by_one = next(sums(x, y, Arithmetic("FP32"), "one by one"))
        exact = next(sums(x, y, Arithmetic("FP64", FP64), "pairwise"))
        found["FP32 additions one by one"] = one_by_one.astype(np.float32)
        found["an exact sum, rounded once"] = exact.astype(np.float32)
        return {name: {"d": wrong} for name, wrong in found.items()}


def _sums(a: NDArray[Any], b: NDArray[Any], c: NDArray[Any], spec: MmaSpec) -> NDArray[Any]:
    return emulate(a[:, None], b[:, :, None], c[:, None, None], spec)[:, 0, 0]


def _aligned() -> Iterator[Row]:
    """Yield sums whose small terms lose bits beside a term of 1."""
    for bits in (22, 23, 24, 25, 26):
        # the product of the two factors is 2^-bits
        a = np.full(TERMS, 2.0 ** -(bits // 2))
        b = np.full(TERMS, 2.0 ** -(bits - bits // 2))
        yield f"bits behind the point: terms of 2^-{bits} beside C = 1", a, b, 1.0
        first_is_1 = a.copy(), b.copy()
        first_is_1[0][0] = 1.0
        first_is_1[1][0] = 1.0
        yield f"length of a block: 1, then terms of 2^-{bits}", *first_is_1, 0.0
        yield f"terms are cut toward zero: -2^-{bits} and a half beside C = 1", a * -1.5, b, 1.0


def _cancelled() -> Iterator[Row]:
    """Yield sums of a small term between two large ones that cancel."""
    for power in (8, 9, 10):
        a = np.zeros(TERMS)
        b = np.ones(TERMS)
        a[:3] = 2.0**power, 2.0**-power, -(2.0**power)
        b[:3] = 2.0**power, 2.0**-5, 2.0**power
        yield "a small term between large ones that cancel", a, b, 0.0


def _of_products(random: np.random.Generator) -> Iterator[Row]:
    """Yield sums of products of 2 and more, of sums with many bits, and of subnormal operands."""
    for _ in range(4):
        a, b = random.integers(1536, 2048, (2, TERMS)) / 1024.0
        smaller = a * 2.0 ** -random.integers(0, 12, TERMS)
        yield "products of 2 and more are not normalised", smaller, b, 0.5
        mixed = b * random.choice([1, 2.0**-11], TERMS)
        yield "the sum is cut, not rounded", a, mixed, 0.0
        tiny = random.integers(1, 1024, TERMS) * 2.0**-24
        third = float(np.float32(2.0**-14 / 3))
        yield "subnormal operands align as normal ones", tiny, b, third


def _any(random: np.random.Generator) -> Iterator[Row]:
    for _ in range(16):
        a, b = random.standard_normal((2, TERMS)) * 2.0 ** random.integers(-8, 8, (2, TERMS))
        c = float(np.float32(random.standard_normal() * 30))
        yield "any sum", a, b, c
