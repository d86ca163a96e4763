"""Tensors in the arguments of a call: lists and tuples keep their classes."""

from typing import NamedTuple

import torch
from torch import Tensor

from labkit.modes import mapped, tensors_in


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


class Named(list):
    """A list whose constructor takes other arguments than a list."""

    def __init__(self, name: str, *items: object) -> None:
        super().__init__(items)
        self.name = name


def test_tensors_are_collected_in_order() -> None:
    one, two, three = (torch.ones(n) for n in (1, 2, 3))
    found = tensors_in((one, {"a": [two]}, (3, three)))
    assert [len(tensor) for tensor in found] == [1, 2, 3]


def test_named_tuple_stays_one() -> None:
    pair = Pair(torch.ones(1), torch.ones(1))
    changed = mapped(pair, Tensor.half)
    assert type(changed) is Pair
    assert changed.second.dtype == torch.float16


def test_list_of_another_class_keeps_its_class() -> None:
    values = Named("inputs", torch.ones(1), 3)
    changed = mapped(values, Tensor.half)
    assert type(changed) is Named
    assert changed.name == "inputs"
    assert changed[0].dtype == torch.float16
    assert changed[1] == 3


def test_list_of_another_class_is_not_changed() -> None:
    values = Named("inputs", torch.ones(1))
    mapped(values, Tensor.half)
    assert values[0].dtype == torch.float32
