"""What is told about a graph: the casts of networks that are small enough to be counted by hand."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.amp import RECIPES, CastGraph, Engine, Explanation, autocast, explain
from labkit.formats import FP16
from labkit.gemm import half_storage

SGD = partial(torch.optim.SGD, lr=0.1)


def explained(model: nn.Module, *inputs: Tensor) -> Explanation:
    graph = CastGraph(model, FP16)
    for _ in range(2):
        with half_storage("cpu"), autocast():
            graph(*inputs)
    return explain(graph)


def fates(explanation: Explanation) -> list[tuple[bool, str, int]]:
    return [(cast.weight, cast.fate, cast.times) for cast in explanation.casts]


def test_worked_example_of_a_linear_layer_and_a_softmax() -> None:
    told = explained(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Softmax(-1)), torch.ones(2, 4))
    assert [(row.op, row.rule.value, row.result) for row in told.rows] == [
        ("linear", "allow", "FP16"), ("relu", "keep", "FP16"), ("softmax", "set dtype", "FP32")
    ]  # fmt: skip
    assert [(cast.given, cast.to, cast.elements) for cast in told.casts] == [
        ("FP32", "FP16", 8), ("FP32", "FP16", 12), ("FP32", "FP16", 3), ("FP16", "FP32", 6)
    ]  # fmt: skip
    assert [cast.name for cast in told.casts] == ["input", "weight", "bias", "input"]
    assert [cast.bytes for cast in told.casts] == [48, 72, 18, 36]  # 4 and 2 bytes for each element
    assert told.sentence.startswith("Autocast makes 4 casts here, and the graph 4; they read and write 0.2 KiB")


def test_a_weight_that_is_used_three_times_is_cast_once() -> None:
    class Thrice(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(super().forward(super().forward(x)))

    told = explained(Thrice(4, 4, bias=False), torch.ones(2, 4))
    weights = [fate for fate in fates(told) if fate[0]]
    assert weights == [(True, "hoisted", 1), (True, "hoisted", 0), (True, "hoisted", 0)]


def test_an_input_is_cast_once_unless_a_gradient_comes_back_through_it() -> None:
    class Twice(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x @ y + x @ y.T

    x, y = torch.ones(3, 3), torch.ones(3, 3)
    cast, again = (False, "stays", 1), (False, "cancelled", 0)
    assert fates(explained(Twice(), x, y)) == [cast, cast, again, cast]  # y and y.T are two tensors
    assert fates(explained(Twice(), x.requires_grad_() * 1, y)) == [cast] * 4


def test_there_and_back_again_is_left_out() -> None:
    class Back(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(super().forward(x).float())

    assert (False, "cancelled", 0) in fates(explained(Back(4, 4, bias=False), torch.ones(2, 4)))


def test_a_graph_makes_the_casts_of_eager_autocast_and_no_other() -> None:
    """A norm of torch.nn.functional is Python: its cast was once written down twice, where the trace saw it made."""

    class Casts(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func: object, types: object, args: tuple = (), kwargs: object = None) -> object:
            self.count += func is torch.ops.aten._to_copy.default
            return func(*args, **(kwargs or {}))

    model, counts = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 2, 3)), []
    graph = CastGraph(model, FP16)
    for _ in range(3):
        with Casts() as casts, half_storage("cpu"), autocast():
            graph(torch.ones(2, 1, 8, 8))
        counts.append(casts.count)
    assert counts == [15, 15, 15]  # of six operands there and back, of two results, and of the norm's input
    assert len(explain(graph).casts) == 7
    assert [row.op for row in explain(graph).rows] == ["conv2d", "group_norm", "relu", "conv2d"]


def test_where_there_is_no_graph_it_says_why() -> None:
    with pytest.raises(ValueError, match=r"this recipe has no graph.*RECIPES\['O1 graph'\]"):
        explain(Engine(nn.Linear(1, 1), SGD, RECIPES["O1"]))
    with pytest.raises(ValueError, match="the third forward pass runs as one, and it did not come yet"):
        explain(Engine(nn.Linear(1, 1), SGD, RECIPES["O1 graph"]))
