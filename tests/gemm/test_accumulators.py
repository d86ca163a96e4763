"""Plain accumulators, which round only where documented, against exact integer arithmetic."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from labkit.formats import BF16, E4M3, FP16, FP32, Format
from labkit.gemm import (
    ACCUMULATORS,
    EXACT,
    PAIRWISE_FP32,
    SEQUENTIAL_FP16,
    SEQUENTIAL_FP32,
    SPECS,
    Accumulator,
    accumulate,
    emulate,
)
from labkit.gemm.accumulators import SumOrder, instruction_for
from labkit.interop import dtype_of
from tests.oracles.mma_reference import GRID, to_format, whole

SEED = 3


def dot(
    a: Sequence[float],
    b: Sequence[float],
    by: Accumulator,
    dtype: torch.dtype,
    c: float = 0.0,
    out: Format = FP32,
) -> float:
    rows = torch.tensor([list(a)], dtype=torch.float64)
    columns = torch.tensor([list(b)], dtype=torch.float64).T
    return accumulate(rows.to(dtype), columns.to(dtype), torch.tensor([[c]]), by, out).item()


def test_worked_example_4096_ones() -> None:
    ones = torch.ones(1, 4096).half()
    counts = {
        name: accumulate(ones, ones.T, accumulator=by).item() for name, by in ACCUMULATORS.items()
    }
    # 2048 + 1 = 2049 is a tie between 2048 and 2050, and 2048 is even: FP16 stops there for good.
    assert counts == {
        "sequential FP16": 2048.0,
        "sequential FP32": 4096.0,
        "pairwise FP32": 4096.0,
        "exact": 4096.0,
    }
    assert (
        accumulate(ones[:, :2049], ones[:, :2049].T, accumulator=SEQUENTIAL_FP16).item() == 2048.0
    )


def test_worked_example_of_four_accumulators() -> None:
    # 1 + 3 * 2^-24: one 2^-24 is half an ulp of FP32, so its sum with 1 is a tie; two are a whole
    # ulp.
    a = [1.0, 1.0, 1.0, 1.0]
    b = [1.0, 2.0**-24, 2.0**-24, 2.0**-24]
    assert dot(a, b, SEQUENTIAL_FP32, torch.float16) == 1.0
    assert dot(a, b, PAIRWISE_FP32, torch.float16) == 1 + 2.0**-23
    # The exact sum is 1 plus 1.5 ulps, a tie that goes to the even 1 + 2^-22.
    assert dot(a, b, EXACT, torch.float16) == 1 + 2.0**-22
    assert dot(a, b, SEQUENTIAL_FP16, torch.float16) == 1.0


# --- oracles: every rounding in integers -----------------------------------------------------


def product(x: float, y: float) -> int:
    """Return x * y exactly, as a multiple of 2^-GRID."""
    return whole(x) * whole(y) >> GRID


def sequential(a: list[float], b: list[float], c: float, result: str) -> float:
    for x, y in zip(a, b, strict=True):
        if math.isinf(c):
            return c
        c = to_format(whole(c) + product(x, y), result)
    return c


def pairwise(a: list[float], b: list[float], c: float) -> float:
    layer = [to_format(product(x, y), "FP32") for x, y in zip(a, b, strict=True)]
    while len(layer) > 1:
        pairs = [
            to_format(whole(x) + whole(y), "FP32")
            for x, y in zip(layer[::2], layer[1::2], strict=False)
        ]
        layer = pairs + layer[2 * len(pairs) :]
    return to_format(whole(layer[0]) + whole(c), "FP32")


def exact(a: list[float], b: list[float], c: float, result: str) -> float:
    return to_format(whole(c) + sum(product(x, y) for x, y in zip(a, b, strict=True)), result)


def next_towards_zero(values: torch.Tensor) -> torch.Tensor:
    """Return the next numbers of the dtype; no value is 0.

    In the code of a float, the magnitude follows the sign bit, so the code before it is that of the
    next smaller magnitude.
    """
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32}[values.itemsize]
    return (values.view(integers) - 1).view(values.dtype)


def numbers(
    dtype: torch.dtype, wide: float, count: int = 150, k: int = 13
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return operands a and b, and c, whose dot products cancel in half of the rows.

    Their magnitudes spread over 2^-wide to 2^wide. In every second row products cancel in pairs; in
    every fourth row, one of the pairs cancels only nearly: one factor is the next number.
    """
    g = torch.Generator().manual_seed(SEED)

    def draw(*shape: int) -> torch.Tensor:
        spread = torch.exp2((torch.rand(*shape, generator=g) * 2 - 1) * wide)
        return torch.randn(*shape, generator=g) * spread

    # numbers of the dtype, in FP32, since torch computes little in FP8
    a = draw(count, k).to(dtype).float()
    b = draw(count, k).to(dtype).float()
    a[::2, 1::2] = -a[::2, :-1:2]
    b[::2, 1::2] = b[::2, :-1:2]
    b[::4, 1] = next_towards_zero(b[::4, 1].to(dtype)).float()
    # just inside the range of FP16, so that C itself is finite
    c = draw(count).half().float().clamp(-60000, 60000)
    return a.to(dtype), b.to(dtype), c


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_drawn_pairs_cancel_nearly(dtype: torch.dtype) -> None:
    a, b, _ = numbers(dtype, 3.0)
    products = a.double() * b.double()
    pairs = products[::4, 0] + products[::4, 1]
    assert (pairs != 0).all()
    assert (pairs.abs() <= 2 * torch.finfo(dtype).eps * products[::4, 0].abs()).all()


# How far the exponents of operands spread in each dtype without overflow.
DTYPES = {torch.float16: 6.0, torch.bfloat16: 40.0, torch.float32: 40.0, torch.float8_e4m3fn: 3.0}


def test_against_exact_arithmetic() -> None:
    oracles = {
        "sequential FP16": lambda *case: sequential(*case, "FP16"),
        "sequential FP32": lambda *case: sequential(*case, "FP32"),
        "pairwise FP32": pairwise,
        "exact": lambda *case: exact(*case, "FP32"),
    }
    for dtype, wide in DTYPES.items():
        a, b, c = numbers(dtype, wide)
        for name, by in ACCUMULATORS.items():
            ours = accumulate(a[:, None], b[:, :, None], c[:, None, None], by)[:, 0, 0].tolist()
            cases = zip(a.double().tolist(), b.double().tolist(), c.tolist(), strict=True)
            assert ours == [oracles[name](*case) for case in cases], (name, dtype)


def test_exact_is_rounded_once_to_any_format() -> None:
    a, b, c = numbers(torch.float16, 6.0)
    for out in (FP32, FP16, BF16):
        ours = accumulate(a[:, None], b[:, :, None], c[:, None, None], EXACT, out)
        assert ours.dtype == dtype_of(out)
        cases = zip(a.double().tolist(), b.double().tolist(), c.tolist(), strict=True)
        assert ours[:, 0, 0].tolist() == [exact(*case, out.name) for case in cases], out


def test_exact_is_not_a_sum_in_fp64() -> None:
    # 1 + 2^-24 is a tie of FP32 that goes down to 1; with 2^-90 on top it must go up, and FP64
    # cannot see that.
    for sign, expected in ((1.0, 1 + 2.0**-23), (-1.0, 1.0)):
        a = [1.0, 2.0**-12, sign * 2.0**-45]
        b = [1.0, 2.0**-12, 2.0**-45]
        assert np.float32(1 + 2.0**-24 + sign * 2.0**-90) == 1.0
        assert dot(a, b, EXACT, torch.float32) == expected
        assert dot([1.0, *a], [2.0**60, *b], EXACT, torch.float32, c=-(2.0**60)) == expected
    # The smallest and the largest number in a row: slices of it are added until none is left.
    assert (
        dot([BF16.max] * 2, [BF16.max, -BF16.max], EXACT, torch.bfloat16, c=2.0**-149) == 2.0**-149
    )


@pytest.mark.parametrize(
    ("a", "b", "c", "sign"),
    [
        ([-0.0], [1.0], -0.0, -1.0),
        ([0.0, -0.0], [-1.0, 1.0], -0.0, -1.0),
        ([-0.0], [1.0], 0.0, 1.0),
        ([-0.0, 0.0], [1.0, 1.0], -0.0, 1.0),
        ([1.0, 1.0], [1.0, -1.0], -0.0, 1.0),
    ],
)
def test_exact_zero_is_negative_if_all_terms_are(
    a: list[float], b: list[float], c: float, sign: float
) -> None:
    total = dot(a, b, EXACT, torch.float32, c=c)
    assert total == 0
    assert math.copysign(1.0, total) == sign


def test_exact_over_a_long_sum_that_cancels() -> None:
    # The sum of 1000 products of 24-bit numbers, minus the FP32 number nearest to it: only an exact
    # sum has the difference. Numbers from 1/2 to 1 have few different exponents, so their sum has
    # many bits.
    a, b = torch.rand(2, 4, 1000, generator=torch.Generator().manual_seed(SEED)) / 2 + 0.5
    nearest = [
        exact(*case, 0.0, "FP32")
        for case in zip(a.double().tolist(), b.double().tolist(), strict=True)
    ]
    ours = accumulate(a[:, None], b[:, :, None], -torch.tensor(nearest)[:, None, None], EXACT)[
        :, 0, 0
    ].tolist()
    cases = zip(a.double().tolist(), b.double().tolist(), nearest, strict=True)
    assert ours == [exact(x, y, -c, "FP32") for x, y, c in cases]
    assert 0.0 not in ours


def test_fused_multiply_add_rounds_once() -> None:
    # A product that is a tie of FP32, beside a tiny number: a sum in FP64 drops the tiny number and
    # rounds a tie where there is none.
    x = 1 + 2.0**-12
    tiny = 2.0**-80
    # x^2 = 1 + 2^-11 + 2^-24 is halfway between two numbers of FP32.
    a = [tiny, x]
    b = [1.0, x]
    assert dot(a, b, SEQUENTIAL_FP32, torch.float32) == 1 + 2.0**-11 + 2.0**-23
    assert dot([-tiny, x], b, SEQUENTIAL_FP32, torch.float32) == 1 + 2.0**-11
    # Without the tiny number it is a tie, which goes to even.
    assert dot([0.0, x], b, SEQUENTIAL_FP32, torch.float32) == 1 + 2.0**-11


def test_infinities_and_nan_follow_ieee_754() -> None:
    for by in ACCUMULATORS.values():
        assert dot([math.inf, 1.0], [1.0, 1.0], by, torch.float16) == math.inf, by
        assert dot([1.0, 1.0], [1.0, -math.inf], by, torch.float16) == -math.inf, by
        for a, b in (
            ([math.inf, 1.0], [0.0, 1.0]),
            ([math.inf, math.inf], [1.0, -1.0]),
            ([math.nan], [0.0]),
        ):
            assert math.isnan(dot(a, b, by, torch.float16)), (by, a, b)


def test_a_partial_sum_that_overflows_stays_infinite() -> None:
    a = [256.0] * 3
    b = [250.0, 250.0, -250.0]
    # 64000 + 64000 is beyond FP16, though the whole sum is not.
    assert dot(a, b, SEQUENTIAL_FP16, torch.float16) == math.inf
    assert dot(a, b, EXACT, torch.float16, out=FP16) == 64000.0


def test_a_tensor_core_is_an_accumulator() -> None:
    a = torch.randn(4, 40).half()
    b = torch.randn(40, 3).half()
    assert torch.equal(accumulate(a, b, None, SPECS["V100"]), emulate(a, b, None, SPECS["V100"]))
    assert torch.equal(
        accumulate(a, b, None, SPECS["V100"], FP16), emulate(a, b, None, SPECS["V100"]).half()
    )
    wide = (a.bfloat16(), b.bfloat16())
    spec = SPECS["A100"].for_operands(BF16)
    # `accumulate` selects the row of a GPU that has the dtype of the operands.
    assert torch.equal(accumulate(*wide, None, SPECS["A100"]), emulate(*wide, None, spec))
    fp8 = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
    assert torch.equal(
        accumulate(*fp8, None, SPECS["H100"]), emulate(*fp8, None, SPECS["H100"].for_operands(E4M3))
    )
    with pytest.raises(ValueError, match="V100 Tensor Cores take FP16 operands; asked for BF16"):
        accumulate(*wide, None, SPECS["V100"])


def test_sums_are_refused_in_a_format_that_is_not_computed() -> None:
    with pytest.raises(ValueError, match="expected format FP16 or FP32 for SEQUENTIAL sums, got B"):
        Accumulator("narrow", SumOrder.SEQUENTIAL, BF16)
    with pytest.raises(ValueError, match="expected format FP32 for PAIRWISE sums, got FP16"):
        Accumulator("narrow", SumOrder.PAIRWISE, FP16)
    with pytest.raises(ValueError, match="expected format None for EXACT sums, got FP32"):
        Accumulator("wide", SumOrder.EXACT, FP32)


def test_the_formats_of_operands_may_be_named() -> None:
    fp32 = torch.tensor([[1.0, 2.0]])
    named = accumulate(fp32, fp32.T, accumulator="A100", operands=("BF16", torch.bfloat16))
    assert torch.equal(named, accumulate(fp32, fp32.T, None, SPECS["A100"], FP32, (BF16, BF16)))


def test_an_instruction_of_other_operands_keeps_the_result() -> None:
    halves = replace(SPECS["Ada"], result=FP16)
    assert instruction_for(halves, E4M3).result == FP16
    # The instruction for BF16 has FP32 results only.
    assert instruction_for(halves, BF16).result == FP32
    assert instruction_for(SPECS["Ada"], E4M3).result == FP32


def test_operands_of_the_two_fp8_formats_are_multiplied() -> None:
    a = torch.tensor([[1.75, -2.0]]).to(torch.float8_e4m3fn)
    b = torch.tensor([[3.0], [0.5]]).to(torch.float8_e5m2)
    assert accumulate(a, b).item() == 1.75 * 3 - 1
    assert accumulate(b.T, a.T).item() == 1.75 * 3 - 1


@pytest.mark.parametrize("other", [torch.float16, torch.float32])
def test_an_fp8_operand_beside_a_wider_one_is_refused(other: torch.dtype) -> None:
    a = torch.ones(1, 1).to(torch.float8_e4m3fn)
    with pytest.raises(ValueError, match="expected A and B of one dtype"):
        accumulate(a, torch.ones(1, 1, dtype=other))


def test_shapes_and_tiles_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    a = torch.randn(2, 9, 20).half()
    b = torch.randn(2, 20, 7).half()
    for by in (*ACCUMULATORS.values(), SPECS["A100"]):
        for m, n, k in ((3, 5, 7), (5, 3, 0), (0, 3, 4), (1, 1, 1)):
            c = torch.arange(m * n).reshape(m, n).float()
            assert torch.equal(
                accumulate(torch.ones(m, k).half(), torch.ones(k, n).half(), c, by), c + k
            ), (by, m, k)
        untiled = accumulate(a, b, None, by)
        with monkeypatch.context() as patch:
            # 40 elements are less than one product of these shapes, so each is cut into tiles.
            patch.setattr("labkit.gemm.accumulators.TILE", 40)
            assert torch.equal(accumulate(a, b, None, by), untiled), by


def test_invalid_accumulators_and_operands_are_refused() -> None:
    ones = torch.ones(2, 2).half()
    with pytest.raises(ValueError, match=r"expected one of sequential FP16, .*, got 'FP16'"):
        accumulate(ones, ones, None, "FP16")
    with pytest.raises(TypeError, match=r'got a dtype\. For sums in FP16: "sequential FP16"'):
        accumulate(ones, ones, None, torch.float16)
    with pytest.raises(ValueError, match=r"of one dtype, FP32 or narrower, got torch\.float64"):
        accumulate(ones.double(), ones.double())
    with pytest.raises(TypeError, match=r"C: expected a Tensor, got .*Pass None for zeros"):
        accumulate(ones, ones, [0.0])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected FP16 values in C"):
        accumulate(ones, ones, torch.full((2, 2), 0.1), SEQUENTIAL_FP16)
