"""Random right results, none of which is suspected."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from labkit import testing
from labkit.formats import BF16, FP16
from labkit.gemm import SPECS, emulate
from labkit.testing import compare, layer_norm, matmul, rms_norm, softmax, sum_over
from tests.testing.kernels import in_turn, norm, online, rescale, rms, slices

KINDS = (
    "normal",
    "positive",
    "rows of all sizes",
    "wide",
    "constant",
    "whole",
    "far from 0",
    "sparse",
)


def draw(random: np.random.Generator, kind: str, rows: int, columns: int) -> Tensor:
    """Return numbers [rows, columns] of one of KINDS."""
    shape = rows, columns
    x = random.standard_normal(shape)
    by_kind = {
        "normal": x,
        "positive": np.abs(x),
        "rows of all sizes": x * np.exp(3 * random.standard_normal((rows, 1))),
        "wide": x * 2.0 ** random.integers(-8, 8, shape),
        "constant": np.full(shape, 0.1),
        "whole": random.integers(-3, 4, shape).astype(float),
        "far from 0": x + 100,
        "sparse": np.where(random.random(shape) < 0.95, 0.0, x),
    }
    return torch.from_numpy(by_kind[kind]).float()


def in_some_order(random: np.random.Generator, a: Tensor, b: Tensor) -> Tensor:
    """Return FP32 sums of products in a random order: one by one, in slices, or along a tree."""
    places = torch.from_numpy(random.permutation(a.shape[1]))
    a = a[:, places]
    b = b[places]
    way = random.choice(["one by one", "slices", "tree"])
    if way == "one by one":
        return in_turn(a, b)
    if way == "slices":
        return slices(a, b, int(random.integers(1, 65)))
    return slices(a, b, a.shape[1])


def verdict_on_product(
    random: np.random.Generator, a: Tensor, b: Tensor, out: torch.dtype
) -> testing.Verdict:
    """Return the verdict on a right product, sometimes of a card's Tensor Cores."""
    if a.dtype is not torch.float32 and random.random() < 0.3:
        card = str(random.choice(["A100", "H100"]))
        operands = BF16 if a.dtype is torch.bfloat16 else FP16
        got = emulate(a, b, None, SPECS[card].for_operands(operands))
        return compare(got.to(out), matmul(a, b), accumulator=card)
    return compare(in_some_order(random, a, b).to(out), matmul(a, b), accumulator="FP32")


def verdict_on_reduction(
    random: np.random.Generator, a: Tensor, out: torch.dtype
) -> testing.Verdict:
    """Return the verdict on a right softmax, norm, sum or mean along the rows."""
    block = int(random.integers(16, 64))
    wide = a.float()
    results = {
        "softmax": (online(a, block, rescale), softmax(a)),
        "softmax, torch": (torch.softmax(wide, 1), softmax(a)),
        "layer norm": (norm(a), layer_norm(a)),
        "layer norm, torch": (F.layer_norm(wide, (a.shape[1],)), layer_norm(a)),
        "RMS norm": (rms(a), rms_norm(a)),
        "sum": (wide.sum(1), sum_over(a, 1)),
        "mean": (wide.mean(1), testing.mean(a, 1)),
    }
    got, operation = results[str(random.choice(list(results)))]
    return compare(got.to(out), operation)


def suspected(seed: int, count: int) -> list[str]:
    """Return the verdicts on random right results that call them no rounding."""
    random = np.random.default_rng(seed)
    refused = []
    for _ in range(count):
        terms = int(random.choice([2, 3, 16, 64, 129, 500, 1024]))
        rows = int(random.integers(1, 40))
        columns = int(random.integers(1, 40))
        kind = str(random.choice(KINDS))
        dtype = (torch.float16, torch.bfloat16, torch.float32)[random.integers(3)]
        out = (torch.float32, dtype)[random.integers(2)]
        a = draw(random, kind, rows, terms).to(dtype)
        b = draw(random, kind, terms, columns).to(dtype)
        verdicts = [verdict_on_product(random, a, b, out), verdict_on_reduction(random, a, out)]
        refused += [f"{kind}, {dtype}: {verdict}" for verdict in verdicts if not verdict]
    return refused


@pytest.mark.parametrize(
    ("seed", "count"),
    [(0, 25), *(pytest.param(seed, 200, marks=pytest.mark.slow) for seed in range(1, 6))],
)
def test_random_right_results_are_not_suspected(seed: int, count: int) -> None:
    assert suspected(seed, count) == []
