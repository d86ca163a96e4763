"""Right results of random size, data, format and order: none is suspected."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from labkit.formats import BF16, FP16
from labkit.gemm import SPECS, emulate
from labkit.testing import compare, layer_norm, matmul, mean, rms_norm, softmax, sum_over
from tests.testing.cases import norm, online, rescale, rms

KINDS = ("normal", "positive", "rows of all sizes", "wide", "constant", "whole", "far from 0", "sparse")


def draw(random: np.random.Generator, kind: str, rows: int, columns: int) -> Tensor:
    shape = rows, columns
    x = random.standard_normal(shape)
    x = {
        "normal": x, "positive": np.abs(x), "rows of all sizes": x * np.exp(3 * random.standard_normal((rows, 1))),
        "wide": x * 2.0 ** random.integers(-8, 8, shape), "constant": np.full(shape, 0.1),
        "whole": random.integers(-3, 4, shape).astype(float), "far from 0": x + 100,
        "sparse": np.where(random.random(shape) < 0.95, 0.0, x),
    }[kind]  # fmt: skip
    return torch.from_numpy(x).float()


def in_some_order(random: np.random.Generator, a: Tensor, b: Tensor) -> Tensor:
    """FP32 sums in a random order: shuffled, then one by one, in slices, or along a tree."""
    places = torch.from_numpy(random.permutation(a.shape[1]))
    terms = a.float().T[places][:, :, None] * b.float()[places][:, None]
    parts = [terms]
    if random.random() < 0.5:
        parts = list(terms.split(max(1, int(random.integers(1, 65)))))
    sums = []
    for part in parts:
        if random.random() < 0.5:
            while len(part) > 1:
                half = len(part) // 2
                part = torch.cat([part[:half] + part[half : 2 * half], part[2 * half :]])
            sums.append(part[0])
        else:
            total = torch.zeros_like(part[0])
            for term in part:
                total = total + term
            sums.append(total)
    total = sums[0]
    for each in sums[1:]:
        total = total + each
    return total


def suspected(seed: int, count: int) -> list[str]:
    """Return the verdicts on right results that are no rounding."""
    random, found = np.random.default_rng(seed), []
    for _ in range(count):
        terms, rows, columns = int(random.choice([2, 3, 16, 64, 129, 500, 1024])), *map(int, random.integers(1, 40, 2))
        kind, dtype = str(random.choice(KINDS)), [_F16, _B16, torch.float32][int(random.integers(3))]
        out = [torch.float32, dtype][int(random.integers(2))]
        a, b = draw(random, kind, rows, terms).to(dtype), draw(random, kind, terms, columns).to(dtype)
        card = str(random.choice(["A100", "H100"])) if dtype is not torch.float32 and random.random() < 0.3 else ""
        if card:
            got = emulate(a, b, None, SPECS[card].for_operands(BF16 if dtype is _B16 else FP16))
        else:
            got = in_some_order(random, a, b)
        verdicts = {f"product {card}": compare(got.to(out), matmul(a, b), accumulator=card or "FP32")}
        size = int(random.integers(16, 64))
        wide = a.float()
        others = {
            "softmax": (online(a, size, rescale), softmax(a)),
            "softmax, torch": (torch.softmax(wide, 1), softmax(a)),
            "layer norm": (norm(a), layer_norm(a)),
            "layer norm, torch": (F.layer_norm(wide, (terms,)), layer_norm(a)),
            "RMS norm": (rms(a), rms_norm(a)),
            "sum": (wide.sum(1), sum_over(a, 1)),
            "mean": (wide.mean(1), mean(a, 1)),
        }
        name = str(random.choice(list(others)))
        verdicts[name] = compare(others[name][0].to(out), others[name][1])
        found += [f"{each}, {kind}, {dtype}: {verdict}" for each, verdict in verdicts.items() if not verdict]
    return found


_F16, _B16 = torch.float16, torch.bfloat16


def test_right_results_are_not_suspected() -> None:
    assert suspected(seed=0, count=25) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_a_thousand_right_results_are_not_suspected(seed: int) -> None:
    assert suspected(seed, count=200) == []
