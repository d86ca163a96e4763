"""Values that learners return: as JSON and back, the first difference of two, and as text."""

import json
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch

from labkit.amp import ScalerState
from labkit.grading import EXERCISES, judge
from labkit.grading.difference import bits, difference, show, show_number
from labkit.grading.judge import answers_of, visible_cases
from labkit.grading.sandbox.wire import Failure, Instance, Opaque, dump, load

# --- as JSON and back ---


def test_plain_values_come_back_as_they_went() -> None:
    numbers = (0, -(10**30), 0.1, 2.0**-1074, math.inf)
    for value in (*numbers, None, True, False, "scale", [], [1, [2.0, None]], (1, "a"), {"a": 8.0}):
        back = load(json.loads(json.dumps(dump(value))))
        assert back == value
        assert type(back) is type(value)
    assert math.isnan(load(dump(math.nan)))
    assert load(dump(Failure("error", "it stopped", "line 2"))) == Failure(
        "error", "it stopped", "line 2"
    )


def test_tensors_come_back_with_type_shape_and_every_bit() -> None:
    dtypes = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool, torch.int64)
    matrix = torch.arange(6.0).reshape(2, 3)
    # A view that torch negates when it is read.
    lazy = torch.tensor([1 + 2j]).conj().imag
    assert lazy.is_neg()
    views = [
        matrix.T,
        matrix[:, 1],
        torch.arange(6.0)[4::2],
        lazy,
        torch.nn.Parameter(torch.ones(2)).detach(),
    ]
    shaped = [
        torch.arange(math.prod(n)).reshape(n).to(dtype)
        for n in ((), (0,), (3,), (2, 3))
        for dtype in dtypes
    ]
    for tensor in (*views, *shaped):
        back = load(dump(tensor))
        assert isinstance(back, torch.Tensor)
        assert back.dtype is tensor.dtype
        assert torch.equal(back, tensor)
    assert torch.equal(load(dump(torch.nn.Parameter(torch.ones(2)))), torch.ones(2))


def test_arrays_sizes_decimals_and_a_dataclass_of_labkit_travel() -> None:
    array = np.array([[1.5, -0.0]], dtype=np.float16)
    back = load(dump(array))
    assert isinstance(back, np.ndarray)
    assert back.dtype == np.float16
    assert back.tobytes() == array.tobytes()
    fields = {"scale": 8.0, "growth_tracker": 3, "hysteresis_tracker": 1}
    for value, travels_as in (
        (np.float32(0.5), 0.5),
        (torch.ones(2, 3).shape, (2, 3)),
        ([Decimal("0.375"), Decimal(7)], [0.375, 7.0]),
        (ScalerState(8.0, 3, 1), Instance("ScalerState", fields)),
    ):
        assert load(dump(value)) == travels_as


class Yes:
    """An object that equals everything, and raises an error when an attribute is read."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("who asks?")


YesFloat, YesState = (
    type(f"Yes{kind.__name__}", (kind,), dict(vars(Yes))) for kind in (float, ScalerState)
)


class YesTensor(torch.Tensor):
    def __eq__(self, other: object) -> Any:
        return True


def test_nothing_is_left_of_an_object_with_a_mind_of_its_own() -> None:
    for value in (Yes(), YesFloat(1.0), torch.ones(1).as_subclass(YesTensor), YesState(1.0), float):
        assert isinstance(load(dump(value)), Opaque)
        assert load(dump([value])) == [load(dump(value))]


def test_a_class_of_the_same_name_is_not_ours() -> None:
    namespace: dict[str, Any] = {}
    exec(
        "import dataclasses\n@dataclasses.dataclass\nclass ScalerState:\n    scale: float\n"
        "ScalerState.__module__ = 'labkit.amp.loss_scaling.scaler'",
        namespace,
    )
    assert isinstance(load(dump(namespace["ScalerState"](8.0))), Opaque)


def test_what_has_no_end_or_no_memory_is_cut_off() -> None:
    endless: list[object] = []
    endless += [endless, endless]
    for value in (
        endless,
        torch.zeros(1).expand(10**12),
        10**5000,
        torch.ones(2).to_sparse(),
        Decimal("sNaN"),
    ):
        assert isinstance(load(dump(value)), Opaque)


def test_what_dump_did_not_write_is_refused() -> None:
    tensors = ['["tensor", "float32", [2], "AAAA"]', '["tensor", "float32", [-3], "AAAAAA=="]']
    objects = [
        '["__import__", "os"]',
        '["array", "O", [1], "AAAAAAAAAAA="]',
        '["instance", "ScalerState", 5]',
    ]
    for text in (
        "null",
        "[]",
        "7",
        '["int", "x"]',
        '["failure"]',
        "[" * 900 + "]" * 900,
        *tensors,
        *objects,
    ):
        with pytest.raises(ValueError, match="not an answer written by dump"):
            load(json.loads(text))


# --- the first difference ---


def test_what_is_forgiven() -> None:
    for expected, got in (
        (1.0, 1),
        (1, 1.0),
        ([1, 2], (1, 2)),
        (0.0, -0.0),
        *[(x, x) for x in (math.nan, math.inf)],
    ):
        assert difference(expected, got) is None, (expected, got)


def test_a_difference_names_the_result_it_lies_in() -> None:
    """The names of results come from the docstring of the exercise's function. Without names there,
    results are numbered from 0.
    """
    exercise = EXERCISES["route.sets"]
    answer = answers_of(
        visible_cases(exercise),
        lambda scores, chosen, bits: (exercise.reference(scores, chosen, bits)[0], [-1] * chosen),
    )
    first = judge(visible_cases(exercise), answer).verdicts[0].counter_example
    assert first.difference.startswith("experts by rounded scores [0]: expected ")
    assert EXERCISES["autocast.linear"].results == ("y", "grad_x", "grad_weight")
    assert EXERCISES["tensor.backward"].results == ()


def test_what_is_not_forgiven() -> None:
    for expected, got, says in (
        # With as many digits as distinguish them.
        (torch.ones(1), torch.tensor([1 - 2.0**-24]), "[0]: expected 1, got 0.99999994"),
        (1.0, None, "it returned None: did you forget `return`?"),
        (1, True, "expected an int (1), got True"),
        # An int that is too large for a float.
        (1.0, 2**1024, f"expected 1, got {2**1024}"),
        (2048, -(10**400), f"expected 2048, got {-(10**400)}"),
        (1.0, "1.0", "expected a float (1), got '1.0'"),
        (8.0, torch.tensor(8.0), "expected a float (8), got a tensor in FP32"),
        (None, [1.0], "expected None, got a list ([1])"),
        ([1.0], [1.0, 2.0], "expected a length of 1, got 2"),
        ([1.0, 2.0], [1.0, math.nan], "[1]: expected 2, got nan"),
        (torch.ones(2), torch.ones(2).half(), "expected a tensor in FP32, got one in FP16"),
        (torch.ones(2), torch.ones(2, 1), "expected the shape [2], got [2, 1]"),
        (torch.ones(2, 2), torch.tensor([[1.0, 1.0], [3.0, 1.0]]), "[1, 0]: expected 1, got 3"),
        (
            Instance("ScalerState", {"scale": 8.0}),
            Opaque("an object of the class Yes"),
            "got an object of the class",
        ),
        (
            Instance("ScalerState", {"scale": 8.0}),
            Instance("ScalerConfig", {"scale": 8.0}),
            "got a ScalerConfig",
        ),
        (
            1.0,
            Failure("error", "it stopped with KeyError: 1", "line 2: x"),
            "it stopped with KeyError: 1\nline 2: x",
        ),
    ):
        assert says in (difference(expected, got) or "")
    # Values that differ even from themselves.
    for value in (Opaque("anything"), Failure("error", "it stopped")):
        assert difference(value, value) is not None


def test_ulps_count_floats_of_the_tensors_own_format() -> None:
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


def test_values_are_shown_as_a_person_reads_them() -> None:
    expected = {12: 0, -7: 1, -23: 2}
    assert difference(expected, {4: 0, "4": 1}) == "expected the keys [-23, -7, 12], got [4, '4']"
    for value, says in (
        (expected, "{-23: 2, -7: 1, 12: 0}"),
        ({"b": 1, "a": 2}, "{'b': 1, 'a': 2}"),
        (torch.zeros(7), "FP32 tensor [7]: 0, 0, 0, 0, 0, 0, ..."),
        ((5,), "(5,)"),
        ([1, 2, 3, 4, 5, 6, 7], "[1, 2, 3, 4, 5, 6, ...]"),
    ):
        assert show(value) == says
    shown = {
        2.0**30: "2^30 (1.07e+09)",
        -(2.0**-20): "-2^-20 (9.54e-07)",
        2.0**16: "65536",
        0.1: "0.1",
        3: "3",
    }
    assert {value: show_number(value) for value in shown} == shown


def test_fp16_is_shown_in_bits() -> None:
    expected = torch.tensor([1.0, 2.0**-30])
    assert difference(expected, expected.half().float()) == (
        "[1]: expected 2^-30 (9.31e-10), got 0\n"
        "what you got is this number rounded to FP16: S 0  E 00000  F 0000000000"
    )
    said = str(difference(torch.tensor([1.0]).half(), torch.tensor([1.5]).half())).splitlines()
    shown = ["expected  S 0  E 01111  F 0000000000", "got       S 0  E 01111  F 1000000000"]
    assert said == ["[0]: expected 1, got 1.5", *shown]
    assert bits(-math.inf) == "S 1  E 11111  F 0000000000"
