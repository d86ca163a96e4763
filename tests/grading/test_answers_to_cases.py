"""`answer_case`: a function is called with copies, and an argument that it changes is an error."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from labkit.amp import ScalerState
from labkit.formats import FP16
from labkit.grading import EXERCISES, check
from labkit.grading.sandbox.answer import answer_case
from labkit.grading.sandbox.wire import load

UNCHANGED = ["none"]


def spoil(argument: Any) -> None:
    """Change an argument, or the last item of a tuple."""
    if isinstance(argument, (list, dict, set, bytearray)):
        argument.clear()
    elif isinstance(argument, tuple):
        spoil(argument[-1])
    else:
        argument[:] = -1


def leave(argument: Any) -> None:
    """Change nothing."""


@pytest.fixture(
    params=[
        lambda: [1],
        lambda: {"a": 1},
        lambda: {1},
        lambda: bytearray(b"a"),
        lambda: (1, [2]),
        lambda: (1, np.ones(2)),
        lambda: torch.ones(2).half(),
        lambda: torch.ones(2, 2).T,
        lambda: torch.tensor([math.nan]),
        lambda: [torch.tensor([math.nan])],
    ],
    ids=[
        "list",
        "dict",
        "set",
        "bytearray",
        "tuple with a list",
        "tuple with an array",
        "tensor",
        "view of a tensor",
        "tensor with NaN",
        "list with NaN",
    ],
)
def argument(request: pytest.FixtureRequest) -> Any:
    """An argument that a function can change."""
    return request.param()


def test_a_function_that_changes_its_argument_leaves_the_callers_as_it_was(argument: Any) -> None:
    before = repr(argument)
    answer_case(spoil, "f(x)", (argument,))
    assert repr(argument) == before


def test_a_changed_argument_is_an_error_that_names_it(argument: Any) -> None:
    answer = answer_case(spoil, "f(x)", (argument,))
    assert "it changes `x`, an argument: work on a copy" in answer[2]


def test_an_argument_that_may_change_is_no_error(argument: Any) -> None:
    assert answer_case(spoil, "f(x)", (argument,), may_change=["x"]) == UNCHANGED


def test_an_argument_that_may_change_is_a_copy_too(argument: Any) -> None:
    before = repr(argument)
    answer_case(spoil, "f(x)", (argument,), may_change=["x"])
    assert repr(argument) == before


def test_an_argument_that_is_left_alone_counts_as_unchanged_even_with_nan(argument: Any) -> None:
    assert answer_case(leave, "f(x)", (argument,)) == UNCHANGED


def spoil_state(state: ScalerState) -> None:
    object.__setattr__(state, "scale", 1.0)


def test_a_changed_dataclass_in_a_list_is_a_changed_argument() -> None:
    answer = answer_case(lambda x: spoil_state(x[0]), "f(x)", ([ScalerState(2.0)],))
    assert "it changes `x`" in answer[2]


def test_who_changes_a_dataclass_is_told_of_replace() -> None:
    answer = answer_case(spoil_state, "f(x)", (ScalerState(2.0),))
    assert "dataclasses.replace(x, ...)" in answer[2]


def test_a_dataclass_that_is_left_alone_counts_as_unchanged() -> None:
    assert answer_case(leave, "f(x)", (ScalerState(2.0),)) == UNCHANGED


def test_reading_a_cached_property_changes_no_argument() -> None:
    unread = replace(FP16, name="mine")
    assert "max" not in vars(unread)
    answer = answer_case(lambda format: format.max, "f(format)", (unread,))
    assert load(answer) == FP16.max


def test_requiring_a_gradient_of_an_argument_changes_nothing() -> None:
    """`requires_grad_()` and a gradient in `.grad` do not count as a changed argument."""

    def by_autograd(x: torch.Tensor, weight: torch.Tensor, grad_y: torch.Tensor) -> object:
        x.requires_grad_().sum().backward()
        return EXERCISES["tensor.backward"].reference(x.detach(), weight, grad_y)

    assert "Solved" in str(check("tensor.backward", by_autograd))
