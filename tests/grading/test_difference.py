"""The first place where two answers part, as a sentence; no sentence where they are equal."""

import math

import torch

from labkit.grading.difference import bits, difference, show, show_number
from labkit.grading.sandbox.wire import Failure, Instance, Opaque


def test_worked_example() -> None:
    expected = torch.tensor([1.0, 2.0**-30])
    assert difference(expected, expected.clone()) is None
    assert difference(expected, expected.half().float()) == (
        "[1]: expected 2^-30 (9.31e-10), got 0\nwhat you got is this number rounded to FP16: S 0  E 00000  F 0000000000"
    )


def test_what_is_forgiven() -> None:
    for expected, got in ((1.0, 1), (1, 1.0), ([1, 2], (1, 2)), (0.0, -0.0), *[(x, x) for x in (math.nan, math.inf)]):
        assert difference(expected, got) is None, (expected, got)


def test_what_is_not_forgiven() -> None:
    for expected, got, says in (
        (torch.ones(1), torch.tensor([1 - 2.0**-24]), "[0]: expected 1, got 0.99999994"),  # until they differ
        (1.0, None, "it returned None: did you forget `return`?"),
        (1, True, "expected an int (1), got True"),
        (1.0, 2**1024, f"expected 1, got {2**1024}"),  # an int that no float holds
        (2048, -(10**400), f"expected 2048, got {-(10**400)}"),
        (1.0, "1.0", "expected a float (1), got '1.0'"),
        (8.0, torch.tensor(8.0), "expected a float (8), got a tensor in FP32"),
        (None, [1.0], "expected None, got a list ([1])"),
        ([1.0], [1.0, 2.0], "expected a length of 1, got 2"),
        ([1.0, 2.0], [1.0, math.nan], "[1]: expected 2, got nan"),
        (torch.ones(2), torch.ones(2).half(), "expected a tensor in FP32, got one in FP16"),
        (torch.ones(2), torch.ones(2, 1), "expected the shape [2], got [2, 1]"),
        (torch.ones(2, 2), torch.tensor([[1.0, 1.0], [3.0, 1.0]]), "[1, 0]: expected 1, got 3"),
        (Instance("ScalerState", {"scale": 8.0}), Opaque("an object of the class Yes"), "got an object of the class"),
        (Instance("ScalerState", {"scale": 8.0}), Instance("ScalerConfig", {"scale": 8.0}), "got a ScalerConfig"),
        (1.0, Failure("error", "it stopped with KeyError: 1", "line 2: x"), "it stopped with KeyError: 1\nline 2: x"),
    ):
        assert says in (difference(expected, got) or "")


def test_opaque_values_and_failures_equal_nothing_not_even_themselves() -> None:
    for value in (Opaque("anything"), Failure("error", "it stopped")):
        assert difference(value, value) is not None


def test_ulps_count_the_floats_of_the_tensors_own_format_across_zero_and_up_to_infinity() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        for value in (1.0, -1.0, 2.0**-14, 0.0):
            there = here = torch.tensor([value], dtype=dtype)
            for _ in range(3):
                there = torch.nextafter(there, torch.tensor([9.0], dtype=dtype))
            assert difference(here, there, ulps=3) is None, here
            assert difference(here, there, ulps=2) is not None, here
    smallest = torch.tensor([2.0**-24]).half()
    assert difference(smallest, -smallest, ulps=2) is None
    assert difference(smallest, -smallest, ulps=1) is not None
    largest = torch.tensor([65504.0]).half()
    assert difference(largest, torch.tensor([math.inf]).half(), ulps=100) is not None


def test_keys_that_are_numbers_are_shown_and_sorted_as_numbers() -> None:
    expected = {12: 0, -7: 1, -23: 2}
    assert difference(expected, {4: 0, "4": 1}) == "expected the keys [-23, -7, 12], got [4, '4']"
    assert show(expected) == "{-23: 2, -7: 1, 12: 0}"
    assert show({"b": 1, "a": 2}) == "{'b': 1, 'a': 2}"


def test_fp16_is_shown_in_bits() -> None:
    said = str(difference(torch.tensor([1.0]).half(), torch.tensor([1.5]).half())).splitlines()
    shown = ["expected  S 0  E 01111  F 0000000000", "got       S 0  E 01111  F 1000000000"]
    assert said == ["[0]: expected 1, got 1.5", *shown]
    assert bits(-math.inf) == "S 1  E 11111  F 0000000000"


def test_numbers_read_as_a_person_reads_them() -> None:
    shown = {2.0**30: "2^30 (1.07e+09)", -(2.0**-20): "-2^-20 (9.54e-07)", 2.0**16: "65536", 0.1: "0.1", 0.0: "0"}
    assert show_number(3) == "3"
    assert {value: show_number(value) for value in shown} == shown


def test_long_things_are_cut() -> None:
    assert show(torch.zeros(7)) == "FP32 tensor [7]: 0, 0, 0, 0, 0, 0, ..."
    assert show((5,)) == "(5,)"
    assert show([1, 2, 3, 4, 5, 6, 7]) == "[1, 2, 3, 4, 5, 6, ...]"
