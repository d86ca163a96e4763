"""torch.compile under autocast and the engine: one graph, with the numbers of eager execution.

The backend of most tests records each graph and runs it unchanged, so operations can be counted and
results must be equal bit for bit.
"""

from __future__ import annotations

import contextlib
import copy
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from labkit.amp import RECIPES, Engine, autocast, custom_fwd, register
from labkit.amp.casting.autocast import CastEvent
from labkit.amp.casting.lists import Rule
from labkit.formats import BF16, E4M3
from labkit.frameworks import torch_amp

Region = Callable[[], AbstractContextManager[Any]]
LAYERS = {"linear": 2, "layer_norm": 1, "gelu": 1}

pytestmark = pytest.mark.filterwarnings("ignore:Dynamo")


class Mixed(nn.Module):
    """Attention, a convolution, a norm with statistics, and an operation of each list."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(16, 16)
        self.out = nn.Linear(16, 8)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.norm = nn.LayerNorm(16)
        self.statistics = nn.BatchNorm1d(4)
        self.convolution = nn.Conv1d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.project(x) + self.project(x * 2)
        z, _ = self.attention(y, y, y, need_weights=False)
        z = F.relu(self.statistics(self.convolution(self.norm(z + y))))
        weights = torch.softmax(z @ z.transpose(1, 2), -1)
        z = F.scaled_dot_product_attention(*[torch.cat([weights @ z, x], 1)] * 3)
        loss = F.cross_entropy(self.out(z).flatten(0, 1), torch.arange(8 * len(x)) % 8)
        return self.out(z).exp().sum(1) + loss


class Graphs:
    """A backend that records its graphs and runs them unchanged."""

    def __init__(self) -> None:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        self.graphs = list[torch.fx.GraphModule]()

    def __call__(self, graph: torch.fx.GraphModule, _: Any) -> Any:
        self.graphs.append(graph)
        return graph.forward

    @property
    def breaks(self) -> int:
        """The number of graph breaks since this backend was made."""
        return sum(torch._dynamo.utils.counters["graph_break"].values())

    @property
    def calls(self) -> Counter[str]:
        """How often the graphs call each function, by its name."""
        nodes = [node for graph in self.graphs for node in graph.graph.nodes]
        return Counter(node.target.__name__ for node in nodes if node.op == "call_function")


def five_layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 8)
    )


def mixed() -> nn.Module:
    torch.manual_seed(0)
    return Mixed()


def step(call: Callable[[Tensor], Tensor], model: nn.Module, region: Region) -> list[Tensor]:
    """Return the output and the gradients of one step, whose batch is always the same."""
    model.zero_grad()
    torch.manual_seed(1)
    with region():
        y = call(torch.randn(3, 4, 16))
    y.float().square().mean().backward()
    return [y.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


def same(got: list[Tensor], want: list[Tensor]) -> bool:
    return len(got) == len(want) and all(
        a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(got, want, strict=True)
    )


def compiled_step(model: nn.Module, region: Region) -> tuple[Graphs, list[Tensor]]:
    """Return the graphs of two steps of a compiled copy, and the result of the second step.

    Two steps, because a step updates the statistics of a batch norm.
    """
    graphs = Graphs()
    model = copy.deepcopy(model)
    call = torch.compile(model, backend=graphs)
    step(call, model, region)
    return graphs, step(call, model, region)


@contextlib.contextmanager
def suspended(region: Region) -> Iterator[None]:
    with region(), autocast(enabled=False):
        yield


@contextlib.contextmanager
def reopened(region: Region) -> Iterator[None]:
    with region(), autocast(enabled=False), region():
        yield


REGIONS: dict[str, Region] = {
    "FP16": autocast,
    "BF16": partial(autocast, BF16),
    "torch_amp FP16": partial(torch_amp.autocast, "cpu", dtype=torch.float16),
    "torch_amp BF16": partial(torch_amp.autocast, "cpu"),
    "suspended": partial(suspended, autocast),
    "reopened": partial(reopened, partial(torch_amp.autocast, "cpu", dtype=torch.float16)),
}


@pytest.mark.parametrize("name", REGIONS)
def test_compiled_model_in_a_region_equals_eager_in_one_graph(name: str) -> None:
    region = REGIONS[name]
    for model in (five_layers(), mixed()):
        eager = copy.deepcopy(model)
        step(eager, eager, region)
        want = step(eager, eager, region)
        graphs, got = compiled_step(model, region)
        assert graphs.breaks == 0
        assert len(graphs.graphs) == 1
        if not isinstance(model, Mixed):
            assert {layer: graphs.calls[layer] for layer in LAYERS} == LAYERS
        assert same(got, want)


def test_an_engine_trains_a_compiled_model_in_one_graph() -> None:
    for recipe in ("O1", "O2", "BF16"):

        def trained(model: nn.Module, recipe: str = recipe) -> list[Tensor]:
            engine = Engine(model, partial(torch.optim.SGD, lr=0.01), RECIPES[recipe])
            torch.manual_seed(1)
            for _ in range(3):
                engine.zero_grad()
                with engine.forward():
                    loss = engine(torch.randn(3, 4, 16)).float().square().mean()
                engine.backward(loss)
                engine.step()
            return [*engine.fp32_model().values()]

        for make in (five_layers, mixed):
            want = trained(make())
            graphs = Graphs()
            got = trained(torch.compile(make(), backend=graphs))
            assert graphs.breaks == 0, recipe
            assert len(graphs.graphs) == 1, recipe
            assert same(got, want), recipe


def test_equal_regions_share_a_compiled_graph() -> None:
    graphs = Graphs()
    model = five_layers()
    call = torch.compile(model, backend=graphs)
    for _ in range(3):
        step(call, model, partial(autocast, BF16))
    assert len(graphs.graphs) == 1
    assert step(call, model, autocast)[0].dtype == torch.float16
    assert step(call, model, partial(suspended, autocast))[0].dtype == torch.float32
    assert len(graphs.graphs) == 3


def test_threads_nest_a_shared_region_independently() -> None:
    graphs = Graphs()
    model = five_layers()
    call = torch.compile(model, backend=graphs)
    region = autocast()
    both = threading.Barrier(2)
    dtypes = dict[bool, list[torch.dtype]]()

    def work(suspends: bool) -> None:
        dtypes[suspends] = []
        with region, autocast(enabled=False) if suspends else contextlib.nullcontext():
            both.wait()
            for _ in range(2):
                dtypes[suspends].append(call(torch.ones(3, 4, 16)).dtype)
            both.wait()

    threads = [threading.Thread(target=work, args=(suspends,)) for suspends in (True, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert dtypes == {True: [torch.float32] * 2, False: [torch.float16] * 2}


def test_a_region_inside_a_compiled_function_is_innermost() -> None:
    layer = nn.Linear(4, 4)
    shared = autocast(BF16)
    off = autocast(enabled=False)

    def with_shared(x: Tensor) -> Tensor:
        with shared:
            return layer(x)

    def with_new(x: Tensor) -> Tensor:
        with autocast(BF16):
            return layer(x)

    def with_off(x: Tensor) -> Tensor:
        with off:
            return layer(x)

    for function, dtype in (
        (with_shared, torch.bfloat16),
        (with_new, torch.bfloat16),
        (with_off, torch.float32),
    ):
        for outer in (contextlib.nullcontext, autocast):
            graphs = Graphs()
            call = torch.compile(function, backend=graphs)
            for _ in range(2):
                with outer():
                    y = call(torch.ones(2, 4))
                    z = layer(torch.ones(2, 4))
                assert y.dtype == dtype, (function, outer)
                assert z.dtype == (torch.float16 if outer is autocast else torch.float32)
            assert not torch._C._len_torch_function_stack()


def test_registering_a_rule_recompiles_the_model() -> None:
    graphs = Graphs()
    model = five_layers()
    call = torch.compile(model, backend=graphs)
    assert step(call, model, autocast)[0].dtype == torch.float16
    with register("linear", Rule.DENY):
        assert step(call, model, autocast)[0].dtype == torch.float32
    assert step(call, model, autocast)[0].dtype == torch.float16


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = five_layers()

    def forward(self, x: Tensor) -> Any:
        return checkpoint(self.layers, x, use_reentrant=False)


@pytest.mark.parametrize("inside", [False, True])
def test_compiled_backward_has_the_gradients_of_eager(inside: bool) -> None:
    """Backward runs code that the compiler made, inside the region or outside.

    Nothing may be cast once more there.
    """

    def gradients(call: Callable[[Tensor], Tensor], region: Region) -> list[Tensor]:
        model.zero_grad()
        torch.manual_seed(1)
        with region():
            loss = call(torch.randn(3, 4, 16)).float().square().mean()
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]

    for model in (five_layers(), Checkpointed()):
        for region in (autocast, REGIONS["torch_amp FP16"], REGIONS["torch_amp BF16"]):
            torch._dynamo.reset()
            want = gradients(model, region)
            assert same(gradients(torch.compile(model, backend="aot_eager"), region), want)


def test_graph_breaks_change_no_bit() -> None:
    class Product(torch.autograd.Function):
        @staticmethod
        @custom_fwd
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x @ x.t()

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            return gradients[0] @ torch.ones(12, 16, dtype=gradients[0].dtype)

    class WithFunction(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 16)

        def forward(self, x: Tensor) -> Any:
            return Product.apply(self.layer(x.flatten(0, 1)))

    for model, region in (
        (five_layers(), partial(autocast, E4M3)),
        (five_layers(), partial(autocast, listen=lambda event: None)),
        (WithFunction(), autocast),
    ):
        want = step(model, model, region)
        graphs, got = compiled_step(model, region)
        assert same(got, want)
        # At most one break at each layer, and one at each end of the model.
        assert 1 <= graphs.breaks <= 2 + sum(LAYERS.values())


def test_listener_hears_each_cast_of_a_compiled_model() -> None:
    events = list[CastEvent]()
    region = partial(autocast, listen=events.append)
    model = five_layers()
    step(model, model, region)
    eager = [(event.op, event.to, event.elements) for event in events]
    events.clear()
    compiled_step(model, region)
    compiled = [(event.op, event.to, event.elements) for event in events]
    # Two linear layers and a layer norm are on lists of autocast. The compiled copy steps twice.
    assert [op for op, _, _ in eager] == ["linear", "layer_norm", "linear"]
    assert compiled == eager * 2
