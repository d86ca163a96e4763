"""The exercises of lessons 01 and 02: what their references answer, numpy, ml_dtypes and torch answer too."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
import torch

from labkit.formats import FP16, add, next_down, sum_compensated
from labkit.grading import check
from tests.grading.cases import cases, reference

CODES = np.arange(65536, dtype=np.uint16)
EVERY = CODES.view(np.float16)


def test_decode_is_numpys_view() -> None:
    for code in [*CODES[::37].tolist(), *(code for (code,) in cases("numbers.decode", [0]))]:
        np.testing.assert_equal(reference("numbers.decode")(code), float(EVERY[code]))


def test_ulp_is_numpys_spacing() -> None:
    """Except at 65504, where numpy steps to infinity; there it is the distance to the number below."""
    below_max = EVERY[np.abs(EVERY) < 65504]
    for x in [*below_max[::41], *(np.float16(x) for (x,) in cases("numbers.ulp", [0]) if abs(x) < 65504)]:
        assert reference("numbers.ulp")(float(x)) == float(np.spacing(np.abs(x)))
    assert reference("numbers.ulp")(65504.0) == 65504 - float(np.nextafter(np.float16(65504), np.float16(0)))


def test_next_up_is_numpys_nextafter() -> None:
    with np.errstate(over="ignore", under="ignore"):
        after = np.nextafter(EVERY, np.float16(np.inf)).view(np.uint16)
    next_up = reference("numbers.next_up")
    assert all(next_up(code) == after[code] for code in CODES[~np.isnan(EVERY)].tolist())


def test_first_gap_is_where_a_dtype_stops_holding_whole_numbers() -> None:
    for dtype, widths, gap in (
        (np.float16, (5, 10), 2049),
        (ml_dtypes.bfloat16, (8, 7), 257),
        (ml_dtypes.float8_e5m2, (5, 2), 9),
        (ml_dtypes.float8_e3m4, (3, 4), 16),  # ends at 15.5
        (ml_dtypes.float8_e4m3, (4, 3), 17),
        (np.float32, (8, 23), 2**24 + 1),
    ):
        numbers = np.arange(max(1, gap - 5000), gap + 1, dtype=np.float64)
        with np.errstate(over="ignore"):
            held = numbers.astype(dtype).astype(np.float64) == numbers
        assert held[:-1].all(), dtype
        assert not held[-1], dtype
        assert reference("numbers.first_gap")(*widths) == gap


def test_bytes_are_torchs() -> None:
    dtypes = {8: torch.float8_e5m2, 16: torch.float16, 32: torch.float32}
    for shape, bits in cases("numbers.bytes"):
        if bits in dtypes:
            storage = torch.empty(shape, dtype=dtypes[bits]).untyped_storage()
            assert reference("numbers.bytes")(shape, bits) == storage.nbytes()


def test_nearest_even_is_numpys_float16() -> None:
    random = np.random.default_rng(0)
    numbers = (random.normal(size=1500) * 2.0 ** random.integers(-27, 17, size=1500)).tolist()
    with np.errstate(over="ignore"):
        for x in [*numbers, *(x for (x,) in cases("rounding.nearest_even"))]:
            assert reference("rounding.nearest_even")(x) == float(np.float16(x))


def test_smallest_update_moves_and_the_one_below_does_not() -> None:
    """Held against additions made of whole numbers; that a sum grows with its terms settles all the others."""
    for (weight,) in cases("rounding.smallest_update"):
        update = float(reference("rounding.smallest_update")(weight))
        below = next_down(update, FP16)
        assert add(weight, update, FP16).value != weight
        assert add(weight, below, FP16).value == weight


def test_stochastic_gives_a_neighbour_and_the_right_share() -> None:
    stochastic = reference("rounding.stochastic")
    for x, spacing in {case[:2] for case in cases("rounding.stochastic", [0])}:
        answers = [stochastic(x, spacing, (2 * i + 1) / 2000) for i in range(1000)]
        below, above = np.floor(x / spacing) * spacing, np.ceil(x / spacing) * spacing
        assert set(answers) <= {below, above}
        assert np.mean(answers) == pytest.approx(x, rel=1e-12)


def test_kahan_is_near_the_exact_sum() -> None:
    for (values,) in cases("rounding.kahan"):
        ours = reference("rounding.kahan")(values)
        assert type(ours) is np.float16
        exact, magnitude = math.fsum(values.tolist()), math.fsum(np.abs(values).tolist())
        # Higham, Accuracy and Stability, 4.3: at most 2u + O(n u^2) of the sum of magnitudes; u = 2^-11.
        assert abs(float(ours) - exact) <= (2 * 2.0**-11 + 2 * len(values) * 2.0**-22) * magnitude


def test_kahan_of_a_few_is_the_sum_made_of_whole_numbers() -> None:
    random = np.random.default_rng(0)
    for _ in range(20):
        values = random.uniform(-1, 3, size=25).astype(np.float16)
        assert reference("rounding.kahan")(values) == sum_compensated(values, FP16).value


def test_epsilon_is_what_float64_gives_rounded_once() -> None:
    for (x,) in cases("rounding.epsilon"):
        wide = x.double().numpy()
        exact = wide / (np.sqrt(np.mean(wide**2)) + 1e-8)
        ours = reference("rounding.epsilon")(x).numpy()
        assert (np.abs(ours - exact) <= np.spacing(np.abs(exact).astype(np.float16))).all()


def test_a_number_in_an_array_without_dimensions_is_a_number() -> None:
    """As numpy and labkit.formats return them: nobody should lose points for not writing float(...)."""
    grade = check("rounding.smallest_update", lambda weight: np.asarray(reference("rounding.smallest_update")(weight)))
    assert all(verdict.passed for verdict in grade.verdicts)


def test_a_counter_example_shows_bits_where_bits_are_the_point() -> None:
    (first, *_) = [v.counter_example for v in check("numbers.next_up", lambda code: code + 1).verdicts if not v.passed]
    assert first is not None
    assert dict(first.given) == {
        "code": "0xBC00",
        "that is": "S 1  E 01111  F 0000000000  -1",
        "next is": "S 1  E 01110  F 1111111111  -0.999512",
    }
