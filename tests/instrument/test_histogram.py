"""Histograms of exponents: a worked example, what must always hold, and numpy's frexp as the oracle."""

import math

import numpy as np
import pytest
import torch

from labkit.instrument import exponent_histogram, merge, shift
from labkit.instrument.counting import LARGE, count_on_cpu, count_on_device
from labkit.interop import format_of
from tests.oracles.operations import operations

SUBNORMAL = torch.arange(1, 2**17, dtype=torch.int32).view(torch.float32)  # 1 to 131,071 times 2^-149


def test_worked_example() -> None:
    # 3 = 1.5 * 2^1, 1 = 2^0, 0.75 = 1.5 * 2^-1; one zero, one infinity, one NaN.
    h = exponent_histogram(torch.tensor([3.0, 1.0, -0.75, -0.0, float("-inf"), float("nan")]))
    assert (h.count(1, 1), h.count(0, 0), h.count(-1, -1)) == (1, 1, 1)
    assert (h.finite_non_zero, h.zeros, h.non_finite, h.total) == (3, 1, 2, 6)


def test_scaling_by_a_power_of_two_is_a_shift_and_merging_is_counting_everything_at_once() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(1000) * 2.0**-20, torch.randn(50)
    scaled, shifted = exponent_histogram(a * 2.0**13), shift(exponent_histogram(a), 13)
    assert [shifted.count(e, e) for e in range(-60, 20)] == [scaled.count(e, e) for e in range(-60, 20)]
    together, merged = exponent_histogram(torch.cat([a, b])), merge([exponent_histogram(a), exponent_histogram(b)])
    assert np.array_equal(together.counts, merged.counts)
    moved = merge([shifted, exponent_histogram(b)])
    assert (moved.total, moved.count(-149, -149)) == (1050, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_every_bit_pattern_against_frexp(dtype: torch.dtype) -> None:
    # All 2^16 patterns of the 16-bit types; for FP32 a seeded million, with all its subnormal exponents.
    if dtype == torch.float32:
        patterns = torch.randint(-(2**31), 2**31 - 1, (1_000_000,), generator=torch.Generator().manual_seed(0))
        values = patterns.to(torch.int32).view(torch.float32)
        values = torch.cat([values, 2.0 ** torch.arange(-149, -120, dtype=torch.float32)])
    else:
        values = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    exact = values.double().numpy()
    magnitude = np.abs(exact[np.isfinite(exact) & (exact != 0)])
    exponents, counts = np.unique(np.frexp(magnitude)[1] - 1, return_counts=True)
    h = exponent_histogram(values)
    assert {int(e): h.count(int(e), int(e)) for e in exponents} == dict(
        zip(exponents.tolist(), counts.tolist(), strict=False)
    )
    assert h.finite_non_zero == len(magnitude)
    assert h.zeros == int((exact == 0).sum())
    assert h.non_finite == int((~np.isfinite(exact)).sum())


def test_order_gaps_and_repetitions_do_not_matter() -> None:
    grid = torch.randn(6, 8, 10, 12)
    flat = exponent_histogram(grid.flatten())
    assert exponent_histogram(grid.permute(2, 0, 3, 1)) == flat
    assert exponent_histogram(grid.to(memory_format=torch.channels_last)) == flat
    assert exponent_histogram(grid[:, ::2]) == exponent_histogram(grid[:, ::2].contiguous())
    assert exponent_histogram(torch.tensor(3.0).expand(5, 7)).count(1, 1) == 35
    assert exponent_histogram(torch.tensor(3.0, requires_grad=True)).count(1, 1) == 1


def test_subnormals_are_counted_where_arithmetic_takes_them_for_zero() -> None:
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor flushes nothing")
    try:
        h = exponent_histogram(SUBNORMAL)
    finally:
        torch.set_flush_denormal(False)
    assert [h.count(e, e) for e in range(-149, -131)] == [*(2**i for i in range(17)), 0]
    assert h.zeros == 0


def test_no_operation_is_so_large_that_it_wakes_threads_or_needs_memory() -> None:
    # torch works in parallel above 2^15 elements; each such operation waits for all threads, which may be busy.
    n = 2**17
    for values in (
        torch.randn(n), torch.randn(n).half() * 2**-14, torch.randn(n).bfloat16(), SUBNORMAL,
        torch.cat([SUBNORMAL, torch.zeros(n), torch.randn(n)]), torch.randn(n).relu(),
        torch.randn(8, 16, 32, 32).to(memory_format=torch.channels_last),
    ):  # fmt: skip
        assert max(operations(exponent_histogram, values).values(), default=0) <= 2**15, values


def test_many_numbers_are_counted_in_pairs_and_by_a_device_alike() -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        values = torch.arange(LARGE + 3) % 2 * 1.5 + 0.25  # 0.25, 1.75, 0.25 ... and a rest that is counted one by one
        values[:4] = torch.tensor([0.0, float("inf"), 2.0**-24, 2.0**-140])
        values = values.to(dtype)
        h = exponent_histogram(values)
        assert (h.count(0, 0), h.count(-2, -2), h.non_finite) == (LARGE // 2 - 1, LARGE // 2, 1), dtype
        bits, format = values.view(torch.int32 if dtype == torch.float32 else torch.int16), format_of(dtype)
        for one, other in zip(count_on_cpu(bits, format), count_on_device(bits, format), strict=True):
            assert np.array_equal(one, other), dtype


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_a_sparse_tensor_is_answered_and_can_be_counted_as_the_message_says() -> None:
    for layout, says in (
        (torch.sparse_coo, r"torch.sparse_coo. Take tensor.coalesce\(\).values\(\)"),
        (torch.sparse_csr, r"torch.sparse_csr. Take tensor.values\(\)"),
    ):
        with pytest.raises(TypeError, match=says):
            exponent_histogram(torch.eye(3).to_sparse(layout=layout))
    table = torch.nn.Embedding(10, 4, sparse=True)
    table(torch.tensor([1, 1, 3])).sum().backward()
    h = exponent_histogram(table.weight.grad.coalesce().values())
    assert (h.count(1, 1), h.count(0, 0), h.zeros) == (4, 4, 0)  # row 1 came twice: its gradient is 2


def test_bad_input_is_answered() -> None:
    with pytest.raises(TypeError, match="given ndarray"):
        exponent_histogram(np.ones(3))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="counts FP16, BF16 and FP32"):
        exponent_histogram(torch.zeros(3, dtype=torch.float64))
    for no_binades in (0.5, math.nan, math.inf):
        with pytest.raises(TypeError, match="whole binades"):
            shift(exponent_histogram(torch.ones(1)), no_binades)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one"):
        merge([])
    assert exponent_histogram(torch.empty(0)).total == 0
