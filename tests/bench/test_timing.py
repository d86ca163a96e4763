"""Timing of cases, by a simulated clock."""

from collections import Counter
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from labkit.bench import GemmCase, GemmRun, run_case, run_cases, timing
from labkit.formats import FP16, FP32


def test_half_a_round_is_refused():
    with pytest.raises(TypeError, match=r"rounds: expected an int, got 1\.5"):
        run_cases([], rounds=1.5)


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


@pytest.mark.parametrize("option", ["rounds", "threads"])
def test_less_than_one_round_or_thread_is_refused(option):
    with pytest.raises(ValueError, match="1 or more"):
        run_cases(SMALL, **{option: 0})
