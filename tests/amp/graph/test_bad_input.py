"""What is no graph, and what a graph must notice: eager autocast's numbers in any case, and a line to look at."""

import copy
import inspect
import pickle
import random
import warnings
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from labkit.amp import RECIPES, Engine, Recipe, Rule, autocast, ledger, register
from labkit.amp.graph.cast_graph import CastGraph
from labkit.formats import BF16, E4M3, FP16
from labkit.gemm import half_storage

SETTINGS = {"scale": 1.0}
Forward = Callable[[nn.Module, Tensor], Tensor]


class Custom(nn.Module):
    """A linear layer, a batch norm and a forward of one's own."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.linear, self.norm, self.drop, self.own = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), forward
        self.scale, self.list, self.settings = 1.0, [1.0], SimpleNamespace(scale=1.0)
        self.count, self.kept, self.plain = 0, None, torch.ones(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.own(self, x) * SETTINGS["scale"]


def everything(model: nn.Module, x: Tensor) -> Tensor:
    """A forward pass that looks at all that may change between two calls."""
    y = model.drop(model.norm(model.linear(x))) + model.plain
    return y * model.scale * model.list[0] * model.settings.scale


def step(call: Callable[[Tensor], Tensor], model: nn.Module, x: Tensor, seed: int) -> list[Tensor]:
    torch.manual_seed(seed)
    random.seed(seed)
    model.zero_grad()
    x = x.clone()
    with half_storage("cpu"), autocast():
        y = call(x)
    y.float().sum().backward()
    return [y.detach(), x, *(p.grad for p in model.parameters() if p.grad is not None), *(b for b in model.buffers())]


def require_equal(
    model: nn.Module,
    *,
    calls: int = 9,
    rows: Callable[[int], int] = lambda _: 4,
    edit: Callable[..., object] = lambda *_: None,
) -> CastGraph:
    """Call a graph and a copy of its network side by side, with `edit(call, network)` before; return the graph."""
    other = copy.deepcopy(model)
    graph = CastGraph(other, FP16)
    for number in range(calls):
        for network in (model, other):
            edit(number, network)
        x = torch.randn(rows(number), 8)
        eager, decided = step(model, model, x, number), step(graph, other, x, number)
        assert all(torch.equal(a, b) for a, b in zip(eager, decided, strict=True)), f"call {number}"
    return graph


# --- what changes between two calls ----------------------------------------------------------------------------------


def at(number: int, edit: Callable[[nn.Module], object]) -> Callable[[int, nn.Module], object]:
    return lambda call, model: edit(model) if call == number else None


def hooked(call: int, model: nn.Module) -> None:
    if call == 4:
        model.handle = model.linear.register_forward_hook(lambda *given: given[-1] * 2)
    if call == 6:
        model.handle.remove()


EDITS: dict[str, Callable[[int, nn.Module], object]] = {
    "nothing": lambda *_: None,
    "evaluation and back": lambda call, model: model.train(call % 4 < 2),
    "one layer's mode": at(4, lambda model: model.drop.eval()),
    "an attribute": at(4, lambda model: setattr(model, "scale", 0.5)),
    "a list, where it stands": at(4, lambda model: model.list.__setitem__(0, 0.5)),
    "an object's attribute": at(4, lambda model: setattr(model.settings, "scale", 0.5)),
    "a global value": at(4, lambda _: SETTINGS.update(scale=0.5)),
    "a tensor that is no buffer": at(4, lambda model: setattr(model, "plain", torch.full((8,), 2.0))),
    "the same, where it stands": at(4, lambda model: model.plain.fill_(2.0)),
    "a parameter": at(4, lambda model: setattr(model.linear, "weight", nn.Parameter(torch.ones(8, 8)))),
    "a layer": at(4, lambda model: setattr(model, "drop", nn.Identity())),
    "a weight through .data": lambda call, model: model.linear.weight.data.fill_(call / 8),
    "a frozen weight": at(4, lambda model: model.linear.weight.requires_grad_(False)),
    "forward itself": at(4, lambda model: setattr(model, "own", lambda model, x: model.linear(x).relu())),
    "a hook, for a while": hooked,
}


def test_what_changes_between_two_calls_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, edit in EDITS.items():
        monkeypatch.setitem(SETTINGS, "scale", 1.0)
        graph = require_equal(Custom(everything), edit=edit)
        assert graph.why == "", name
        assert graph.decided.run is not None, f"{name}: and there is a graph again"


def test_an_operation_that_is_registered_later_counts() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Sigmoid())
    graph = CastGraph(model, FP16)
    for number in range(3):
        assert step(graph, model, torch.ones(2, 8), number)[0].dtype is torch.float16
    with register("sigmoid", Rule.DENY):
        for number in range(3):
            assert step(graph, model, torch.ones(2, 8), number)[0].dtype is torch.float32
    assert step(graph, model, torch.ones(2, 8), 0)[0].dtype is torch.float16


# --- what cannot be decided once -------------------------------------------------------------------------------------


def branches(model: nn.Module, x: Tensor) -> Tensor:
    y = model.linear(x)
    return y if y.sum() > 0 else -y  # the line


def reads_a_number(model: nn.Module, x: Tensor) -> Tensor:
    return model.linear(x) * x.max().item()  # the line


def selects(model: nn.Module, x: Tensor) -> Tensor:
    return model.linear(x)[x > 0]  # the line


def draws_in_python(model: nn.Module, x: Tensor) -> Tensor:
    return model.linear(x) if random.random() < 0.5 else model.norm(x)


def counts(model: nn.Module, x: Tensor) -> Tensor:
    model.count += 1
    return model.linear(x) * model.count


def keeps_its_result(model: nn.Module, x: Tensor) -> Tensor:
    model.kept = model.linear(x)
    return model.kept


def transforms(model: nn.Module, x: Tensor) -> Tensor:
    return torch.vmap(lambda row: model.linear.weight @ row)(x)  # the line


def another_format_inside(model: nn.Module, x: Tensor) -> Tensor:
    with autocast(BF16):
        y = model.linear(x)  # the line
    return model.norm(y)


REFUSED: dict[Forward, str] = {
    branches: "__bool__ tells Python what is in a tensor",
    reads_a_number: "item tells Python what is in a tensor",
    selects: "the shape of what __getitem__ returns depends on the numbers",
    draws_in_python: "Python's or numpy's random numbers",
    counts: "forward changes count",
    keeps_its_result: "forward changes kept",
    transforms: "inside a transform of torch.func",
    another_format_inside: "made where torch shows no call",
}


@pytest.mark.parametrize("forward", REFUSED, ids=lambda forward: forward.__name__)
def test_data_dependent_control_flow_is_reported_with_its_line_and_runs_eagerly(forward: Forward) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        graph = require_equal(Custom(forward))
    (message,) = {str(one.message) for one in told}
    assert REFUSED[forward] in message
    assert graph.why in message
    assert "eager autocast is used, with the same numbers" in message
    text, first = inspect.getsourcelines(forward)
    lines = [number for number, line in enumerate(text, first) if "# the line" in line]
    assert all(f"{__file__}:{number}: " in message for number in lines)


def test_what_differs_from_call_to_call_is_found_by_comparing_two_traces() -> None:
    class Anneals(nn.Linear):
        steps = 0

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) / Anneals.steps

    def edit(call: int, _: nn.Module) -> None:
        Anneals.steps = call + 1

    with pytest.warns(UserWarning, match=r"it differs from call to call: .*test_bad_input.py:\d+, in .*div"):
        require_equal(Anneals(8, 8), edit=edit)


def test_what_is_written_into_an_input_is_written() -> None:
    def doubles(model: nn.Module, x: Tensor) -> Tensor:
        x.mul_(2)
        x[0] = 1
        return model.linear(x)

    assert require_equal(Custom(doubles)).decided.run is not None


# --- around it -------------------------------------------------------------------------------------------------------


def test_outside_of_a_region_and_where_somebody_intercepts_operations_the_network_is_called() -> None:
    model = nn.Linear(8, 8)
    graph, x = CastGraph(model, FP16), torch.ones(2, 8)
    for number in range(3):
        step(graph, model, x, number)
    assert graph(x).dtype is torch.float32
    events: list[object] = []
    with half_storage("cpu"), autocast(listen=events.append):
        graph(x)
    assert len(events) == 1
    assert [row.op for row in ledger(graph, x)] == ["linear"]


def test_under_a_mode_that_does_not_look_on_there_is_a_graph() -> None:
    class Scales(TorchFunctionMode):
        """Changes a loss on its way into backward, and nothing that a network calls."""

        def __torch_function__(self, func: object, types: object, args: tuple = (), kwargs: object = None) -> object:
            args = (args[0] * 8, *args[1:]) if func is Tensor.backward else args
            return func(*args, **(kwargs or {}))

    for intercepts_operations in (True, False):
        Scales.intercepts_operations = intercepts_operations
        graph = CastGraph(model := nn.Linear(8, 8), FP16)
        for _ in range(4):
            model.zero_grad()
            with half_storage("cpu"), autocast(), Scales():
                graph(torch.ones(4, 8)).float().sum().backward()
            assert (model.bias.grad == 4 * 8).all(), "a sum over four rows, times the scale"
        assert (graph.decided.run is not None) is not intercepts_operations


def test_an_engine_is_copied_and_written_with_its_graph() -> None:
    engine = Engine(nn.Linear(8, 8), partial(torch.optim.SGD, lr=0.1), RECIPES["O1 graph"])
    twins = [engine]
    for number in range(6):
        if number == 3:
            twins += [copy.deepcopy(engine), pickle.loads(pickle.dumps(engine))]
        for twin in twins:
            twin.zero_grad()
            with twin.forward():
                loss = F.mse_loss(twin(torch.ones(2, 8)), torch.zeros(2, 8))
            twin.backward(loss)
            twin.step()
    one, *others = (twin.model.weight for twin in twins)
    assert all(torch.equal(one, weight) and one is not weight for weight in others)


def test_a_recipe_without_casts_to_decide_has_no_graph() -> None:
    for wrong in ({}, {"autocast": E4M3}, {"autocast": FP16, "gradient_format": BF16}):
        with pytest.raises(ValueError, match=r"a graph holds casts to FP16 or BF16. Take autocast=FP16"):
            Recipe("mine", graph=True, **wrong)
