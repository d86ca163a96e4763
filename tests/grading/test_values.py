"""Values that learners return: as JSON and back, the first difference of two, and as text."""

import json
import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from labkit.amp import ScalerState
from labkit.formats import FP16, Rounding
from labkit.grading import EXERCISES, check, judge
from labkit.grading.difference import bits, difference, show, show_number
from labkit.grading.judge import answers_of, visible_cases
from labkit.grading.sandbox.wire import Failure, Instance, Opaque, dump, load

# --- as JSON and back ---


def sent(value: Any) -> Any:
    """Return a value after its way from the process of the answer to that of the grader."""
    return load(json.loads(json.dumps(dump(value))))


@pytest.mark.parametrize(
    "value",
    [
        *(0, -(10**30), 0.1, 2.0**-1074, math.inf),
        *(None, True, False, "scale", [], [1, [2.0, None]], (1, "a"), {"a": 8.0}),
        Failure("error", "it stopped", "line 2"),
    ],
)
def test_a_plain_value_comes_back_as_it_was(value: Any) -> None:
    back = sent(value)
    assert back == value
    assert type(back) is type(value)


def test_nan_comes_back_as_nan() -> None:
    assert math.isnan(sent(math.nan))


def assert_comes_back(tensor: torch.Tensor) -> None:
    """Assert that a tensor comes back with its dtype, shape and bits."""
    back = sent(tensor)
    assert type(back) is torch.Tensor
    assert back.dtype is tensor.dtype
    assert torch.equal(back, tensor)


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)])
@pytest.mark.parametrize(
    "dtype",
    [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool, torch.int64],
)
def test_a_tensor_comes_back_with_every_bit(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    assert_comes_back(torch.arange(math.prod(shape)).reshape(shape).to(dtype))


MATRIX = torch.arange(6.0).reshape(2, 3)


@pytest.mark.parametrize(
    "view",
    [
        pytest.param(MATRIX.T, id="transposed"),
        pytest.param(MATRIX[:, 1], id="column"),
        pytest.param(torch.arange(6.0)[4::2], id="every second"),
    ],
)
def test_a_view_comes_back_with_its_own_numbers(view: torch.Tensor) -> None:
    assert_comes_back(view)


def test_a_view_that_is_negated_when_read_comes_back_negated() -> None:
    lazy = torch.tensor([1 + 2j]).conj().imag
    assert lazy.is_neg()
    assert_comes_back(lazy)


def test_a_parameter_comes_back_as_a_tensor() -> None:
    back = sent(torch.nn.Parameter(torch.ones(2)))
    assert type(back) is torch.Tensor
    assert torch.equal(back, torch.ones(2))


def test_an_array_comes_back_with_every_bit() -> None:
    array = np.array([[1.5, -0.0]], dtype=np.float16)
    back = sent(array)
    assert isinstance(back, np.ndarray)
    assert back.dtype == np.float16
    assert back.tobytes() == array.tobytes()


@pytest.mark.parametrize(
    ("value", "arrives_as"),
    [
        pytest.param(np.float32(0.5), 0.5, id="number of numpy"),
        pytest.param(torch.ones(2, 3).shape, (2, 3), id="size of a tensor"),
        pytest.param([Decimal("0.375"), Decimal(7)], [0.375, 7.0], id="decimals"),
        pytest.param(
            ScalerState(8.0, 3, 1),
            Instance("ScalerState", {"scale": 8.0, "growth_tracker": 3, "hysteresis_tracker": 1}),
            id="dataclass of labkit",
        ),
    ],
)
def test_other_known_types_arrive_as_plain_values(value: Any, arrives_as: Any) -> None:
    assert sent(value) == arrives_as


@pytest.mark.parametrize(
    "key", [ScalerState(8.0), FP16, Rounding.NEAREST_EVEN, (1, ScalerState(8.0))]
)
def test_an_object_of_labkit_may_be_a_key(key: Any) -> None:
    assert sent({key: 1.0}) == {sent(key): 1.0}


def test_an_answer_with_a_state_as_a_key_is_wrong_and_no_error() -> None:
    grade = check("scaling.advance", lambda state, found_inf, config: {state: 1})
    assert grade.points == 0
    assert "got        {ScalerState(scale=" in str(grade)


class EqualToAll:
    """An object that equals everything, and raises an error when an attribute is read."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("who asks?")


class FloatEqualToAll(EqualToAll, float):
    pass


class StateEqualToAll(EqualToAll, ScalerState):
    pass


class TensorEqualToAll(torch.Tensor):
    def __eq__(self, other: object) -> Any:
        return True


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(EqualToAll(), id="object"),
        pytest.param(FloatEqualToAll(1.0), id="float"),
        pytest.param(StateEqualToAll(1.0), id="dataclass"),
        pytest.param(torch.ones(1).as_subclass(TensorEqualToAll), id="tensor"),
        pytest.param(float, id="class"),
    ],
)
def test_an_object_of_a_learners_class_arrives_as_opaque(value: Any) -> None:
    assert isinstance(sent(value), Opaque)
    assert sent([value]) == [sent(value)]


def test_a_class_with_the_name_of_one_of_labkit_is_opaque() -> None:
    namespace: dict[str, Any] = {}
    exec(
        "import dataclasses\n@dataclasses.dataclass\nclass ScalerState:\n    scale: float\n"
        "ScalerState.__module__ = 'labkit.amp.loss_scaling.scaler'",
        namespace,
    )
    assert isinstance(sent(namespace["ScalerState"](8.0)), Opaque)


def endless_list() -> list[object]:
    endless: list[object] = []
    endless += [endless, endless]
    return endless


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(endless_list(), id="list that contains itself"),
        pytest.param(torch.zeros(1).expand(10**12), id="tensor of 4 TB"),
        pytest.param(10**5000, id="int of 5000 digits"),
        pytest.param(torch.ones(2).to_sparse(), id="sparse tensor"),
        pytest.param(Decimal("sNaN"), id="signalling NaN"),
        pytest.param(Fraction(10**400, 3), id="fraction beyond FP64"),
    ],
)
def test_a_value_that_cannot_be_sent_is_opaque(value: Any) -> None:
    assert isinstance(sent(value), Opaque)


@pytest.mark.parametrize(
    "text",
    [
        "null",
        "[]",
        "7",
        '["int", "x"]',
        '["failure"]',
        pytest.param("[" * 900 + "]" * 900, id="900 lists in one another"),
        '["tensor", "float32", [2], "AAAA"]',
        '["tensor", "float32", [-3], "AAAAAA=="]',
        '["__import__", "os"]',
        '["array", "O", [1], "AAAAAAAAAAA="]',
        '["instance", "ScalerState", 5]',
        '["float", "0x1p99999"]',
        '["array", "f8,,", [1], "AAAA"]',
    ],
)
def test_json_that_dump_did_not_write_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not an answer written by dump"):
        load(json.loads(text))


# --- the first difference ---


@pytest.mark.parametrize(
    ("expected", "got"),
    [
        (1.0, 1),
        (1, 1.0),
        ([1, 2], (1, 2)),
        (0.0, -0.0),
        (math.nan, math.nan),
        (math.inf, math.inf),
    ],
)
def test_values_that_count_as_equal_have_no_difference(expected: Any, got: Any) -> None:
    assert difference(expected, got) is None


def test_a_difference_names_the_result_it_lies_in() -> None:
    exercise = EXERCISES["route.sets"]
    answer = answers_of(
        visible_cases(exercise),
        lambda scores, chosen, bits: (exercise.reference(scores, chosen, bits)[0], [-1] * chosen),
    )
    first = judge(visible_cases(exercise), answer).verdicts[0].counter_example
    assert first.difference.startswith("experts by rounded scores [0]: expected ")


def test_names_of_results_are_those_of_the_docstring() -> None:
    assert EXERCISES["autocast.linear"].results == ("y", "grad_x", "grad_weight")
    assert EXERCISES["tensor.backward"].results == ()


@pytest.mark.parametrize(
    ("expected", "got", "says"),
    [
        # With as many digits as distinguish them.
        (torch.ones(1), torch.tensor([1 - 2.0**-24]), "[0]: expected 1, got 0.99999994"),
        (1.0, None, "it returned None: did you forget `return`?"),
        (1, True, "expected an int (1), got True"),
        pytest.param(1.0, 2**1024, f"expected 1, got {2**1024}", id="an int beyond FP64"),
        pytest.param(2**53 + 1, 2.0**53, f"expected {2**53 + 1}, got", id="an int between floats"),
        pytest.param(2048, -(10**400), f"expected 2048, got {-(10**400)}", id="a negative one"),
        (1.0, "1.0", "expected a float (1), got '1.0'"),
        (8.0, torch.tensor(8.0), "expected a float (8), got a tensor in FP32"),
        (None, [1.0], "expected None, got a list ([1])"),
        ([1.0], [1.0, 2.0], "expected a length of 1, got 2"),
        ([1.0, 2.0], [1.0, math.nan], "[1]: expected 2, got nan"),
        (torch.ones(2), torch.ones(2).half(), "expected a tensor in FP32, got one in FP16"),
        (np.ones(2), np.ones(2, np.float32), "expected an array in float64, got one in float32"),
        # torch has no such dtype
        (np.ones(2), np.ones(2, ">f8"), "expected an array in float64, got one in >f8"),
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
        (1, Instance("AmpState", {"scale": 8.0}), "expected an int (1), got an AmpState"),
        (np.ones(1), 1, "expected an ndarray (float64 array [1]: 1), got an int (1)"),
        (1, load(dump(2**5000)), "expected an int (1), got an int of 4096 bits or more"),
        (
            1.0,
            Failure("error", "it stopped with KeyError: 1", "line 2: x"),
            "it stopped with KeyError: 1\nline 2: x",
        ),
    ],
)
def test_a_difference_says_what_was_expected(expected: Any, got: Any, says: str) -> None:
    assert says in str(difference(expected, got))


@pytest.mark.parametrize("value", [Opaque("anything"), Failure("error", "it stopped")])
def test_a_value_without_content_differs_even_from_itself(value: Any) -> None:
    assert difference(value, value) is not None


@pytest.mark.parametrize("value", [1.0, -1.0, 2.0**-14, 0.0])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_ulps_are_those_of_the_tensors_format(dtype: torch.dtype, value: float) -> None:
    start = torch.tensor([value], dtype=dtype)
    end = start
    for _ in range(3):
        end = torch.nextafter(end, torch.tensor([9.0], dtype=dtype))
    assert difference(start, end, ulps=3) is None
    assert difference(start, end, ulps=2) is not None


def test_the_smallest_numbers_around_zero_are_two_ulps_apart() -> None:
    smallest = torch.tensor([2.0**-24]).half()
    assert difference(smallest, -smallest, ulps=2) is None
    assert difference(smallest, -smallest, ulps=1) is not None


def test_infinity_is_not_a_number_of_ulps_away() -> None:
    largest = torch.tensor([65504.0]).half()
    assert difference(largest, torch.tensor([math.inf]).half(), ulps=100) is not None


# --- as text ---


def test_keys_are_shown_in_their_order() -> None:
    expected = {12: 0, -7: 1, -23: 2}
    assert difference(expected, {4: 0, "4": 1}) == "expected the keys [-23, -7, 12], got [4, '4']"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({12: 0, -7: 1, -23: 2}, "{-23: 2, -7: 1, 12: 0}"),
        ({"b": 1, "a": 2}, "{'b': 1, 'a': 2}"),
        (torch.zeros(7), "FP32 tensor [7]: 0, 0, 0, 0, 0, 0, ..."),
        ((5,), "(5,)"),
        ([1, 2, 3, 4, 5, 6, 7], "[1, 2, 3, 4, 5, 6, ...]"),
    ],
)
def test_a_value_is_shown_in_a_short_line(value: Any, text: str) -> None:
    assert show(value) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (2.0**30, "2^30 (1.07e+09)"),
        (-(2.0**-20), "-2^-20 (9.54e-07)"),
        (2.0**16, "65536"),
        (0.1, "0.1"),
        (3, "3"),
    ],
)
def test_a_number_is_shown_as_a_person_reads_it(number: float, text: str) -> None:
    assert show_number(number) == text


def test_a_number_that_was_rounded_to_fp16_is_recognised() -> None:
    expected = torch.tensor([1.0, 2.0**-30])
    assert difference(expected, expected.half().float()) == (
        "[1]: expected 2^-30 (9.31e-10), got 0\n"
        "what you got is this number rounded to FP16: S 0  E 00000  F 0000000000"
    )


def test_numbers_in_fp16_are_shown_in_bits() -> None:
    text = str(difference(torch.tensor([1.0]).half(), torch.tensor([1.5]).half()))
    assert text.splitlines() == [
        "[0]: expected 1, got 1.5",
        "expected  S 0  E 01111  F 0000000000",
        "got       S 0  E 01111  F 1000000000",
    ]


def test_minus_infinity_has_its_bits() -> None:
    assert bits(-math.inf) == "S 1  E 11111  F 0000000000"
