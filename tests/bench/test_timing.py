"""Timing with a clock that says what it is told to say, so that no test depends on the machine."""

from dataclasses import replace

import pytest
import torch

from labkit.bench import ConvCase, ElementwiseCase, GemmCase, GemmRun, from_json, measure, run_case, run_cases, timing
from labkit.bench.cases import QUICK
from labkit.formats import BF16, FP16, FP32

SMALL = [GemmCase(8, 8, 8, FP32), GemmCase(8, 16, 8, FP32), GemmCase(16, 16, 8, FP32)]


@pytest.fixture
def told(monkeypatch):
    """A clock that tells a list of seconds, one for each group, and writes down whose turn it was."""
    turns, seconds = [], []

    def clock(call, group):
        turns.append((tuple(call(0).shape), group))
        return seconds[len(turns) - 1] if len(turns) <= len(seconds) else 0.02

    monkeypatch.setattr(timing, "_clock", lambda device, threads: clock)
    return turns, seconds


def test_worked_example_of_a_run():
    """2 * 1000^3 operations in a millisecond are 2 TFLOP/s; 3 * 1000^2 FP16 numbers in it are 6 GB/s."""
    run = GemmRun(GemmCase(1000, 1000, 1000, FP16), seconds=1e-3, low=1e-3, high=1e-3, calls=1, error=0.25)
    assert run.tflops == 2.0
    assert run.gbps == pytest.approx(6.0)


def test_cases_take_turns_and_the_median_counts(told):
    turns, seconds = told
    warm = [0.02] * 3  # one call each, to see how long it takes
    rounds = [[0.01, 0.02, 0.03], [0.09, 0.02, 0.03], [0.01, 0.08, 0.04]]  # a machine that is disturbed twice
    seconds += warm + [second for each in rounds for second in each]
    runs = run_cases(SMALL, rounds=3)
    shapes = [(case.m, case.n) for case in SMALL]
    assert [shape for shape, _ in turns[3:]] == shapes * 3
    assert [run.case for run in runs] == SMALL
    assert [run.seconds for run in runs] == [0.01, 0.02, 0.03]
    assert [(run.low, run.high) for run in runs] == [(0.01, 0.05), (0.02, 0.05), (0.03, 0.035)]


def test_long_calls_have_three_turns_and_short_ones_all_in_groups(told):
    turns, seconds = told
    seconds += [0.6, 0.02] + [0.6, 0.02] * 3
    slow, fast = run_cases(SMALL[:2], rounds=8)
    assert (slow.calls, fast.calls) == (3, 8)
    assert len(turns) == 2 + 3 + 8
    turns.clear()
    seconds[:] = [0.002, 0.002, 0.002]
    run = run_case(SMALL[0], rounds=1)
    assert [group for _, group in turns] == [1, 10, 10], "ten calls of 2 ms are 20 ms"
    assert run.calls == 10


def test_a_time_limit_keeps_what_had_a_turn(told):
    turns, _ = told
    missing = []
    runs = run_cases(SMALL, rounds=50, stop=lambda: len(turns) >= 2, left_out=lambda *told: missing.append(told))
    assert [run.case for run in runs] == SMALL[:2]
    assert [run.calls for run in runs] == [1, 1]
    assert missing == [(SMALL[2], "the time was up")]


def test_what_would_take_too_long_is_left_out_with_how_long(told):
    _, seconds = told
    seconds += [1.5, 1.5]
    missing = []
    large = GemmCase(16, 16, 16, FP32)  # four times the work of the first
    runs = run_cases([SMALL[0], large], rounds=1, left_out=lambda *told: missing.append(told))
    assert [run.case for run in runs] == SMALL[:1]
    assert missing == [(large, "one call would take about 12 s")]


def test_what_cannot_run_here_is_left_out_with_torch_s_reason(monkeypatch):
    def refuse(case, sets):
        raise RuntimeError("no kernel for this\nand a long trace")

    monkeypatch.setattr(timing, "caller", refuse)
    with pytest.raises(RuntimeError, match=r"FP32 NN 8x8x8 was not timed on cpu: no kernel for this$"):
        run_case(SMALL[0])


def test_cuda_events_tell_milliseconds_for_a_whole_group(monkeypatch):
    class Event:
        def __init__(self, enable_timing):
            assert enable_timing
            self.waited = False

        def record(self):
            pass

        def synchronize(self):
            self.waited = True

        def elapsed_time(self, ended):
            assert ended.waited, "the time is asked for before the work is done"
            return 40.0

    monkeypatch.setattr(torch.cuda, "Event", Event)
    calls = []
    assert timing._cuda_clock(calls.append, 8) == pytest.approx(0.040 / 8)
    assert calls == list(range(8)), "each call gets other operands"


def test_threads_are_put_back_and_none_are_refused():
    before = torch.get_num_threads()
    run_case(SMALL[0], rounds=1, threads=before + 1)
    assert torch.get_num_threads() == before
    for how in ({"rounds": 0}, {"threads": 0}):
        with pytest.raises(ValueError, match="1 or more"):
            run_cases(SMALL, **how)


# Records


def test_a_record_says_what_was_measured_where_and_comes_back_from_its_file():
    record = measure("layers", "cpu", extent=QUICK, rounds=1)
    assert record.kind == "cpu"
    assert record.versions["torch"] == torch.__version__
    assert record.device
    assert record.date.endswith("+00:00")
    assert len(record.runs) == 9
    assert from_json(record.to_json()) == record
    cases = (
        GemmCase(1, 2, 3, BF16, "TN", True, "something"),
        ConvCase(1, 2, 3, 4, 5, 1, FP16),
        ElementwiseCase("hardswish", 10, FP32),
    )
    made = replace(record, runs=tuple(GemmRun(case, 0.5, 0.25, 1.0, 7, 0.0) for case in cases), left_out=("a: b",))
    assert from_json(made.to_json()) == made
    assert len(made.to_json().splitlines()) == 1 + len(cases), "a line for each run, so that a diff can be read"


def test_what_is_no_record_and_no_sweep_is_refused():
    for text in ("", "[]", "{}", '{"schema": "labkit.run/1"}'):
        with pytest.raises(ValueError, match="no record of a sweep"):
            from_json(text)
    with pytest.raises(ValueError, match="no sweep 'sise'; there are ceilings, size"):
        measure("sise", "cpu")


def test_when_the_seconds_are_over_the_rest_is_named():
    record = measure("size", "cpu", extent=QUICK, seconds=0)
    assert record.runs == ()
    assert len(record.left_out) == 8
    assert record.left_out[0].endswith("the time was up")
