"""Cases of benchmarks: their operands, their cost, which torch counts, and what is refused."""

import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from labkit import bench
from labkit.bench import ConvCase, ElementwiseCase, GemmCase, timing
from labkit.bench.cases import LAYOUTS
from labkit.bench.timing import MOST_SETS, Pool, caller, computation, error_in_ulps
from labkit.formats import BF16, E2M1, E4M3, E5M2, FP16, FP32, FP64, TF32


def counted(work):
    """Return the FLOPs of a function as torch counts them."""
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


def bytes_of(*tensors):
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("format", [FP64, FP32, TF32, BF16, FP16], ids=lambda each: each.name)
def test_operands_of_a_product_have_its_layout(format, layout):
    a, b = Pool("cpu").sets(GemmCase(24, 16, 40, format, layout))[0]
    assert a.shape == (24, 40)
    assert b.shape == (40, 16)
    assert (a.stride(1) == 1) == (layout[0] == "N")
    assert (b.stride(1) == 1) == (layout[1] == "N")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("format", [FP64, FP32, TF32, BF16, FP16], ids=lambda each: each.name)
def test_flops_and_bytes_of_a_product_are_those_of_torch(format, layout):
    case = GemmCase(24, 16, 40, format, layout)
    operands = Pool("cpu").sets(case)[0]
    call = caller(case, [operands])
    assert counted(lambda: call(0)) == case.flops
    assert bytes_of(*operands, call(0)) == case.bytes


@pytest.mark.parametrize("kernel", [1, 3])
def test_flops_and_bytes_of_a_convolution_are_those_of_torch(kernel):
    case = ConvCase(2, 4, 6, 5, 8, kernel, FP32)
    images, filters = Pool("cpu").sets(case)[0]
    assert images.is_contiguous(memory_format=torch.channels_last)
    call = caller(case, [(images, filters)])
    assert call(0).shape == (2, 8, 6, 5)
    assert counted(lambda: call(0)) == case.flops
    assert case.gemm.flops == case.flops
    assert bytes_of(images, filters, call(0)) == case.bytes


def test_the_products_of_a_linear_layer_are_those_of_autograd():
    y_case, dx_case, dw_case = bench.linear_gemms(6, 5, 3, FP64)
    x = torch.randn(6, 5, dtype=torch.float64).requires_grad_()
    w = torch.randn(3, 5, dtype=torch.float64).requires_grad_()
    dy = torch.randn(6, 3, dtype=torch.float64)
    y = F.linear(x, w)
    y.backward(dy)
    for case, operands, expected in (
        (y_case, (x, w.t()), y),
        (dx_case, (dy, w), x.grad),
        (dw_case, (dy.t(), x), w.grad),
    ):
        a, b = (operand.detach() for operand in operands)
        letters = ["N" if operand.is_contiguous() else "T" for operand in operands]
        assert case.layout == "".join(letters)
        result = computation(case)(a, b, out=torch.empty(case.m, case.n, dtype=torch.float64))
        assert torch.allclose(result, expected, rtol=1e-14)


def test_flops_of_a_linear_layer_are_those_of_its_products():
    x = torch.randn(6, 5).requires_grad_()
    w = torch.randn(3, 5).requires_grad_()

    def forward_and_backward():
        F.linear(x, w).sum().backward()

    products = bench.linear_gemms(6, 5, 3, FP32)
    assert counted(forward_and_backward) == sum(case.flops for case in products)


@pytest.mark.parametrize("op", ["copy", "hardswish", "hardswish by hand"])
def test_an_element_wise_operation_computes_its_formula(op):
    x = torch.randn(100, dtype=torch.float64) * 4
    result = computation(ElementwiseCase(op, 100, FP64))(x, out=torch.empty_like(x))
    expected = x if op == "copy" else x * torch.clamp(x + 3, 0, 6) / 6
    assert torch.allclose(result, expected, rtol=1e-15)


def test_a_product_of_fp8_is_rounded_once_to_bf16():
    case = GemmCase(16, 16, 32, E4M3, "NT")
    operands = Pool("cpu").sets(case)[0]
    result = caller(case, [operands])(0)
    assert result.dtype == torch.bfloat16
    exact = operands[0].double() @ operands[1].double()
    assert error_in_ulps(case, operands, result) <= 0.5
    assert torch.allclose(result.double(), exact, rtol=2**-8)


@pytest.mark.parametrize(
    ("sizes", "format", "layout", "message"),
    [
        ((0, 8, 8), FP16, "NN", "sizes of 1 or more"),
        ((8, 8, 8), FP16, "NX", "a layout of NN, NT, TN, TT"),
        ((16, 16, 16), E4M3, "NN", "expected layout NT"),
        ((16, 8, 16), E5M2, "NT", "multiples of 16"),
    ],
    ids=["size", "layout", "layout of FP8", "size of FP8"],
)
def test_a_product_that_cannot_be_computed_is_refused(sizes, format, layout, message):
    with pytest.raises(ValueError, match=message):
        GemmCase(*sizes, format, layout)


def test_a_product_in_a_format_without_a_dtype_is_refused():
    with pytest.raises(ValueError, match=r"expected a format of FP64, .*, got E2M1"):
        GemmCase(16, 16, 16, E2M1)


def test_an_unknown_tile_is_refused():
    with pytest.raises(ValueError, match=r"expected a kernel of .*128x256x64.*got 'large'"):
        computation(GemmCase(16, 16, 16, kernel="large"))


def test_an_even_kernel_is_refused():
    with pytest.raises(ValueError, match="expected an odd kernel, which keeps height and width"):
        ConvCase(2, 4, 6, 5, 8, 2)


@pytest.mark.parametrize("format", [E4M3, E5M2])
def test_a_convolution_in_fp8_is_refused(format):
    with pytest.raises(ValueError, match=r"format of 16 bits or more for a convolution, got E"):
        ConvCase(2, 4, 6, 5, 8, format=format)


def test_a_convolution_of_no_images_is_refused():
    with pytest.raises(ValueError, match="sizes of 1 or more, got images=0"):
        ConvCase(0, 4, 6, 5, 8)


def test_an_operation_on_no_elements_is_refused():
    with pytest.raises(ValueError, match="sizes of 1 or more, got elements=0"):
        ElementwiseCase("copy", 0)


def test_an_unknown_operation_is_refused():
    with pytest.raises(ValueError, match=r"expected an op of 'copy'.*got 'gelu'"):
        ElementwiseCase("gelu", 10)


def test_each_call_has_its_own_aligned_operands():
    sets = Pool("cpu").sets(GemmCase(64, 64, 64, FP32))
    starts = [tensor.data_ptr() for operands in sets for tensor in operands]
    assert len(set(starts)) == 2 * len(sets)
    assert [start for start in starts if start % 64] == []


@pytest.mark.parametrize(
    ("case", "sets"),
    [
        # 2^21 bytes of sets of 2^15 bytes, two matrices each
        (GemmCase(64, 64, 64, FP32), 64),
        (GemmCase(64, 64, 64, FP64), 32),
        (GemmCase(8, 8, 8, FP32), MOST_SETS),
        (GemmCase(1024, 1024, 1024, FP32), 1),
    ],
    ids=["FP32", "FP64", "small", "large"],
)
def test_operands_fill_the_cache_twice(monkeypatch, case, sets):
    monkeypatch.setattr(timing, "CPU_CACHE", 2**20)
    assert len(Pool("cpu").sets(case)) == sets


def test_operands_are_normally_distributed():
    sets = Pool("cpu").sets(GemmCase(64, 64, 64, FP32))
    values = torch.cat([tensor.flatten() for operands in sets[:20] for tensor in operands])
    assert (values == 0).sum() == 0
    assert abs(values.mean()) < 0.01
    assert abs(values.std() - 1) < 0.01


def test_an_error_is_stated_in_ulps_of_the_result():
    """1 x 1 products: the exact result 3 lies in [2, 4), where FP16 has ulp 2^-9."""
    case = GemmCase(1, 1, 2, FP16)
    a = torch.tensor([[1.0, 2.0]]).half()
    b = torch.tensor([[1.0], [1.0]]).half()
    for ulps in (0, 1, -3):
        result = torch.tensor([[3.0 + ulps * 2**-9]]).half()
        assert error_in_ulps(case, (a, b), result) == abs(ulps)


def test_the_median_error_of_sums_rounded_once_is_a_quarter_ulp():
    case = GemmCase(16, 256, 64, BF16)
    operands = Pool("cpu").sets(case)[0]
    error = error_in_ulps(case, operands, caller(case, [operands])(0))
    # Errors of one rounding are spread evenly from 0 to 1/2 ulp.
    assert error == pytest.approx(0.25, abs=0.05)
