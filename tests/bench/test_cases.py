"""The arithmetic of cases, counted by hand, then by torch's FLOP counter and by the tensors themselves."""

from itertools import product

import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from labkit.bench import ConvCase, DeviceReport, ElementwiseCase, GemmCase, intensity, linear_gemms, sweeps
from labkit.bench.cases import LAYOUTS, output_format
from labkit.bench.timing import Pool, caller, computation, error_in_ulps, settings
from labkit.formats import BF16, E4M3, E5M2, FP16, FP32, FP64, TF32
from labkit.machine.device import GENERATIONS


def test_worked_example_of_a_product():
    """A[64,16] @ B[16,32] = D[64,32] in FP16: 64 * 32 sums of 16 products; 1024 + 512 + 2048 numbers of 2 bytes."""
    case = GemmCase(64, 32, 16, FP16)
    assert case.flops == 64 * 32 * 16 * 2 == 65536
    assert case.bytes == (1024 + 512 + 2048) * 2 == 7168
    assert intensity(case) == 65536 / 7168
    assert case.label == "FP16 NN 64x32x16"


def test_worked_example_of_what_fusing_saves():
    """x * clamp(x + 3, 0, 6) / 6: fused, x is read and the result written; by hand each of four kernels does so."""
    fused, by_hand = (ElementwiseCase(op, 100, FP32) for op in ("hardswish", "hardswish by hand"))
    assert fused.bytes == 4 * 100 * 2
    assert by_hand.bytes == 4 * 100 * (2 + 2 + 3 + 2)
    assert fused.flops == by_hand.flops


def counted(work):
    """FLOPs as torch counts them."""
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


def test_a_product_or_convolution_is_what_torch_counts_and_holds():
    for format, layout in product((FP64, FP32, TF32, BF16, FP16), LAYOUTS):
        case = GemmCase(24, 16, 40, format, layout)
        a, b = Pool("cpu").sets(case)[0]
        assert (a.shape, b.shape) == ((24, 40), (40, 16))
        assert (a.stride(1) == 1, b.stride(1) == 1) == (layout[0] == "N", layout[1] == "N")
        call = caller(case, [(a, b)])
        assert counted(lambda call=call: call(0)) == case.flops, case
        assert case.bytes == sum(t.numel() * t.element_size() for t in (a, b, call(0))), case
    for kernel in (1, 3):
        case = ConvCase(2, 4, 6, 5, 8, kernel, FP32)
        images, filters = Pool("cpu").sets(case)[0]
        assert images.is_contiguous(memory_format=torch.channels_last)
        call = caller(case, [(images, filters)])
        assert call(0).shape == (2, 8, 6, 5)
        assert counted(lambda call=call: call(0)) == case.flops == case.gemm.flops
        assert case.bytes == sum(t.numel() * t.element_size() for t in (images, filters, call(0)))


def test_the_products_of_a_linear_layer_are_those_of_autograd():
    """Forward and backward through F.linear, and the same by the three cases: same numbers, same FLOPs."""
    y_case, dx_case, dw_case = linear_gemms(6, 5, 3, FP64)
    x, w = torch.randn(6, 5, dtype=torch.float64), torch.randn(3, 5, dtype=torch.float64)
    x.requires_grad_(), w.requires_grad_()
    dy = torch.randn(6, 3, dtype=torch.float64)
    y = F.linear(x, w)
    y.backward(dy)
    for case, operands, expected in (
        (y_case, (x, w.t()), y),
        (dx_case, (dy, w), x.grad),
        (dw_case, (dy.t(), x), w.grad),
    ):
        a, b = (operand.detach() for operand in operands)
        assert case.layout == "".join("N" if operand.is_contiguous() else "T" for operand in operands)
        result = computation(case)(a, b, out=torch.empty(case.m, case.n, dtype=torch.float64))
        assert torch.allclose(result, expected, rtol=1e-14)

    def both_ways():
        F.linear(x.detach().requires_grad_(), w).backward(dy)

    assert counted(both_ways) == sum(case.flops for case in (y_case, dx_case, dw_case))


def test_the_fused_op_and_the_one_by_hand_compute_the_same():
    x = torch.randn(100, dtype=torch.float64) * 4
    for op in ("copy", "hardswish", "hardswish by hand"):
        result = computation(ElementwiseCase(op, 100, FP64))(x, out=torch.empty_like(x))
        expected = x if op == "copy" else x * torch.clamp(x + 3, 0, 6) / 6
        assert torch.allclose(result, expected, rtol=1e-15), op


def test_fp8_is_multiplied_as_torch_multiplies_it():
    case = GemmCase(16, 16, 32, E4M3, "NT")
    operands = Pool("cpu").sets(case)[0]
    result = caller(case, [operands])(0)
    assert result.dtype == torch.bfloat16
    exact = operands[0].double() @ operands[1].double()
    assert error_in_ulps(case, operands, result) <= 0.5, "BF16 results of exact sums, rounded once"
    assert torch.allclose(result.double(), exact, rtol=2**-8)


def test_what_nobody_can_multiply_is_refused():
    for sizes, format, layout, says in (
        ((0, 8, 8), FP16, "NN", "sizes of 1 and more"),
        ((8, 8, 8), FP16, "NX", "one of NN, NT, TN, TT"),
        ((16, 16, 16), E4M3, "NN", "in layout NT"),
        ((16, 8, 16), E5M2, "NT", "multiples of 16"),
    ):
        with pytest.raises(ValueError, match=says):
            GemmCase(*sizes, format, layout)
    with pytest.raises(ValueError, match="no op 'gelu'; there are 'copy'"):
        ElementwiseCase("gelu", 10)


# Operands


def test_operands_are_random_never_zeros_and_never_the_same_twice():
    case = GemmCase(64, 64, 64, FP32)
    pool = Pool("cpu")
    sets = pool.sets(case)
    starts = [tensor.data_ptr() for operands in sets for tensor in operands]
    assert len(set(starts)) == 2 * len(sets)
    assert all(start % 64 == 0 for start in starts)
    values = torch.cat([tensor.flatten() for operands in sets[:20] for tensor in operands])
    assert (values == 0).sum() == 0
    assert abs(values.mean()) < 0.01
    assert abs(values.std() - 1) < 0.01


# Error and settings


def test_an_error_is_told_in_ulps_of_the_result():
    """1 x 1 products: the exact result 3 lies in [2, 4), where FP16 has ulp 2^-9."""
    case = GemmCase(1, 1, 2, FP16)
    a, b = torch.tensor([[1.0, 2.0]]).half(), torch.tensor([[1.0], [1.0]]).half()
    for off in (0, 1, -3):
        given = torch.tensor([[3.0 + off * 2**-9]]).half()
        assert error_in_ulps(case, (a, b), given) == abs(off)
    case = GemmCase(16, 256, 64, BF16)
    operands = Pool("cpu").sets(case)[0]
    error = error_in_ulps(case, operands, caller(case, [operands])(0))
    assert 0.2 < error < 0.3, "sums in FP32, rounded once: errors spread evenly over 0 to 1/2"


def test_settings_are_put_back_also_after_an_error():
    before = (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32)
    reduced = torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction

    def tear():
        with settings(GemmCase(1, 1, 1, TF32)):
            assert torch.get_float32_matmul_precision() == "high"
            assert torch.backends.cudnn.allow_tf32
            assert not torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
            raise RuntimeError("torn")

    with pytest.raises(RuntimeError, match="torn"):
        tear()
    with settings(GemmCase(1, 1, 1, FP16, reduced=True)):
        assert torch.get_float32_matmul_precision() == "highest"
        assert torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
        assert torch.backends.cuda.matmul.allow_fp16_accumulation
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == before
    assert torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction == reduced


# Sweeps

DEVICES = [DeviceReport("cpu", "a CPU", 0, 2), DeviceReport("cuda", "an old GPU", 0, 2)] + [
    DeviceReport("cuda", row.name, 0, 100, row.capabilities[0], row) for row in GENERATIONS
]


def test_a_sweep_asks_for_each_case_once_and_only_for_formats_that_are_there():
    for report in DEVICES:
        for sweep in sweeps(report).values():
            assert sweep.cases, (report.name, sweep.name)
            assert len(set(sweep.cases)) == len(sweep.cases), (report.name, sweep.name)
            if report.kind == "cuda":
                special = {case.format for case in sweep.cases} - {FP64, FP32, FP16}
                assert {format.name for format in special} <= set(report.tensor_cores), (report.name, sweep.name)


def test_alignment_moves_one_side_at_a_time_and_reduced_accumulation_stands_beside_the_full_one():
    cases = [case for case in sweeps(DEVICES[0])["alignment"].cases if case.format is FP32]
    base = max(case.k for case in cases)
    assert base % 8 == 0
    assert {case.k for case in cases} == {case.n for case in cases} == set(range(base - 7, base + 1))
    assert all(base in (case.k, case.n) and case.m == base for case in cases)
    hopper = next(report for report in DEVICES if report.name == "Hopper")
    cases = sweeps(hopper)["accumulation"].cases
    assert {output_format(case.format).name for case in cases} == {"FP16", "BF16"}
    assert sum(case.reduced for case in cases) * 2 == len(cases)
