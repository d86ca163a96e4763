"""Plain accumulators, against exact arithmetic: they round at the documented places only."""

import math
from collections.abc import Sequence

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


def test_worked_example_four_ways_to_add_the_same_numbers() -> None:
    # 1 + 3 * 2^-24: each 2^-24 alone is half an ulp of FP32 and a tie; two together are a whole
    # one.
    a = [1.0, 1.0, 1.0, 1.0]
    b = [1.0, 2.0**-24, 2.0**-24, 2.0**-24]
    assert dot(a, b, SEQUENTIAL_FP32, torch.float16) == 1.0
    assert dot(a, b, PAIRWISE_FP32, torch.float16) == 1 + 2.0**-23
    assert dot(a, b, EXACT, torch.float16) == 1 + 2.0**-22, "1.5 ulps, to even"
    assert dot(a, b, SEQUENTIAL_FP16, torch.float16) == 1.0


# --- oracles: every rounding in whole numbers -----------------------------------------------------


def product(x: float, y: float) -> int:
    """Exactly x * y, as a multiple of 2^-GRID."""
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


def exactly(a: list[float], b: list[float], c: float, result: str) -> float:
    return to_format(whole(c) + sum(product(x, y) for x, y in zip(a, b, strict=True)), result)


def numbers(
    dtype: torch.dtype, wide: float, count: int = 150, k: int = 13
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gaussian numbers spread over 2^-wide to 2^wide, half of them cancelling in pairs, some only
    nearly.
    """
    g = torch.Generator().manual_seed(SEED)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=g) * torch.exp2(
            (torch.rand(*shape, generator=g) * 2 - 1) * wide
        )

    a = draw(count, k).to(dtype)
    b = draw(count, k).to(dtype)
    c = draw(count).half().float()
    a[::2, 1::2], b[::2, 1::2] = -a[::2, :-1:2], b[::2, :-1:2]
    b[::4, 1] = torch.nextafter(b[::4, 1].float(), torch.tensor(0.0)).to(dtype)
    return a, b, c.clamp(-60000, 60000)


DTYPES = {torch.float16: 6.0, torch.bfloat16: 40.0, torch.float32: 40.0, torch.float8_e4m3fn: 3.0}


def test_against_exact_arithmetic() -> None:
    work = {
        "sequential FP16": lambda *case: sequential(*case, "FP16"),
        "sequential FP32": lambda *case: sequential(*case, "FP32"),
        "pairwise FP32": pairwise,
        "exact": lambda *case: exactly(*case, "FP32"),
    }
    for dtype, wide in DTYPES.items():
        a, b, c = numbers(torch.float32 if dtype.itemsize == 1 else dtype, wide)
        a = a.to(dtype)
        b = b.to(dtype)
        for name, by in ACCUMULATORS.items():
            ours = accumulate(a[:, None], b[:, :, None], c[:, None, None], by)[:, 0, 0].tolist()
            cases = zip(a.double().tolist(), b.double().tolist(), c.tolist(), strict=True)
            assert ours == [work[name](*case) for case in cases], (name, dtype)


def test_exact_is_rounded_once_to_any_format() -> None:
    a, b, c = numbers(torch.float16, 6.0)
    for out in (FP32, FP16, BF16):
        ours = accumulate(a[:, None], b[:, :, None], c[:, None, None], EXACT, out)
        assert ours.dtype == dtype_of(out)
        cases = zip(a.double().tolist(), b.double().tolist(), c.tolist(), strict=True)
        assert ours[:, 0, 0].tolist() == [exactly(*case, out.name) for case in cases], out


def test_exact_is_not_a_sum_in_fp64() -> None:
    # 1 + 2^-24 is a tie of FP32 that goes down to 1; with 2^-90 on top it must go up, and FP64
    # cannot see that.
    for sign, wanted in ((1.0, 1 + 2.0**-23), (-1.0, 1.0)):
        a = [1.0, 2.0**-12, sign * 2.0**-45]
        b = [1.0, 2.0**-12, 2.0**-45]
        assert np.float32(1 + 2.0**-24 + sign * 2.0**-90) == 1.0
        assert dot(a, b, EXACT, torch.float32) == wanted
        assert dot([1.0, *a], [2.0**60, *b], EXACT, torch.float32, c=-(2.0**60)) == wanted
    # The smallest and the largest number in a row: slices of it are added until none is left.
    assert (
        dot([BF16.max] * 2, [BF16.max, -BF16.max], EXACT, torch.bfloat16, c=2.0**-149) == 2.0**-149
    )


def test_exact_over_a_long_sum_that_cancels() -> None:
    # 1000 products of 24-bit numbers, less the FP32 number nearest to their sum: only an exact sum
    # has the rest. sums as large as can be
    a, b = torch.rand(2, 4, 1000, generator=torch.Generator().manual_seed(SEED)) / 2 + 0.5
    near = [
        exactly(*case, 0.0, "FP32")
        for case in zip(a.double().tolist(), b.double().tolist(), strict=True)
    ]
    ours = accumulate(a[:, None], b[:, :, None], -torch.tensor(near)[:, None, None], EXACT)[
        :, 0, 0
    ].tolist()
    cases = zip(a.double().tolist(), b.double().tolist(), near, strict=True)
    assert ours == [exactly(x, y, -c, "FP32") for x, y, c in cases]
    assert 0.0 not in ours


def test_fused_multiply_add_rounds_once() -> None:
    # (1 + 2^-23)^2 * 2^-1 beside a tiny C: FP64 drops the tiny part and sees a tie where there is
    # none.
    x = 1 + 2.0**-12
    tiny = 2.0**-80
    # x^2 = 1 + 2^-11 + 2^-24 is a tie of FP32
    a = [tiny, x]
    b = [1.0, x]
    assert dot(a, b, SEQUENTIAL_FP32, torch.float32) == 1 + 2.0**-11 + 2.0**-23
    assert dot([-tiny, x], b, SEQUENTIAL_FP32, torch.float32) == 1 + 2.0**-11
    assert dot([0.0, x], b, SEQUENTIAL_FP32, torch.float32) == 1 + 2.0**-11, (
        "a real tie goes to even"
    )


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
    a = [256.0] * 3
    b = [250.0, 250.0, -250.0]
    assert dot(a, b, SEQUENTIAL_FP16, torch.float16) == math.inf, "one infinity is for good"
    assert dot(a, b, EXACT, torch.float16, out=FP16) == 64000.0


def test_a_row_of_specs_is_an_accumulator_too() -> None:
    a = torch.randn(4, 40).half()
    b = torch.randn(40, 3).half()
    assert torch.equal(accumulate(a, b, None, SPECS["V100"]), emulate(a, b, None, SPECS["V100"]))
    assert torch.equal(
        accumulate(a, b, None, SPECS["V100"], FP16), emulate(a, b, None, SPECS["V100"]).half()
    )
    wide = (a.bfloat16(), b.bfloat16())
    spec = SPECS["A100"].for_operands(BF16)
    assert torch.equal(accumulate(*wide, None, SPECS["A100"]), emulate(*wide, None, spec)), (
        "BF16 finds its own row"
    )
    fp8 = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
    assert torch.equal(
        accumulate(*fp8, None, SPECS["H100"]), emulate(*fp8, None, SPECS["H100"].for_operands(E4M3))
    )
    with pytest.raises(ValueError, match="V100 Tensor Cores take FP16 operands; asked for BF16"):
        accumulate(*wide, None, SPECS["V100"])


def test_shapes_and_tiles_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    a = torch.randn(2, 9, 20).half()
    b = torch.randn(2, 20, 7).half()
    for by in (*ACCUMULATORS.values(), SPECS["A100"]):
        for m, n, k in ((3, 5, 7), (5, 3, 0), (0, 3, 4), (1, 1, 1)):
            c = torch.arange(m * n).reshape(m, n).float()
            assert torch.equal(
                accumulate(torch.ones(m, k).half(), torch.ones(k, n).half(), c, by), c + k
            ), (by, m, k)
        whole_at_once = accumulate(a, b, None, by)
        with monkeypatch.context() as patch:
            patch.setattr("labkit.gemm.accumulators.TILE", 40)
            assert torch.equal(accumulate(a, b, None, by), whole_at_once), by


def test_what_is_no_accumulator_is_refused() -> None:
    ones = torch.ones(2, 2).half()
    with pytest.raises(ValueError, match=r"expected one of sequential FP16, .*, got 'FP16'"):
        accumulate(ones, ones, None, "FP16")
    with pytest.raises(TypeError, match=r'got a dtype\. For sums in FP16: "sequential FP16"'):
        accumulate(ones, ones, None, torch.float16)
    with pytest.raises(ValueError, match=r"of one dtype, FP32 or narrower, got torch\.float64"):
        accumulate(ones.double(), ones.double())
    with pytest.raises(ValueError, match="expected FP16 values in C"):
        accumulate(ones, ones, torch.full((2, 2), 0.1), SEQUENTIAL_FP16)
