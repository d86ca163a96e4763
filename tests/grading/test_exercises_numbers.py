"""The exercises of lessons 01 to 04: their references against oracles from outside.

The oracles are numpy, ml_dtypes, gfloat, decimal numbers and torch.
"""

import dataclasses
import math
from decimal import ROUND_DOWN, Decimal, localcontext
from typing import Any

import gfloat
import ml_dtypes
import numpy as np
import pytest
import torch
from gfloat.formats import format_info_binary16, format_info_binary32, format_info_ocp_e4m3
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from labkit.formats import FP16, Format, add, decode, next_down
from labkit.grading import check
from tests.grading.cases import cases, reference

# --- lessons 01 and 02: numbers and rounding ---

CODES = np.arange(65536, dtype=np.uint16)
EVERY = CODES.view(np.float16)


def test_decode_is_numpys_view() -> None:
    decode = reference("numbers.decode")
    for code in CODES[::37].tolist():
        np.testing.assert_equal(decode(code, 5, 10, 15), float(EVERY[code]))


def test_decode_with_any_bias_is_labkits_times_a_power_of_two() -> None:
    for code, exponent_bits, significand_bits, bias in cases("numbers.decode"):
        usual = Format("drawn", exponent_bits, significand_bits)
        expected = float(decode(code, usual)) * 2.0 ** (usual.bias - bias)
        got = reference("numbers.decode")(code, exponent_bits, significand_bits, bias)
        np.testing.assert_equal(got, expected)


def test_ulp_is_numpys_spacing() -> None:
    """At 65504, numpy steps to infinity; there the answer is the distance to the number below."""
    below_max = EVERY[np.abs(EVERY) < 65504]
    for x in [
        *below_max[::41],
        *(np.float16(x) for x, *ends in cases("numbers.ulp", [0]) if ends == [10, -14]),
    ]:
        if abs(x) < 65504:
            assert reference("numbers.ulp")(float(x), 10, -14) == float(np.spacing(np.abs(x)))
    for x in np.float32([1.5, 1e-40, -3e38, 0.0]):
        assert reference("numbers.ulp")(float(x), 23, -126) == float(np.spacing(np.abs(x)))
    assert reference("numbers.ulp")(65504.0, 10, -14) == 65504 - float(
        np.nextafter(np.float16(65504), np.float16(0))
    )


def test_next_up_is_numpys_nextafter() -> None:
    with np.errstate(over="ignore", under="ignore"):
        after = np.nextafter(EVERY, np.float16(np.inf)).view(np.uint16)
    next_up = reference("numbers.next_up")
    codes = CODES[~np.isnan(EVERY)].tolist()
    assert all(next_up(code, 5, 10, 1) == after[code] for code in codes)


def test_many_steps_up_are_many_single_ones() -> None:
    next_up = reference("numbers.next_up")
    for start in (0xFC00, 0xBC00, 0x8003, 0x8000, 0x0000, 0x3BFE, 0x7BF0):
        code = start
        for steps in range(1, 40):
            code = next_up(code, 5, 10, 1)
            assert next_up(start, 5, 10, steps) == code, (hex(start), steps)
    assert next_up(0xFC00, 5, 10, 10**6) == 0x7C00


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
        for x in [*numbers, *(case[0] for case in cases("rounding.nearest_even"))]:
            assert reference("rounding.nearest_even")(x, 10, -14, 65504.0) == float(np.float16(x))
            as_e4m3 = gfloat.round_float(format_info_ocp_e4m3, x)
            ours = reference("rounding.nearest_even")(x, 3, -6, 448.0)
            # E4M3 has no infinity, so gfloat overflows to NaN.
            assert ours == as_e4m3 or (math.isinf(ours) and math.isnan(as_e4m3))


def test_smallest_update_moves_and_the_one_below_does_not() -> None:
    """The additions are computed with integers.

    A rounded sum never falls when a term grows, so it is enough to try the answer and the number
    below it.
    """
    for (weight,) in cases("rounding.smallest_update"):
        update = float(reference("rounding.smallest_update")(weight))
        below = next_down(update, FP16)
        assert add(weight, update, FP16).value != weight
        assert add(weight, below, FP16).value == weight


def test_stochastic_gives_a_neighbour_and_the_right_share() -> None:
    stochastic = reference("rounding.stochastic")
    for x, spacing in {case[:2] for case in cases("rounding.stochastic", [0])}:
        answers = [stochastic(x, spacing, (2 * i + 1) / 2000) for i in range(1000)]
        below = np.floor(x / spacing) * spacing
        above = np.ceil(x / spacing) * spacing
        assert set(answers) <= {below, above}
        assert np.mean(answers) == pytest.approx(x, rel=1e-12)


def test_kahan_is_near_the_exact_sum() -> None:
    for values, total, lost in cases("rounding.kahan"):
        ours = reference("rounding.kahan")(values, total, lost)
        assert type(ours) is np.float16
        if not len(values):
            assert ours == total
            continue
        numbers = [float(total), -float(lost), *values.tolist()]
        exact = math.fsum(numbers)
        magnitude = math.fsum(map(abs, numbers))
        # Higham, Accuracy and Stability, 4.3: at most 2u + O(n u^2) of the sum of magnitudes; u =
        # 2^-11.
        assert abs(float(ours) - exact) <= (2 * 2.0**-11 + 2 * len(values) * 2.0**-22) * magnitude


def test_epsilon_is_what_float64_gives_rounded_once() -> None:
    for (x,) in cases("rounding.epsilon"):
        wide = x.double().numpy()
        exact = wide / (np.sqrt(np.mean(wide**2)) + 1e-8)
        ours = reference("rounding.epsilon")(x).numpy()
        assert (np.abs(ours - exact) <= np.spacing(np.abs(exact).astype(np.float16))).all()


def test_a_number_in_an_array_without_dimensions_is_a_number() -> None:
    """numpy and labkit.formats return such arrays. They cost no points."""
    grade = check(
        "rounding.smallest_update",
        lambda weight: np.asarray(reference("rounding.smallest_update")(weight)),
    )
    assert all(verdict.passed for verdict in grade.verdicts)


def test_a_counter_example_shows_bits_where_bits_are_the_point() -> None:
    (first, *_) = [
        v.counter_example
        for v in check("numbers.next_up", lambda code, e, s, steps: code + steps).verdicts
        if not v.passed
    ]
    assert first is not None
    assert dict(first.inputs) == {
        "code": "0xBC00",
        "exponent_bits": "5",
        "significand_bits": "10",
        "steps": "1",
        "that is": "S 1  E 01111  F 0000000000  -1",
        "then comes": "S 1  E 01110  F 1111111111  -0.999512",
    }


# --- lesson 03: Tensor Cores ---


def test_flops_and_bytes_are_torchs() -> None:
    answers = set()
    for batch, inputs, outputs, bytes_each, ridge in cases("tensor.intensity"):
        # shapes only: nothing is computed
        with torch.device("meta"), FlopCounterMode(display=False) as counter:
            x = torch.empty(batch, inputs)
            layer = nn.Linear(inputs, outputs, bias=False)
            y = layer(x)
        flops, moved, bound = reference("tensor.intensity")(
            batch, inputs, outputs, bytes_each, ridge
        )
        assert flops == counter.get_total_flops()
        assert moved == bytes_each * (x.numel() + layer.weight.numel() + y.numel())
        assert bound == ("bandwidth" if flops < ridge * moved else "compute")
        answers.add(bound)
    assert answers == {"bandwidth", "compute"}


def in_decimals(
    a: list[float], b: list[float], c: float, fraction_bits: int, result_bits: int
) -> float:
    """Add a block in decimal numbers, which are exact here; gfloat truncates the sum."""

    def exponent(x: float) -> int:
        return int(np.frexp(x)[1]) - 1

    with localcontext(prec=200):
        terms = [Decimal(x) * Decimal(y) for x, y in zip(a, b, strict=True)] + [Decimal(c)]
        powers = [exponent(x) + exponent(y) for x, y in zip(a, b, strict=True)] + [exponent(c)]
        largest = max((power for term, power in zip(terms, powers, strict=True) if term), default=0)
        unit = Decimal(2) ** (largest - fraction_bits)
        total = (
            sum(((term / unit).to_integral_value(ROUND_DOWN) for term in terms), Decimal(0)) * unit
        )
        exact = float(total)
        assert Decimal(exact) == total
    narrow = dataclasses.replace(
        format_info_binary32,
        name="drawn",
        k=8 + result_bits,
        precision=result_bits,
        num_high_nans=2 ** (result_bits - 1) - 1,
    )
    return float(gfloat.round_float(narrow, exact, gfloat.RoundMode.TowardZero))


def test_a_block_is_what_decimal_numbers_add_up_to() -> None:
    for a, b, c, fraction_bits, result_bits in cases("tensor.block"):
        assert all(
            float(np.float16(x)) == x and (abs(x) >= 2.0**-14 or x == 0) for x in (*a, *b)
        ), "normal, in FP16"
        assert float(np.float32(c)) == c
        assert len(a) == len(b)
        assert len(b) <= 16
        assert fraction_bits in (23, 24, 25)
        block = (a, b, c, fraction_bits, result_bits)
        assert reference("tensor.block")(*block) == in_decimals(*block)


def test_padding_is_torchs_and_changes_no_result() -> None:
    for x, weight in cases("tensor.padding"):
        wide, tall, y = reference("tensor.padding")(x, weight)
        for old, new in ((x, wide), (weight, tall)):
            rows, columns = (-size % 8 for size in old.shape)
            assert torch.equal(new, F.pad(old, (0, columns, 0, rows)))
        assert torch.equal(y, F.linear(x.double(), weight.double()).half())


def test_the_standstill_is_where_gfloats_rounding_stops() -> None:
    for a, b in cases("tensor.standstill"):
        k, total = 0, 0.0
        while True:
            longer = gfloat.round_float(format_info_binary16, math.fsum([total, a * b]))
            if longer == total:
                break
            k = k + 1
            total = longer
        assert reference("tensor.standstill")(a, b) == (k, total)


def test_backward_is_torchs_autograd_and_counts_its_flops() -> None:
    for x, weight, grad_y in cases("tensor.backward"):
        x = x.clone().requires_grad_()
        weight = weight.clone().requires_grad_()
        y = F.linear(x, weight)
        with FlopCounterMode(display=False) as counter:
            y.backward(grad_y)
        grad_x, grad_weight, shapes = reference("tensor.backward")(
            x.detach(), weight.detach(), grad_y
        )
        assert torch.equal(grad_x, x.grad)
        assert torch.equal(grad_weight, weight.grad)
        assert [shape[:2] for shape in shapes] == [grad_x.shape, grad_weight.shape]
        assert sum(2 * math.prod(shape) for shape in shapes) == counter.get_total_flops()


# --- lesson 04: gradients ---


def halves(numbers: Any) -> Any:
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(numbers, dtype=np.float32).astype(np.float16)


def test_binades_are_numpys_exponents() -> None:
    for values, width in cases("gradients.binades"):
        inside = np.array([x for x in values if x and math.isfinite(x)])
        exponents, counts = np.unique(
            np.floor_divide(np.frexp(inside)[1] - 1, width), return_counts=True
        )
        assert reference("gradients.binades")(values, width) == dict(
            zip(exponents.tolist(), counts.tolist(), strict=True)
        )


def test_a_lost_binade_is_one_whose_numbers_numpy_rounds_to_zero() -> None:
    for counts, k, smallest in cases("gradients.fate"):
        moved = k - 24 - smallest
        inside = np.repeat([1.5 * 2.0 ** (e + moved) for e in counts], list(counts.values()))
        lost = float((halves(inside) == 0).mean()) if len(inside) else 0.0
        assert reference("gradients.fate")(counts, k, smallest) == pytest.approx(lost)


def test_lost_is_counted_on_one_long_array() -> None:
    for in_fp32, in_fp16, noise in cases("gradients.lost"):
        exact, half = (
            np.concatenate([np.ravel(t.numpy()) for t in some] or [[]])
            for some in (in_fp32, in_fp16)
        )
        alive = np.abs(exact) > noise
        share = (half[alive] == 0).mean() if alive.any() else 0.0
        assert reference("gradients.lost")(in_fp32, in_fp16, noise) == pytest.approx(share)


def test_a_window_holds_the_scales_at_which_numpy_keeps_both() -> None:
    for smallest, largest in cases("gradients.window"):
        kept = [
            k
            for k in range(-40, 61)
            if halves(smallest * 2.0**k) > 0 and np.isfinite(halves(largest * 2.0**k))
        ]
        expected = (kept[0], kept[-1]) if kept else None
        assert reference("gradients.window")(smallest, largest) == expected


def test_culprit_is_the_first_from_the_front() -> None:
    for (tensors,) in cases("gradients.culprit"):
        expected, before = None, 0.0
        for i in reversed(range(len(tensors))):
            if not np.isfinite(tensors[i][1].numpy()).all():
                before = float(np.abs(tensors[i - 1][1].numpy()).max()) if i else 0.0
                expected = (tensors[i][0], before)
        assert reference("gradients.culprit")(tensors) == expected
