"""Cases whose operations are counted by hand and by torch; timing with a simulated clock."""

from dataclasses import replace
from itertools import product
from unittest.mock import Mock

import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from labkit import bench
from labkit.bench import (
    ConvCase,
    ElementwiseCase,
    GemmCase,
    GemmRun,
    from_json,
    measure,
    run_case,
    run_cases,
    timing,
)
from labkit.bench.cases import LAYOUTS, QUICK, output_format
from labkit.bench.timing import Pool, caller, computation, error_in_ulps, settings
from labkit.formats import BF16, E4M3, E5M2, FP16, FP32, FP64, TF32
from labkit.machine.device import GENERATIONS


def counted(work):
    """FLOPs as torch counts them."""
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


def test_a_product_or_convolution_is_what_torch_counts_and_holds():
    for format, layout in product((FP64, FP32, TF32, BF16, FP16), LAYOUTS):
        case = GemmCase(24, 16, 40, format, layout)
        a, b = Pool("cpu").sets(case)[0]
        assert a.shape == (24, 40)
        assert b.shape == (40, 16)
        assert (a.stride(1) == 1) == (layout[0] == "N")
        assert (b.stride(1) == 1) == (layout[1] == "N")
        call = caller(case, [(a, b)])
        assert counted(lambda call=call: call(0)) == case.flops, case
        assert case.bytes == sum(t.numel() * t.element_size() for t in (a, b, call(0))), case
    for kernel in (1, 3):
        case = ConvCase(2, 4, 6, 5, 8, kernel, FP32)
        images, filters = Pool("cpu").sets(case)[0]
        assert images.is_contiguous(memory_format=torch.channels_last)
        call = caller(case, [(images, filters)])
        assert call(0).shape == (2, 8, 6, 5)
        assert counted(lambda call=call: call(0)) == case.gemm.flops
        assert case.flops == case.gemm.flops
        assert case.bytes == sum(t.numel() * t.element_size() for t in (images, filters, call(0)))


def test_the_products_of_a_linear_layer_are_those_of_autograd():
    """Forward and backward through F.linear, and the same by the three cases: same numbers, same
    FLOPs.
    """
    y_case, dx_case, dw_case = bench.linear_gemms(6, 5, 3, FP64)
    x = torch.randn(6, 5, dtype=torch.float64)
    w = torch.randn(3, 5, dtype=torch.float64)
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
        assert case.layout == "".join(
            "N" if operand.is_contiguous() else "T" for operand in operands
        )
        result = computation(case)(a, b, out=torch.empty(case.m, case.n, dtype=torch.float64))
        assert torch.allclose(result, expected, rtol=1e-14)

    def both_ways():
        F.linear(x.detach().requires_grad_(), w).backward(dy)

    assert counted(both_ways) == sum(case.flops for case in (y_case, dx_case, dw_case))


def test_each_timed_operation_computes_what_torch_does():
    x = torch.randn(100, dtype=torch.float64) * 4
    for op in ("copy", "hardswish", "hardswish by hand"):
        result = computation(ElementwiseCase(op, 100, FP64))(x, out=torch.empty_like(x))
        expected = x if op == "copy" else x * torch.clamp(x + 3, 0, 6) / 6
        assert torch.allclose(result, expected, rtol=1e-15), op
    case = GemmCase(16, 16, 32, E4M3, "NT")
    operands = Pool("cpu").sets(case)[0]
    result = caller(case, [operands])(0)
    assert result.dtype == torch.bfloat16
    exact = operands[0].double() @ operands[1].double()
    assert error_in_ulps(case, operands, result) <= 0.5, "BF16 results of exact sums, rounded once"
    assert torch.allclose(result.double(), exact, rtol=2**-8)


def test_operands_without_a_product_are_refused():
    for sizes, format, layout, says in (
        ((0, 8, 8), FP16, "NN", "sizes of 1 or more"),
        ((8, 8, 8), FP16, "NX", "a layout of NN, NT, TN, TT"),
        ((16, 16, 16), E4M3, "NN", "expected layout NT"),
        ((16, 8, 16), E5M2, "NT", "multiples of 16"),
    ):
        with pytest.raises(ValueError, match=says):
            GemmCase(*sizes, format, layout)
    with pytest.raises(ValueError, match=r"expected an op of 'copy'.*got 'gelu'"):
        ElementwiseCase("gelu", 10)


def test_operands_are_random_and_new_for_each_call():
    sets = Pool("cpu").sets(GemmCase(64, 64, 64, FP32))
    starts = [tensor.data_ptr() for operands in sets for tensor in operands]
    assert len(set(starts)) == 2 * len(sets)
    assert all(start % 64 == 0 for start in starts)
    values = torch.cat([tensor.flatten() for operands in sets[:20] for tensor in operands])
    assert (values == 0).sum() == 0
    assert abs(values.mean()) < 0.01
    assert abs(values.std() - 1) < 0.01


def test_an_error_is_stated_in_ulps_of_the_result():
    """1 x 1 products: the exact result 3 lies in [2, 4), where FP16 has ulp 2^-9."""
    case = GemmCase(1, 1, 2, FP16)
    a = torch.tensor([[1.0, 2.0]]).half()
    b = torch.tensor([[1.0], [1.0]]).half()
    for off in (0, 1, -3):
        given = torch.tensor([[3.0 + off * 2**-9]]).half()
        assert error_in_ulps(case, (a, b), given) == abs(off)
    case = GemmCase(16, 256, 64, BF16)
    operands = Pool("cpu").sets(case)[0]
    error = error_in_ulps(case, operands, caller(case, [operands])(0))
    assert 0.2 < error < 0.3, "sums in FP32, rounded once: errors spread evenly over 0 to 1/2"


def test_settings_are_put_back_also_after_an_error():
    def now():
        precision = torch.get_float32_matmul_precision()
        matmul = torch.backends.cuda.matmul
        return (
            precision,
            torch.backends.cudnn.allow_tf32,
            matmul.allow_fp16_reduced_precision_reduction,
        )

    def tear():
        with settings(GemmCase(1, 1, 1, TF32)):
            assert now() == ("high", True, False)
            raise RuntimeError("torn")

    before = now()
    with pytest.raises(RuntimeError, match="torn"):
        tear()
    with settings(GemmCase(1, 1, 1, FP16, reduced=True)):
        assert (now()[0], now()[2]) == ("highest", True)
        assert torch.backends.cuda.matmul.allow_fp16_accumulation
    assert now() == before


DEVICES = [
    bench.DeviceReport("cpu", "a CPU", 0, 2),
    bench.DeviceReport("cuda", "an old GPU", 0, 2),
] + [bench.DeviceReport("cuda", row.name, 0, 100, row.capabilities[0], row) for row in GENERATIONS]


def test_sweep_asks_for_each_case_once():
    for report in DEVICES:
        for sweep in bench.sweeps(report).values():
            assert sweep.cases, (report.name, sweep.name)
            assert len(set(sweep.cases)) == len(sweep.cases), (report.name, sweep.name)
            if report.kind == "cuda":
                special = {case.format for case in sweep.cases} - {FP64, FP32, FP16}
                assert {format.name for format in special} <= set(report.tensor_cores), (
                    report.name,
                    sweep.name,
                )
    # Alignment moves one side at a time, and both accumulations are shown.
    cases = [case for case in bench.sweeps(DEVICES[0])["alignment"].cases if case.format is FP32]
    base = max(case.k for case in cases)
    assert base % 8 == 0
    assert (
        {case.k for case in cases} == {case.n for case in cases} == set(range(base - 7, base + 1))
    )
    assert all(base in (case.k, case.n) and case.m == base for case in cases)
    hopper = next(report for report in DEVICES if report.name == "Hopper")
    cases = bench.sweeps(hopper)["accumulation"].cases
    assert {output_format(case.format).name for case in cases} == {"FP16", "BF16"}
    assert sum(case.reduced for case in cases) * 2 == len(cases)


SMALL = [GemmCase(8, 8, 8, FP32), GemmCase(8, 16, 8, FP32), GemmCase(16, 16, 8, FP32)]


@pytest.fixture
def told(monkeypatch):
    """A clock that tells a list of seconds, one for each group, and writes down whose
    turn it was.
    """
    turns = []
    seconds = []

    def clock(call, group):
        turns.append((tuple(call(0).shape), group))
        return seconds[len(turns) - 1] if len(turns) <= len(seconds) else 0.02

    monkeypatch.setattr(timing, "_clock", lambda device, threads: clock)
    return turns, seconds


def test_worked_example_of_a_run():
    """2 * 1000^3 operations in a millisecond are 2 TFLOP/s; 3 * 1000^2 FP16 numbers in it are 6
    GB/s.
    """
    run = GemmRun(
        GemmCase(1000, 1000, 1000, FP16), seconds=1e-3, low=1e-3, high=1e-3, calls=1, error=0.25
    )
    assert run.tflops == 2.0
    assert run.gbps == pytest.approx(6.0)


def test_cases_take_turns_and_the_median_counts(told):
    turns, seconds = told
    warm = [0.02] * 3  # one call each, to see how long it takes
    # a machine that is disturbed twice
    rounds = [[0.01, 0.02, 0.03], [0.09, 0.02, 0.03], [0.01, 0.08, 0.04]]
    seconds += warm + [second for each in rounds for second in each]
    runs = run_cases(SMALL, rounds=3)
    shapes = [(case.m, case.n) for case in SMALL]
    assert [shape for shape, _ in turns[3:]] == shapes * 3
    assert [run.case for run in runs] == SMALL
    assert [run.seconds for run in runs] == [0.01, 0.02, 0.03]
    assert [(run.low, run.high) for run in runs] == [(0.01, 0.05), (0.02, 0.05), (0.03, 0.035)]


def test_long_calls_have_three_turns(told):
    turns, seconds = told
    seconds += [0.6, 0.02] + [0.6, 0.02] * 3
    slow, fast = run_cases(SMALL[:2], rounds=8)
    assert slow.calls == 3
    assert fast.calls == 8
    assert len(turns) == 2 + 3 + 8
    turns.clear()
    seconds[:] = [0.002, 0.002, 0.002]
    run = run_case(SMALL[0], rounds=1)
    assert [group for _, group in turns] == [1, 10, 10], "ten calls of 2 ms are 20 ms"
    assert run.calls == 10


def test_unmeasured_case_is_left_out_with_the_reason(told, monkeypatch):
    turns, seconds = told
    missing = []
    runs = run_cases(
        SMALL, rounds=50, stop=lambda: len(turns) >= 2, left_out=lambda *told: missing.append(told)
    )
    assert [run.case for run in runs] == SMALL[:2]
    assert [run.calls for run in runs] == [1, 1]
    assert missing.pop() == (SMALL[2], "the time was up")
    turns.clear()
    seconds += [1.5, 1.5]
    large = GemmCase(16, 16, 16, FP32)  # four times the work of the first
    runs = run_cases([SMALL[0], large], rounds=1, left_out=lambda *told: missing.append(told))
    assert [run.case for run in runs] == SMALL[:1]
    assert missing == [(large, "one call would take about 12 s")]

    def refuse(case, sets):
        raise RuntimeError("no kernel for this\nand a long trace")

    monkeypatch.setattr(timing, "caller", refuse)
    with pytest.raises(
        RuntimeError, match=r"FP32 NN 8x8x8 was not timed on cpu: no kernel for this$"
    ):
        run_case(SMALL[0])


def test_cuda_events_time_a_whole_group(monkeypatch):
    event = Mock()
    calls = []
    event.return_value.elapsed_time.return_value = 40.0
    monkeypatch.setattr(torch.cuda, "Event", event)
    assert timing._cuda_clock(calls.append, 8) == pytest.approx(0.040 / 8)
    assert calls == list(range(8)), "each call gets other operands"
    event.assert_called_with(enable_timing=True)
    done = [name for name, *_ in event.return_value.method_calls]
    assert done == ["record", "record", "synchronize", "elapsed_time"], (
        "the time is asked for when the work is done"
    )
    before = torch.get_num_threads()  # is put back
    run_case(SMALL[0], rounds=1, threads=before + 1)
    assert torch.get_num_threads() == before
    for how in ({"rounds": 0}, {"threads": 0}):
        with pytest.raises(ValueError, match="1 or more"):
            run_cases(SMALL, **how)


def test_record_comes_back_from_its_file():
    record = measure("layers", "cpu", extent=QUICK, rounds=1)
    assert record.kind == "cpu"
    assert record.versions["torch"] == torch.__version__
    assert len(record.runs) == 9
    assert record.device
    assert record.date.endswith("+00:00")
    assert from_json(record.to_json()) == record
    product = GemmCase(1, 2, 3, BF16, "TN", True, "something")
    cases = (product, ConvCase(1, 2, 3, 4, 5, 1, FP16), ElementwiseCase("hardswish", 10, FP32))
    made = replace(
        record,
        runs=tuple(GemmRun(case, 0.5, 0.25, 1.0, 7, 0.0) for case in cases),
        left_out=("a: b",),
    )
    assert from_json(made.to_json()) == made
    assert len(made.to_json().splitlines()) == 1 + len(cases), (
        "a line for each run, so that a diff can be read"
    )
    for text in ("", "[]", "{}", '{"schema": "labkit.run/1"}'):
        with pytest.raises(ValueError, match="expected a record of a sweep"):
            from_json(text)
    with pytest.raises(ValueError, match=r"expected a sweep of ceilings, size.*got 'sise'"):
        measure("sise", "cpu")
    # when they are over, the rest is named
    record = measure("size", "cpu", extent=QUICK, seconds=0)
    assert record.runs == ()
    assert len(record.left_out) == 8
    assert record.left_out[0][-15:] == "the time was up"
