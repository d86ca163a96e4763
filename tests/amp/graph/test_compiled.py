"""A graph has nothing left to decide, so torch.compile takes it whole; how far its numbers then are from eager's."""

import copy
import shutil
import warnings
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from labkit.amp import RECIPES, Engine
from labkit.train import networks

pytestmark = pytest.mark.slow  # to import the compiler costs as much as the tests of a module


def trained(model: nn.Module, steps: int = 4, in_place: bool = False, **compile: Any) -> list[list[torch.Tensor]]:
    """Output, loss and gradients of some steps under "O1 graph"; compiled in one piece, or not at all."""
    model, seen = copy.deepcopy(model), []
    compiled = torch.compile(model, fullgraph=True, **compile) if compile and not in_place else model
    if in_place:
        model.compile(fullgraph=True, **compile)
    engine = Engine(compiled, partial(torch.optim.SGD, lr=0.1), RECIPES["O1 graph"])
    for step in range(steps):
        torch.manual_seed(step)
        images, targets = torch.rand(8, 1, 8, 8), torch.randint(10, (8,))
        engine.zero_grad()
        with engine.forward():
            output = engine(images)
            loss = F.cross_entropy(output, targets)
        engine.backward(loss)
        seen.append([output.detach(), loss.detach(), *(p.grad.clone() for p in model.parameters())])
        engine.step()
    assert engine.call.why == ""
    return seen


def require_equal(one: list[list[torch.Tensor]], other: list[list[torch.Tensor]]) -> None:
    for a, b in zip(one, other, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    torch._dynamo.reset()
    return networks.mlp(32, 2)


def test_a_compiled_graph_is_one_piece_and_bit_equal(net: nn.Module) -> None:
    from torch._dynamo.utils import counters  # a second, which no collection of tests takes

    eager = trained(net)
    for in_place in (False, True):
        torch._dynamo.reset()
        counters.clear()
        require_equal(eager, trained(net, backend="eager", in_place=in_place))
        assert not counters["graph_break"]
        assert counters["stats"]["unique_graphs"] == 1
    for part in net:
        if isinstance(part, nn.Linear):
            part.compile(backend="eager")
    require_equal(eager, trained(net))  # a part that is compiled is traced as it was written


def test_a_custom_function_is_not_compiled_and_reported() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * 2

    class Net(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Double.apply(super().forward(x.flatten(1)))

    net = Net(64, 10)
    with pytest.warns(UserWarning, match="the graph runs, but is not compiled: Double"):
        compiled = trained(net, backend="eager")
    require_equal(trained(net), compiled)


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor writes C++, and there is no compiler for it here")
def test_inductor_is_bit_equal_if_it_leaves_no_round_trip_out(net: nn.Module) -> None:
    """Else it leaves out FP32 -> FP16 -> FP32 between two operations of one kernel: relu(half(x)).float()."""
    with torch._inductor.config.patch(emulate_precision_casts=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        require_equal(trained(net, 3), trained(net, 3, backend="inductor"))
