"""The exercises of lesson 04: what their references answer, numpy answers too, from its own float16."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.grading.cases import cases, reference


def halves(numbers: Any) -> Any:
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(numbers, dtype=np.float32).astype(np.float16)


def test_binades_are_numpys_exponents() -> None:
    for (values,) in cases("gradients.binades"):
        inside = np.array([x for x in values if x and math.isfinite(x)])
        exponents, counts = np.unique(np.frexp(inside)[1] - 1, return_counts=True)
        assert reference("gradients.binades")(values) == dict(zip(exponents.tolist(), counts.tolist(), strict=True))


def test_a_lost_binade_is_one_whose_numbers_numpy_rounds_to_zero() -> None:
    for counts, k in cases("gradients.fate"):
        inside = np.repeat([1.5 * 2.0 ** (e + k) for e in counts], list(counts.values()))
        lost = float((halves(inside) == 0).mean()) if len(inside) else 0.0
        assert reference("gradients.fate")(counts, k) == pytest.approx(lost)


def test_lost_is_counted_on_one_long_array() -> None:
    for in_fp32, in_fp16 in cases("gradients.lost"):
        exact, half = (np.concatenate([np.ravel(t.numpy()) for t in some] or [[]]) for some in (in_fp32, in_fp16))
        alive = exact != 0
        share = (half[alive] == 0).mean() if alive.any() else 0.0
        assert reference("gradients.lost")(in_fp32, in_fp16) == pytest.approx(share)


def test_a_window_holds_the_scales_at_which_numpy_keeps_both() -> None:
    for smallest, largest in cases("gradients.window"):
        kept = [k for k in range(-40, 61) if halves(smallest * 2.0**k) > 0 and np.isfinite(halves(largest * 2.0**k))]
        expected = (kept[0], kept[-1]) if kept else None
        assert reference("gradients.window")(smallest, largest) == expected


def test_the_culprit_is_the_first_from_the_front_and_the_last_from_the_back() -> None:
    for (tensors,) in cases("gradients.culprit"):
        expected, before = None, 0.0
        for i in reversed(range(len(tensors))):
            if not np.isfinite(tensors[i][1].numpy()).all():
                before = float(np.abs(tensors[i - 1][1].numpy()).max()) if i else 0.0
                expected = (tensors[i][0], before)
        assert reference("gradients.culprit")(tensors) == expected
