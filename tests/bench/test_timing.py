"""Cases of benchmarks, whose operations torch counts, and their timing by a simulated clock."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
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
from labkit.bench.timing import MOST_SETS, Pool, caller, computation, error_in_ulps, settings
from labkit.formats import BF16, E2M1, E4M3, E5M2, FP16, FP32, FP64, TF32
from labkit.machine.device import GENERATIONS


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


def test_half_a_round_is_refused():
    with pytest.raises(TypeError, match=r"rounds: expected an int, got 1\.5"):
        run_cases([], rounds=1.5)


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


def precision_settings():
    matmul = torch.backends.cuda.matmul
    return {
        "precision": torch.get_float32_matmul_precision(),
        "TF32 in convolutions": torch.backends.cudnn.allow_tf32,
        "reduced precision": matmul.allow_fp16_reduced_precision_reduction,
        "FP16 accumulation": matmul.allow_fp16_accumulation,
    }


def fail_in_tf32():
    with settings(GemmCase(1, 1, 1, TF32)):
        raise KeyError


def test_tf32_is_allowed_for_cases_of_tf32():
    with settings(GemmCase(1, 1, 1, TF32)):
        assert precision_settings() == {
            "precision": "high",
            "TF32 in convolutions": True,
            "reduced precision": False,
            "FP16 accumulation": False,
        }


def test_reduced_accumulation_is_allowed_for_reduced_cases():
    with settings(GemmCase(1, 1, 1, FP16, reduced=True)):
        assert precision_settings() == {
            "precision": "highest",
            "TF32 in convolutions": False,
            "reduced precision": True,
            "FP16 accumulation": True,
        }


def test_settings_are_restored_after_an_error():
    before = precision_settings()
    with pytest.raises(KeyError):
        fail_in_tf32()
    assert precision_settings() == before


DEVICES = [
    bench.DeviceReport("cpu", "a CPU", 0, 2),
    bench.DeviceReport("cuda", "an old GPU", 0, 2),
] + [bench.DeviceReport("cuda", row.name, 0, 100, row.capabilities[0], row) for row in GENERATIONS]


each_device = pytest.mark.parametrize("report", DEVICES, ids=lambda report: report.name)


@each_device
def test_sweep_has_each_case_once(report):
    for sweep in bench.sweeps(report).values():
        assert sweep.cases, sweep.name
        assert len(set(sweep.cases)) == len(sweep.cases), sweep.name


@pytest.mark.parametrize("report", DEVICES[1:], ids=lambda report: report.name)
def test_sweep_of_a_gpu_has_formats_of_its_tensor_cores(report):
    for sweep in bench.sweeps(report).values():
        # A GPU without Tensor Cores computes in these, too.
        formats = {case.format for case in sweep.cases} - {FP64, FP32, FP16}
        assert {format.name for format in formats} <= set(report.tensor_cores), sweep.name


def test_alignment_changes_one_side_at_a_time():
    cases = [case for case in bench.sweeps(DEVICES[0])["alignment"].cases if case.format is FP32]
    base = max(case.k for case in cases)
    sides = set(range(base - 7, base + 1))
    assert base % 8 == 0
    assert {case.k for case in cases} == sides
    assert {case.n for case in cases} == sides
    for case in cases:
        assert case.m == base
        assert base in (case.k, case.n)


def test_accumulation_is_timed_reduced_and_in_full():
    hopper = next(report for report in DEVICES if report.name == "Hopper")
    cases = bench.sweeps(hopper)["accumulation"].cases
    assert {output_format(case.format).name for case in cases} == {"FP16", "BF16"}
    assert sum(case.reduced for case in cases) * 2 == len(cases)


SMALL = [GemmCase(8, 8, 8, FP32), GemmCase(8, 16, 8, FP32), GemmCase(16, 16, 8, FP32)]


@pytest.fixture
def simulated_clock(monkeypatch):
    """A clock for groups of calls.

    Returns:
        A list of the timed groups, as (shape of the result, number of calls), and a list of the
        seconds of a call in each group, to which a test appends; further groups have 0.02.
    """
    turns = []
    seconds = []

    def clock(call, group):
        turns.append((tuple(call(0).shape), group))
        if len(turns) <= len(seconds):
            return seconds[len(turns) - 1]
        return 0.02

    monkeypatch.setattr(timing, "_clock", lambda device, threads: clock)
    return turns, seconds


def test_worked_example_of_a_run():
    """In a millisecond, 2 * 1000^3 operations are 2 TFLOP/s, and 3 * 1000^2 FP16 numbers 6 GB/s."""
    run = GemmRun(
        GemmCase(1000, 1000, 1000, FP16), seconds=1e-3, low=1e-3, high=1e-3, calls=1, error=0.25
    )
    assert run.tflops == 2.0
    assert run.gbps == pytest.approx(6.0)


def test_cases_take_turns_and_the_median_counts(simulated_clock):
    turns, seconds = simulated_clock
    # One call of each case shows how long it takes.
    warm = [0.02] * 3
    # The machine is disturbed twice: 0.09 and 0.08.
    rounds = [[0.01, 0.02, 0.03], [0.09, 0.02, 0.03], [0.01, 0.08, 0.04]]
    seconds += warm + [second for each in rounds for second in each]
    runs = run_cases(SMALL, rounds=3)
    shapes = [(case.m, case.n) for case in SMALL]
    assert [shape for shape, _ in turns[3:]] == shapes * 3
    assert [run.case for run in runs] == SMALL
    assert [run.seconds for run in runs] == [0.01, 0.02, 0.03]
    assert [(run.low, run.high) for run in runs] == [(0.01, 0.05), (0.02, 0.05), (0.03, 0.035)]


def test_long_calls_have_three_turns(simulated_clock):
    turns, seconds = simulated_clock
    seconds += [0.6, 0.02] + [0.6, 0.02] * 3
    slow, fast = run_cases(SMALL[:2], rounds=8)
    assert slow.calls == 3
    assert fast.calls == 8
    assert len(turns) == 2 + 3 + 8


def test_short_calls_are_timed_in_groups_of_20_ms(simulated_clock):
    turns, seconds = simulated_clock
    seconds += [0.002, 0.002, 0.002]
    run = run_case(SMALL[0], rounds=1)
    assert [group for _, group in turns] == [1, 10, 10]
    assert run.calls == 10


def test_cases_after_the_time_limit_are_left_out(simulated_clock):
    turns, _ = simulated_clock
    left_out = {}
    runs = run_cases(SMALL, rounds=50, stop=lambda: len(turns) >= 2, left_out=left_out.__setitem__)
    assert [run.case for run in runs] == SMALL[:2]
    assert [run.calls for run in runs] == [1, 1]
    assert left_out == {SMALL[2]: "the time was up"}


def test_a_case_that_would_take_too_long_is_left_out(simulated_clock):
    _, seconds = simulated_clock
    seconds += [1.5, 1.5]
    # Eight times the work of the first.
    large = GemmCase(16, 16, 16, FP32)
    left_out = {}
    runs = run_cases([SMALL[0], large], rounds=1, left_out=left_out.__setitem__)
    assert [run.case for run in runs] == SMALL[:1]
    assert left_out == {large: "one call would take about 12 s"}


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("no kernel for this\nand a long trace"), "no kernel for this"),
        (RuntimeError(), "RuntimeError"),
    ],
)
def test_a_case_that_fails_names_the_first_line_of_its_error(
    simulated_clock, monkeypatch, error, reason
):
    monkeypatch.setattr(timing, "caller", Mock(side_effect=error))
    with pytest.raises(RuntimeError, match=f"FP32 NN 8x8x8 was not timed on cpu: {reason}$"):
        run_case(SMALL[0])


def test_a_case_that_fails_in_a_round_is_left_out_from_then_on(monkeypatch):
    timings = Counter()

    def clock(call, group):
        shape = tuple(call(0).shape)
        timings[shape] += 1
        # The first timing is the warm-up, so this is in the second round.
        if shape == (8, 16) and timings[shape] == 3:
            raise RuntimeError("out of memory\nand a long trace")
        return 0.02

    monkeypatch.setattr(timing, "_clock", lambda device, threads: clock)
    left_out = {}
    runs = run_cases(SMALL, rounds=3, left_out=left_out.__setitem__)
    assert [run.case for run in runs] == [SMALL[0], SMALL[2]]
    assert left_out == {SMALL[1]: "out of memory"}
    assert timings == {(8, 8): 4, (8, 16): 3, (16, 16): 4}


# A call takes a second of the thread's CPU time, and three seconds in all.
@pytest.mark.parametrize(
    ("threads", "resolution", "seconds"),
    [(1, 1e-9, 1.0), (2, 1e-9, 3.0), (1, 1 / 64, 3.0)],
    ids=["one thread", "two threads", "a coarse clock"],
)
def test_one_thread_is_timed_by_its_cpu_time(monkeypatch, threads, resolution, seconds):
    calls = []
    clocks = SimpleNamespace(
        thread_time=lambda: 1.0 * len(calls),
        perf_counter=lambda: 3.0 * len(calls),
        get_clock_info=lambda name: SimpleNamespace(resolution=resolution),
    )
    monkeypatch.setattr(timing, "time", clocks)
    monkeypatch.setattr("sys.platform", "linux")
    assert timing._clock(torch.device("cpu"), threads)(calls.append, 4) == seconds
    assert calls == [0, 1, 2, 3]


def test_cuda_events_time_a_whole_group(monkeypatch):
    event = Mock()
    calls = []
    event.return_value.elapsed_time.return_value = 40.0
    monkeypatch.setattr(torch.cuda, "Event", event)
    assert timing._cuda_clock(calls.append, 8) == pytest.approx(0.040 / 8)
    # Each call has its own operands.
    assert calls == list(range(8))
    event.assert_called_with(enable_timing=True)
    methods = [name for name, *_ in event.return_value.method_calls]
    # The time is read after the work is done.
    assert methods == ["record", "record", "synchronize", "elapsed_time"]


def test_the_number_of_threads_is_restored():
    before = torch.get_num_threads()
    run_case(SMALL[0], rounds=1, threads=before + 1)
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("option", ["rounds", "threads"])
def test_less_than_one_round_or_thread_is_refused(option):
    with pytest.raises(ValueError, match="1 or more"):
        run_cases(SMALL, **{option: 0})


@pytest.fixture(scope="module")
def record():
    return measure("layers", "cpu", extent=QUICK, rounds=1)


def test_a_record_says_where_and_when_it_was_measured(record):
    assert record.kind == "cpu"
    assert record.versions["torch"] == torch.__version__
    assert record.device
    assert record.date.endswith("+00:00")
    assert len(record.runs) == 9


def test_a_record_is_read_as_it_was_written(record):
    assert from_json(record.to_json()) == record


def test_a_record_of_all_kinds_of_cases_has_a_line_for_each(record):
    cases = (
        GemmCase(1, 2, 3, BF16, "TN", True, "something"),
        ConvCase(1, 2, 3, 4, 5, 1, FP16),
        ElementwiseCase("hardswish", 10, FP32),
    )
    runs = tuple(GemmRun(case, 0.5, 0.25, 1.0, 7, 0.0) for case in cases)
    other = replace(record, runs=runs, left_out=("a: b",))
    assert from_json(other.to_json()) == other
    assert len(other.to_json().splitlines()) == 1 + len(cases)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": "labkit.run/1"}'])
def test_a_text_that_is_not_a_record_is_refused(text):
    with pytest.raises(ValueError, match="expected a record of a sweep"):
        from_json(text)


def test_an_unknown_sweep_is_refused():
    with pytest.raises(ValueError, match=r"expected a sweep of ceilings, size.*got 'sise'"):
        measure("sise", "cpu")


def test_a_record_names_the_cases_that_the_time_did_not_allow():
    record = measure("size", "cpu", extent=QUICK, seconds=0)
    assert record.runs == ()
    assert len(record.left_out) == 8
    assert record.left_out[0].endswith("the time was up")
