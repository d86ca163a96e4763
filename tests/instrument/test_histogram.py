"""Histograms of exponents, fates of numbers, and probes, against numpy's frexp and FP16."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from labkit.formats import BF16, E4M3, E8M0, FP16
from labkit.instrument import exponent_histogram, fate, merge, shift, snapshot
from labkit.instrument.counting import LARGE, count_on_cpu, count_on_device
from labkit.instrument.probe import probe, swallowed, underflow, zeros_inside
from labkit.interop import format_of

# The FP32 subnormals 1 to 131,071 times 2^-149.
SUBNORMAL = torch.arange(1, 2**17, dtype=torch.int32).view(torch.float32)


def test_scaling_by_a_power_of_two_is_a_shift() -> None:
    torch.manual_seed(0)
    a = torch.randn(1000) * 2.0**-20
    scaled = exponent_histogram(a * 2.0**13)
    shifted = shift(exponent_histogram(a), 13)
    assert [shifted.count(e, e) for e in range(-60, 20)] == [
        scaled.count(e, e) for e in range(-60, 20)
    ]


def test_a_merged_histogram_is_that_of_all_numbers() -> None:
    a = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * 2.0**-20
    b = torch.randn(50, generator=torch.Generator().manual_seed(1))
    merged = merge([exponent_histogram(a), exponent_histogram(b)])
    assert merged == exponent_histogram(torch.cat([a, b]))


def test_histograms_with_other_first_exponents_are_merged() -> None:
    ones = exponent_histogram(torch.ones(3))
    moved = merge([shift(ones, 13), ones])
    assert moved.total == 6
    assert moved.count(0, 0) == 3
    assert moved.count(13, 13) == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_every_bit_pattern_against_frexp(dtype: torch.dtype) -> None:
    # All 2^16 patterns of the 16-bit types; for FP32 a seeded million, with all its subnormal
    # exponents.
    if dtype == torch.float32:
        patterns = torch.randint(
            -(2**31), 2**31 - 1, (1_000_000,), generator=torch.Generator().manual_seed(0)
        )
        values = patterns.to(torch.int32).view(torch.float32)
        values = torch.cat([values, 2.0 ** torch.arange(-149, -120, dtype=torch.float32)])
    else:
        values = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    exact = values.double().numpy()
    magnitude = np.abs(exact[np.isfinite(exact) & (exact != 0)])
    exponents, counts = np.unique(np.frexp(magnitude)[1] - 1, return_counts=True)
    h = exponent_histogram(values)
    assert {int(e): h.count(int(e), int(e)) for e in exponents} == dict(
        zip(exponents.tolist(), counts.tolist(), strict=True)
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


def test_a_lazily_negated_view_is_counted() -> None:
    view = torch.complex(torch.ones(3), torch.full((3,), 4.0)).conj().imag
    assert view.is_neg()
    assert exponent_histogram(view).count(2, 2) == 3


def test_subnormals_are_counted_with_flush_to_zero() -> None:
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor flushes nothing")
    try:
        h = exponent_histogram(SUBNORMAL)
    finally:
        torch.set_flush_denormal(False)
    assert [h.count(e, e) for e in range(-149, -131)] == [*(2**i for i in range(17)), 0]
    assert h.zeros == 0


def test_large_tensors_are_counted_equally_on_cpu_and_device() -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        # 0.25, 1.75, 0.25, ...; three numbers more than the size from which numbers are counted in
        # pairs.
        values = torch.arange(LARGE + 3) % 2 * 1.5 + 0.25
        values[:4] = torch.tensor([0.0, float("inf"), 2.0**-24, 2.0**-140])
        values = values.to(dtype)
        h = exponent_histogram(values)
        assert h.count(0, 0) == LARGE // 2 - 1, dtype
        assert h.count(-2, -2) == LARGE // 2, dtype
        assert h.non_finite == 1, dtype
        bits = values.view(torch.int32 if dtype == torch.float32 else torch.int16)
        format = format_of(dtype)
        for on_cpu, on_device in zip(
            count_on_cpu(bits, format), count_on_device(bits, format), strict=True
        ):
            assert np.array_equal(on_cpu, on_device), dtype


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_sparse_tensor_is_refused_with_a_remedy() -> None:
    for layout, message in (
        (torch.sparse_coo, r"torch.sparse_coo. Take tensor.coalesce\(\).values\(\)"),
        (torch.sparse_csr, r"torch.sparse_csr. Take tensor.values\(\)"),
    ):
        with pytest.raises(TypeError, match=message):
            exponent_histogram(torch.eye(3).to_sparse(layout=layout))
    table = torch.nn.Embedding(10, 4, sparse=True)
    table(torch.tensor([1, 1, 3])).sum().backward()
    h = exponent_histogram(table.weight.grad.coalesce().values())
    # Row 1 was looked up twice, so its gradient is 2.
    assert h.count(1, 1) == 4
    assert h.count(0, 0) == 4
    assert h.zeros == 0


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        (np.ones(3), "got ndarray"),
        (torch.zeros(3, dtype=torch.float64), "expected FP16, BF16 or FP32"),
        (torch.zeros(3, dtype=torch.complex64), "view_as_real"),
    ],
)
def test_numbers_of_another_type_have_no_histogram(numbers: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        exponent_histogram(numbers)


def test_a_tensor_without_elements_has_an_empty_histogram() -> None:
    assert exponent_histogram(torch.empty(0)).total == 0


@pytest.mark.parametrize("binades", [0.5, math.nan, math.inf])
def test_a_shift_by_a_part_of_a_binade_is_refused(binades: float) -> None:
    with pytest.raises(TypeError, match="whole binades"):
        shift(exponent_histogram(torch.ones(1)), binades)


def test_no_histograms_are_not_merged() -> None:
    with pytest.raises(ValueError, match="at least one"):
        merge([])


def test_tensors_are_not_merged() -> None:
    with pytest.raises(TypeError, match="a histogram: expected an ExponentHistogram, got a Tensor"):
        merge([torch.ones(3)])


# The fate of a histogram's numbers in a format


def test_fates_equal_rounding_of_every_element() -> None:
    # The oracle is numpy's FP16. A histogram knows only exponents, so `fate` is wrong for numbers
    # in three small ranges, which the values here avoid and the next test measures.
    for log2_scale in (0, 7, 16, 24, 30):
        generator = torch.Generator().manual_seed(log2_scale)
        exponents = torch.randint(-45, 16, (20_000,), generator=generator).float()
        values = (1.25 + 0.5 * torch.rand(20_000, generator=generator)) * 2.0**exponents
        with np.errstate(over="ignore"):
            rounded = np.abs(
                (values * 2.0**log2_scale).numpy().astype(np.float16).astype(np.float64)
            )
        f = fate(shift(exponent_histogram(values), log2_scale), FP16)
        subnormal = (rounded > 0) & (rounded < float(np.finfo(np.float16).smallest_normal))
        expected = ((rounded == 0).mean(), subnormal.mean(), np.isinf(rounded).mean())
        assert (f.underflowed, f.subnormal, f.overflowed) == expected, log2_scale
        assert f.underflowed + f.subnormal + f.normal + f.overflowed == pytest.approx(1, abs=1e-12)


def test_ranges_in_which_a_fate_is_wrong_are_as_stated() -> None:
    # All FP32 numbers of the binade of each range: which are counted wrongly?
    def wrong(lowest: float, is_as_stated: object) -> np.ndarray:
        first = np.float32(lowest).view(np.int32)
        values = np.arange(first, first + 2**23, dtype=np.int32).view(np.float32)
        with np.errstate(over="ignore"):
            return values[~is_as_stated(np.abs(values.astype(np.float16)))]

    assert wrong(2.0**-25, lambda r: r > 0).tolist() == [2.0**-25]
    assert wrong(2.0**-15, lambda r: r < 2.0**-14).min() == 2.0**-14 - 2.0**-25
    assert wrong(2.0**15, np.isfinite).min() == 65520


def test_each_format_has_its_own_range() -> None:
    h = exponent_histogram(torch.tensor([2.0**-12, 2.0**-8, 1.0, 512.0]))
    # 2^-12 is below half of the smallest subnormal, 2^-9; 512 is above the maximum, 448.
    assert fate(h, E4M3).underflowed == 0.25
    assert fate(h, E4M3).overflowed == 0.25
    assert fate(h, BF16).normal == 1.0


def test_zeros_and_non_finite_numbers_are_not_lost() -> None:
    for values in (torch.zeros(5), torch.tensor([math.inf, math.nan])):
        f = fate(exponent_histogram(values), FP16)
        assert f.underflowed == 0
        assert f.subnormal == 0
        assert f.normal == 0
        assert f.overflowed == 0


def test_fates_in_formats_without_a_sign_are_refused() -> None:
    positive = replace(E8M0, name="positive", has_zero=True)
    for format, missing in ((E8M0, "no sign and no zero"), (positive, "no sign")):
        with pytest.raises(ValueError, match=f"got {format.name}, which has {missing}. Take a"):
            fate(exponent_histogram(torch.ones(3)), format)


# Probes of a backward pass, and updates that rounding swallows


def small_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1))


def test_probe_changes_no_gradient() -> None:
    inputs = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    plain = small_net()
    probed = small_net()
    plain(inputs).sum().backward()
    with probe(probed):
        probed(inputs).sum().backward()
    assert all(
        torch.equal(a.grad, b.grad)
        for a, b in zip(plain.parameters(), probed.parameters(), strict=True)
    )


def test_probe_leaves_no_hook_after_a_failure() -> None:
    net = small_net()
    # Inputs of a wrong width fail in the first layer.
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), probe(net):
        net(torch.ones(2, 5))
    assert not any(module._forward_hooks for module in net.modules())


def test_layers_come_in_the_order_of_the_forward_pass() -> None:
    net = small_net()
    with probe(net) as probed:
        net(torch.ones(2, 4)).sum().backward()
    assert list(probed.gradients) == ["0", "1", "2"]
    taken = snapshot(probed.gradients, step=7, kind="activation gradients")
    assert taken.step == 7
    assert [h.total for h in taken.layers.values()] == [6, 6, 2]


def test_underflow_counts_only_numbers_that_fp16_lost() -> None:
    exact = {"a": torch.tensor([1e-9, 1.0, 0.0, 1e-8])}
    halved = {"a": exact["a"].half()}
    assert underflow(exact, halved) == 2 / 3
    # The plain count of zeros includes the one that was zero in FP32, too.
    assert zeros_inside(halved) == 3 / 4
    assert underflow({"a": torch.zeros(3)}, {"a": torch.zeros(3)}) == 0.0


def test_underflow_does_not_depend_on_the_order_of_layers() -> None:
    zero, one = torch.zeros(1), torch.ones(1)
    assert underflow({"a": one, "b": one}, {"b": one, "a": zero}) == 0.5


def test_a_layer_that_returns_a_tuple_is_left_out() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.LSTM(3, 2))
    with probe(model) as probed:
        model(torch.ones(4, 3))[0].sum().backward()
    assert list(probed.gradients) == ["0"]


def test_underflow_of_other_layers_or_shapes_is_refused() -> None:
    with pytest.raises(ValueError, match="same layers"):
        underflow({"a": torch.ones(1)}, {"b": torch.ones(1)})
    with pytest.raises(ValueError, match=r"reference \(1,\) and observed \(2,\)"):
        underflow({"a": torch.ones(1)}, {"a": torch.ones(2)})


def test_worked_example_of_swallowed_updates() -> None:
    # Above 1 the spacing of FP16 is 2^-10: an update of half of it is a tie, which goes to 1 and is
    # swallowed; a slightly larger one is not. The update of zero does not count.
    weights = torch.ones(4).half()
    updates = torch.tensor([2.0**-11, 2.0**-11 + 2.0**-18, 2.0**-10, 0.0])
    after = (weights.float() + updates).half()
    assert swallowed([weights], [after], [updates]) == pytest.approx(1 / 3)
    weight = torch.ones(2)
    assert swallowed([weight, weight], [weight, weight + 1], [None, torch.ones(2)]) == 0.0
    assert swallowed([weight], [weight], [torch.zeros(2)]) == 0.0


def test_swallowed_updates_of_other_shapes_are_refused() -> None:
    weight = torch.ones(2)
    for gradients, message in (([torch.ones(3)], "expected one shape"), ([], "got 1, 1 and 0")):
        with pytest.raises(ValueError, match=message):
            swallowed([weight], [weight], gradients)
