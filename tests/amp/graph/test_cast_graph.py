"""Cast graphs: casts decided once per network, with the bits of eager autocast.

Each network runs under a graph and under eager autocast; outputs, gradients and buffers must be
equal. A network that a graph cannot hold runs eagerly, and a warning names the line and the reason.
"""

import copy
import inspect
import math
import random
import shutil
import warnings
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.amp import (
    RECIPES,
    CastGraph,
    Engine,
    Explanation,
    Recipe,
    Rule,
    autocast,
    explain,
    ledger,
    register,
)
from labkit.amp.graph.cast_graph import TRIES
from labkit.amp.graph.trace import recording_functions
from labkit.formats import BF16, E4M3, FP16, Format
from labkit.gemm import half_storage
from labkit.train import networks


class Vae(nn.Module):
    """Encodes a distribution, draws from it, decodes; returns three tensors in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(16, 8)
        self.decode = nn.Linear(4, 16)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        mean, log_variance = self.encode(x).chunk(2, -1)
        z = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        return {"image": torch.sigmoid(self.decode(z)), "mean": mean, "log_variance": log_variance}


class Tied(nn.Module):
    """One weight, three uses: an embedding, a projection, and the projection again."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 8)
        self.out = nn.Linear(8, 12, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        logits = self.out(self.embedding(tokens))
        return self.out(F.softmax(logits, -1) @ self.out.weight)


class AsksForDtype(nn.GRUCell):
    """Makes a tensor in the dtype that autocast gave, and takes 1/x, a row at a time."""

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(x.shape[0], 8, dtype=x.dtype)
        for row in x.view(x.shape[0], 2, 16).transpose(0, 1):
            h = super().forward(row, h)
        low = torch.finfo(h.dtype).min
        return (
            1 / (1 + h.masked_fill(h.abs() < 1e-3, low).softmax(-1) ** 2) - 2 ** (x.T @ x)[:4, :1]
        )


def discriminator() -> nn.Module:
    conv = torch.nn.utils.parametrizations.spectral_norm(nn.Conv2d(1, 4, 3, 2, 1))
    return nn.Sequential(
        conv, nn.LeakyReLU(0.2), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(64, 1)
    )


IMAGES = (4, 1, 8, 8)
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "CNN with batch norm": (networks.batch_norm_cnn, lambda: torch.rand(IMAGES)),
    "UNet": (networks.Unet, lambda: torch.rand(2, 1, 16, 16)),
    "LSTM": (lambda: networks.CharLstm(12, 16), lambda: torch.randint(12, (4, 6))),
    "transformer": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
        lambda: torch.randn(4, 5, 8),
    ),
    "GPT": (lambda: networks.Gpt(12, 6), lambda: torch.randint(12, (4, 6))),
    "VAE": (Vae, lambda: torch.rand(8, 16)),
    "GAN's discriminator": (discriminator, lambda: torch.rand(IMAGES)),
    "tied weights": (Tied, lambda: torch.randint(12, (4, 5))),
    "asks for a dtype": (lambda: AsksForDtype(16, 8), lambda: torch.randn(4, 32)),
}


def leaves(out: Any) -> list[Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(out) if isinstance(leaf, Tensor)]


def steps(
    call: Callable[..., Any], model: nn.Module, batches: list[Tensor], format: Format
) -> list[list[Tensor]]:
    """Return outputs, loss, gradients and buffers of each training step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    tensors_of_steps = []
    for number, batch in enumerate(batches):
        torch.manual_seed(number)
        optimizer.zero_grad()
        with half_storage("cpu"), autocast(format):
            outputs = leaves(call(batch.clone()))
            loss = sum(output.float().square().mean() for output in outputs)
        # A loss scale of 64 keeps small gradients out of the subnormals of FP16.
        (loss * 64).backward()
        optimizer.step()
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        tensors_of_steps.append(
            [
                *(o.detach() for o in outputs),
                loss.detach(),
                *gradients,
                *(b.clone() for b in model.buffers()),
            ]
        )
    return tensors_of_steps


def assert_same(expected: list[list[Tensor]], got: list[list[Tensor]]) -> None:
    for expected_step, got_step in zip(expected, got, strict=True):
        for a, b in zip(expected_step, got_step, strict=True):
            assert a.dtype is b.dtype
            assert torch.equal(a, b)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_graph_is_bit_equal_to_eager_autocast(name: str) -> None:
    make, batch = NETWORKS[name]
    for format, training in ((FP16, True), (FP16, False), (BF16, True)):
        torch.manual_seed(0)
        model = make().train(training)
        batches = [batch() for _ in range(4)]
        other = copy.deepcopy(model)
        graph = CastGraph(other, format)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            eager = steps(model, model, batches, format)
            decided = steps(graph, other, batches, format)
        assert graph.why == ""
        assert graph.decided.run is not None
        assert all(t.isfinite().all() for t in eager[-1])
        assert_same(eager, decided)


SGD = partial(torch.optim.SGD, lr=0.1)


def explained(model: nn.Module, *inputs: Tensor) -> Explanation:
    graph = CastGraph(model, FP16)
    for _ in range(2):
        with half_storage("cpu"), autocast():
            graph(*inputs)
    return explain(graph)


def test_worked_example_of_a_linear_layer_and_a_softmax() -> None:
    network = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Softmax(-1))
    explanation = explained(network, torch.ones(2, 4))
    assert [(row.op, row.rule.value, row.result) for row in explanation.rows] == [
        ("linear", "allow", "FP16"),
        ("relu", "keep", "FP16"),
        ("softmax", "set dtype", "FP32"),
    ]
    assert [(cast.source, cast.to, cast.elements) for cast in explanation.casts] == [
        ("FP32", "FP16", 8),
        ("FP32", "FP16", 12),
        ("FP32", "FP16", 3),
        ("FP16", "FP32", 6),
    ]
    assert [cast.name for cast in explanation.casts] == ["input", "weight", "bias", "input"]
    # 4 bytes are read or written in FP32, and 2 in FP16, for each element.
    assert [cast.bytes for cast in explanation.casts] == [48, 72, 18, 36]
    assert explanation.sentence.startswith(
        "Autocast makes 4 casts here, and the graph 4; they read and write 0.2 KiB"
    )


def test_the_sentence_of_an_explanation_counts_one_cast() -> None:
    graph = CastGraph(nn.Linear(2, 2, bias=False).half(), FP16)
    for _ in range(2):
        with autocast(FP16):
            graph(torch.ones(1, 2))
    assert explain(graph).sentence.startswith("Autocast makes 1 cast here, and the graph 1; ")


def test_a_cast_of_a_part_of_a_result_starts_from_its_format() -> None:
    def forward(model: nn.Module, x: Tensor) -> Tensor:
        left, right = model.linear(x).chunk(2, -1)
        return left.exp() + right

    casts = explained(Custom(forward), torch.ones(2, 8)).casts
    assert [(cast.source, cast.to, cast.bytes) for cast in casts[-1:]] == [("FP16", "FP32", 48)]


class CustomLinear(nn.Linear):
    """A square layer without a bias whose forward pass is a given function.

    The function gets the product by the weight, as a function of one tensor, and the inputs.
    """

    def __init__(self, size: int, forward: Callable[..., Tensor]) -> None:
        super().__init__(size, size, bias=False)
        self.function = forward

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(super().forward, *inputs)


def test_worked_examples_of_casts_that_a_graph_leaves_out() -> None:
    x = torch.ones(3, 3)
    y = torch.ones(3, 3)
    with_gradient = torch.ones(3, 3, requires_grad=True) * 1
    # Whether it casts a weight, what becomes of it in the graph, and how often the graph runs it.
    stays = (False, "stays", 1)
    cancelled = (False, "cancelled", 0)
    hoisted = (True, "hoisted", 1)
    reused = (True, "hoisted", 0)
    for forward, inputs, expected in (
        # A weight is cast once.
        (lambda layer, x: layer(layer(layer(x))), (x,), [stays, hoisted, reused, reused]),
        # A cast to FP16 of a tensor that came from FP16 is cancelled.
        (lambda layer, x: layer(layer(x).float()), (x,), [stays, hoisted, cancelled, reused]),
        # The second cast of x is cancelled; y and y.T are two tensors, and cast each.
        (lambda _, x, y: x @ y + x @ y.T, (x, y), [stays, stays, cancelled, stays]),
        # A gradient comes back through each cast of x, so none is left out.
        (lambda _, x, y: x @ y + x @ y.T, (with_gradient, y), [stays] * 4),
    ):
        casts = explained(CustomLinear(3, forward), *inputs).casts
        assert [(cast.weight, cast.fate, cast.times) for cast in casts] == expected


@pytest.mark.parametrize(
    "wide_has_gradients", [False, True], ids=["all of the pair", "its second cast"]
)
def test_a_pair_of_casts_without_gradients_stays(wide_has_gradients: bool) -> None:
    def half_of_it(model: nn.Module, x: Tensor) -> Tensor:
        h = model.linear(x)
        with torch.set_grad_enabled(wide_has_gradients):
            wide = h.float()
        with torch.no_grad():
            y = wide.half()
        return h * y

    assert require_equal(Custom(half_of_it)).decided.run is not None


def test_graph_repeats_a_cast_after_a_cancelled_pair() -> None:
    def there_and_back_then_again(product: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        # The first two casts cancel each other, so the third cannot be a link to the first.
        return product(x.float().half()) + x.float()

    layer = CustomLinear(3, there_and_back_then_again)
    x = torch.rand(3, 3).half()
    graph = CastGraph(layer, FP16)
    for _ in range(3):
        with half_storage("cpu"), autocast():
            expected = layer(x)
            assert torch.equal(graph(x), expected)
    assert graph.decided.run is not None


def test_a_graph_makes_the_casts_of_eager_autocast() -> None:
    """A norm of torch.nn.functional is written in Python and casts inside.

    A trace that recorded that cast once more would make it twice.
    """

    class Casts(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(
            self, func: object, types: object, args: tuple = (), kwargs: object = None
        ) -> object:
            if func is torch.ops.aten._to_copy.default:
                self.count += 1
            return func(*args, **(kwargs or {}))

    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 2, 3))
    counts = []
    graph = CastGraph(model, FP16)
    for _ in range(3):
        with Casts() as casts, half_storage("cpu"), autocast():
            graph(torch.ones(2, 1, 8, 8))
        counts.append(casts.count)
    # of six operands there and back, of two results, and of the norm's input
    assert counts == [15, 15, 15]
    assert len(explain(graph).casts) == 7
    assert [row.op for row in explain(graph).rows] == ["conv2d", "group_norm", "relu", "conv2d"]


def test_explanation_of_a_recipe_without_a_graph_is_refused() -> None:
    with pytest.raises(ValueError, match=r"this recipe has no graph.*RECIPES\['O1 graph'\]"):
        explain(Engine(nn.Linear(1, 1), SGD, RECIPES["O1"]))


def test_explanation_of_a_network_is_refused() -> None:
    with pytest.raises(TypeError, match=r"graph: expected a CastGraph, or an Engine.*got a Linear"):
        explain(nn.Linear(1, 1))


def test_explanation_before_the_graph_is_built_says_so() -> None:
    with pytest.raises(
        ValueError, match="it is built by the second forward pass, which has not run yet"
    ):
        explain(Engine(nn.Linear(1, 1), SGD, RECIPES["O1 graph"]))


@pytest.mark.parametrize("format", ["FP32", "E4M3"])
def test_a_graph_of_casts_to_another_format_is_refused(format: str) -> None:
    with pytest.raises(ValueError, match=f"format: expected FP16 or BF16, got {format}"):
        CastGraph(nn.Linear(2, 2), format)


def test_recipe_with_a_graph_needs_a_half_precision_autocast() -> None:
    for wrong in ({}, {"autocast": E4M3}, {"autocast": FP16, "gradient_format": BF16}):
        with pytest.raises(
            ValueError, match=r"a graph holds casts to FP16 or BF16. Take autocast=FP16"
        ):
            Recipe("mine", graph=True, **wrong)


SETTINGS = {"scale": 1.0}
Forward = Callable[[nn.Module, Tensor], Tensor]


class Custom(nn.Module):
    """A linear layer, a batch norm and a given forward function."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.5)
        self.function = forward
        self.scale = 1.0
        self.list = [1.0]
        self.settings = SimpleNamespace(scale=1.0)
        self.count = 0
        self.kept = None
        self.plain = torch.ones(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x) * SETTINGS["scale"]


def reads_everything(model: nn.Module, x: Tensor) -> Tensor:
    """Read everything that `EDITS` changes between two calls."""
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
    return [
        y.detach(),
        x,
        *(p.grad for p in model.parameters() if p.grad is not None),
        *(b for b in model.buffers()),
    ]


def require_equal(
    model: nn.Module,
    *,
    calls: int = 9,
    rows: Callable[[int], int] = lambda _: 4,
    edit: Callable[..., object] = lambda *_: None,
) -> CastGraph:
    """Call a network and a graph of its copy side by side, and return the graph.

    `edit(call, network)` runs on both networks before each call.
    """
    other = copy.deepcopy(model)
    graph = CastGraph(other, FP16)
    for number in range(calls):
        for network in (model, other):
            edit(number, network)
        x = torch.randn(rows(number), 8)
        eager = step(model, model, x, number)
        decided = step(graph, other, x, number)
        assert all(torch.equal(a, b) for a, b in zip(eager, decided, strict=True)), f"call {number}"
    return graph


def at_call(number: int, edit: Callable[[nn.Module], object]) -> Callable[[int, nn.Module], object]:
    return lambda call, model: edit(model) if call == number else None


def hook_between_calls(call: int, model: nn.Module) -> None:
    if call == 4:
        model.handle = model.linear.register_forward_hook(lambda *arguments: arguments[-1] * 2)
    if call == 6:
        model.handle.remove()


EDITS: dict[str, Callable[[int, nn.Module], object]] = {
    "nothing": lambda *_: None,
    "evaluation and back": lambda call, model: model.train(call % 4 < 2),
    "one layer's mode": at_call(4, lambda model: model.drop.eval()),
    "an attribute": at_call(4, lambda model: setattr(model, "scale", 0.5)),
    "a list, in place": at_call(4, lambda model: model.list.__setitem__(0, 0.5)),
    "an object's attribute": at_call(4, lambda model: setattr(model.settings, "scale", 0.5)),
    "a global value": at_call(4, lambda _: SETTINGS.update(scale=0.5)),
    "a tensor that is not a buffer": at_call(
        4, lambda model: setattr(model, "plain", torch.full((8,), 2.0))
    ),
    "the same tensor, in place": at_call(4, lambda model: model.plain.fill_(2.0)),
    "a parameter": at_call(
        4, lambda model: setattr(model.linear, "weight", nn.Parameter(torch.ones(8, 8)))
    ),
    "a layer": at_call(4, lambda model: setattr(model, "drop", nn.Identity())),
    "a weight through .data": lambda call, model: model.linear.weight.data.fill_(call / 8),
    "a frozen weight": at_call(4, lambda model: model.linear.weight.requires_grad_(False)),
    "forward itself": at_call(
        4, lambda model: setattr(model, "function", lambda model, x: model.linear(x).relu())
    ),
    "a hook, for a while": hook_between_calls,
}


def test_graph_follows_a_change_between_two_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, edit in EDITS.items():
        monkeypatch.setitem(SETTINGS, "scale", 1.0)
        graph = require_equal(Custom(reads_everything), edit=edit)
        assert graph.why == "", name
        assert graph.decided.run is not None, f"{name}: no graph was built after the edit"


class ScaledByAttribute(nn.Module):
    """A linear layer times an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.scale = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.scale


def test_changes_of_a_model_do_not_use_up_its_traces() -> None:
    graph = CastGraph(ScaledByAttribute(), FP16)
    for change in range(2 * TRIES):
        graph.model.scale = 1.0 + change
        for _ in range(3):
            with autocast():
                graph(torch.ones(2, 4))
        assert graph.decided.run is not None, graph.why


@pytest.mark.parametrize(("before", "after"), [(1, 1.0), (1.0, True), (0.0, -0.0), (2.0, math.nan)])
def test_graph_follows_each_change_of_a_number(before: float, after: float) -> None:
    graph = CastGraph(ScaledByAttribute(), FP16)
    x = torch.ones(2, 4)
    graph.model.scale = before
    for _ in range(3):
        with autocast():
            graph(x)
    assert graph.decided.run is not None
    graph.model.scale = after
    with autocast():
        decided = graph(x)
        eager = graph.model(x)
    assert decided.dtype == eager.dtype
    # The bits, of which one is the sign of zero.
    assert torch.equal(decided.view(torch.int16), eager.view(torch.int16))


class CountsItsCalls(nn.Linear):
    """Changes an attribute in each call."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x)


@pytest.mark.filterwarnings("ignore:no graph of this network")
def test_a_model_that_changes_in_each_call_is_not_traced_forever() -> None:
    graph = CastGraph(CountsItsCalls(4, 4), FP16)
    for _ in range(3 * TRIES):
        with autocast():
            graph(torch.ones(2, 4))
    assert graph.why == "forward changes calls"
    assert graph.decided.tries == TRIES


def test_graph_follows_an_operation_registered_later() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Sigmoid())
    graph = CastGraph(model, FP16)
    for number in range(3):
        assert step(graph, model, torch.ones(2, 8), number)[0].dtype is torch.float16
    with register("sigmoid", Rule.DENY):
        for number in range(3):
            assert step(graph, model, torch.ones(2, 8), number)[0].dtype is torch.float32
    assert step(graph, model, torch.ones(2, 8), 0)[0].dtype is torch.float16


def branches(model: nn.Module, x: Tensor) -> Tensor:
    y = model.linear(x)
    return y if y.sum() > 0 else -y  # the line


def selects(model: nn.Module, x: Tensor) -> Tensor:
    return model.linear(x)[x > 0]  # the line


def indices(model: nn.Module, x: Tensor) -> Tensor:
    return model.linear(x) * len(torch.where(x > 0)[0])  # the line


def classes(model: nn.Module, x: Tensor) -> Tensor:
    return model.linear(x) * F.one_hot((x > 0).long()).shape[-1]  # the line


def counts_up(model: nn.Module, x: Tensor) -> Tensor:
    return model.linear(x) * torch.arange((x > 0).sum()).shape[0]  # the line


def spaces(model: nn.Module, x: Tensor) -> Tensor:
    return model.linear(x) * torch.linspace(0, 1, (x > 0).sum()).shape[0]  # the line


def repeats(model: nn.Module, x: Tensor) -> Tensor:
    return model.linear(x) * x.new_ones(1).expand((x > 0).sum()).shape[0]  # the line


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
    selects: "the shape of what __getitem__ returns depends on the numbers",
    indices: "the shape of what where returns depends on the numbers",
    classes: "the shape of what one_hot returns depends on the numbers",
    counts_up: "arange reads a number out of a tensor",
    spaces: "linspace reads a number out of a tensor",
    repeats: "expand reads a number out of a tensor",
    draws_in_python: "Python's or numpy's random numbers",
    counts: "forward changes count",
    keeps_its_result: "forward changes kept",
    transforms: "inside a transform of torch.func",
    another_format_inside: "made where torch shows no call",
}


@pytest.mark.parametrize("forward", REFUSED, ids=lambda forward: forward.__name__)
def test_forward_without_a_fixed_graph_runs_eagerly(forward: Forward) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        graph = require_equal(Custom(forward))
    (message,) = {str(warning.message) for warning in caught}
    assert REFUSED[forward] in message
    assert graph.why in message
    assert "eager autocast is used, with the same numbers" in message
    # The warning names the line of `forward` that carries the comment "the line".
    text, first = inspect.getsourcelines(forward)
    lines = [number for number, line in enumerate(text, first) if "# the line" in line]
    assert all(f"{__file__}:{number}: " in message for number in lines)


def test_changes_between_calls_are_found_by_two_traces() -> None:
    class Anneals(nn.Linear):
        steps = 0

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) / Anneals.steps

    def edit(call: int, _: nn.Module) -> None:
        Anneals.steps = call + 1

    with pytest.warns(
        UserWarning, match=r"it differs from call to call: .*test_cast_graph.py:\d+, in .*div"
    ):
        require_equal(Anneals(8, 8), edit=edit)


class RandomNetwork(nn.Module):
    """A network of eight operations on earlier values, drawn from a seed."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.register_buffer("buffer", torch.randn(4, 4))
        self.seed = seed

    def forward(self, x: Tensor) -> Tensor:
        operations = [
            lambda a, _: self.first(a),
            lambda a, _: self.second(a),
            lambda a, _: a.half(),
            lambda a, _: a.float(),
            lambda a, _: a.half().float(),
            lambda a, _: a.exp().clamp(max=2),
            lambda a, _: a.clone().mul_(0.5),
            lambda a, _: a.softmax(-1),
            lambda a, b: a + b,
            lambda a, b: torch.cat([a, b])[:4],
            lambda a, b: (a @ b).clamp(-2, 2),
        ]
        # the same draws in each call
        draws = random.Random(self.seed)
        values = [x, self.buffer]
        for _ in range(8):
            operation = draws.choice(operations)
            values.append(operation(draws.choice(values), draws.choice(values)))
        return sum(value.float() for value in values[2:])


def test_random_networks_are_bit_equal_under_a_graph() -> None:
    """Casts that a network makes by itself meet those of autocast in all orders."""
    for seed in range(120):
        torch.manual_seed(seed)
        network = RandomNetwork(seed)
        other = copy.deepcopy(network)
        graph = CastGraph(other, FP16)
        dtype = torch.float16 if seed % 3 == 0 else torch.float32
        for _ in range(3):
            inputs = torch.randn(4, 4).to(dtype)
            results = []
            for call, model in ((network, network), (graph, other)):
                model.zero_grad()
                x = inputs.clone().requires_grad_(seed % 2 == 0)
                with half_storage("cpu"), autocast():
                    y = call(x)
                if y.requires_grad:
                    y.sum().backward()
                gradients = [t.grad for t in (*model.parameters(), x) if t.grad is not None]
                results.append([y.detach(), *gradients])
            assert len(results[0]) == len(results[1]), seed
            assert all(map(torch.equal, *results)), seed
        assert graph.decided.run is not None, (seed, graph.why)


def test_weight_that_forward_writes_is_cast_for_each_use() -> None:
    class Halves(nn.Linear):
        """A layer that is applied twice, and whose weight is halved in between."""

        def __init__(self, part: Callable[[Tensor], Tensor]) -> None:
            super().__init__(8, 8)
            self.part = part

        def forward(self, x: Tensor) -> Tensor:
            before = super().forward(x)
            with torch.no_grad():
                self.part(self.weight).mul_(0.5)
            return before + super().forward(x)

    for part in (lambda w: w, lambda w: w.view(-1), lambda w: w[0], lambda w: w.T):
        eager = Halves(part)
        other = copy.deepcopy(eager)
        graph = CastGraph(other, FP16)
        x = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))
        for _ in range(4):
            with half_storage("cpu"), autocast():
                expected = eager(x)
            with half_storage("cpu"), autocast():
                assert torch.equal(graph(x), expected)
        assert graph.decided.run is not None


class Tracked(nn.Module):
    """A norm that returns by how much its running mean moves."""

    def __init__(self, norm: Callable[..., Tensor]) -> None:
        super().__init__()
        self.norm = norm
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("variance", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        before = self.mean.half()
        self.norm(x, self.mean, self.variance)
        return self.mean.half() - before


@pytest.mark.parametrize(
    "norm", [partial(F.batch_norm, training=True), F.instance_norm], ids=["batch", "instance"]
)
def test_statistics_that_a_norm_updates_are_cast_again(norm: Callable[..., Tensor]) -> None:
    eager = Tracked(norm)
    other = copy.deepcopy(eager)
    graph = CastGraph(other, FP16)
    x = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(0)) + 4
    for _ in range(4):
        with half_storage("cpu"), autocast():
            expected = eager(x)
        with half_storage("cpu"), autocast():
            assert torch.equal(graph(x), expected)
        assert expected.any()
    assert graph.decided.run is not None


def test_two_traces_that_overlap_restore_torchs_method() -> None:
    original = vars(torch.autograd.Function)["apply"]
    # As in two threads, the trace that began first ends first.
    first = recording_functions()
    second = recording_functions()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert vars(torch.autograd.Function)["apply"] is not original
    second.__exit__(None, None, None)
    assert vars(torch.autograd.Function)["apply"] is original


def test_graph_writes_into_its_input_as_forward_does() -> None:
    def doubles(model: nn.Module, x: Tensor) -> Tensor:
        x.mul_(2)
        x[0] = 1
        return model.linear(x)

    assert require_equal(Custom(doubles)).decided.run is not None


class Scaled(nn.Linear):
    """A linear layer whose output is multiplied by an argument, or by an attribute of it."""

    def forward(self, x: Tensor, options: Any) -> Tensor:
        factor = options.factor if isinstance(options, SimpleNamespace) else options
        return super().forward(x) * factor


def test_an_object_as_argument_has_no_graph() -> None:
    """Its attributes may change from call to call, so each call reads them again."""
    model = Scaled(8, 8)
    graph = CastGraph(model, FP16)
    options = SimpleNamespace()
    x = torch.ones(2, 8)
    for factor in (1.0, 1.0, 1.0, 5.0):
        options.factor = factor
        with autocast():
            assert torch.equal(graph(x, options), model(x, options))
    assert "an argument is a SimpleNamespace" in graph.why


def test_minus_zero_is_another_argument_than_zero() -> None:
    graph = CastGraph(Scaled(8, 8), FP16)
    x = torch.ones(2, 8)
    results: list[Tensor] = []
    for factor in (0.0, 0.0, 0.0, -0.0):
        with autocast():
            results.append(graph(x, factor).signbit())
    assert torch.equal(results[3], ~results[2])


def test_calls_that_raise_do_not_prevent_a_graph() -> None:
    failures = [ValueError("no batch today")] * TRIES

    def forward(model: nn.Module, x: Tensor) -> Tensor:
        y = model.linear(x)
        if failures:
            raise failures.pop()
        return y

    graph = CastGraph(Custom(forward), FP16)
    x = torch.ones(2, 8)
    for _ in range(TRIES):
        with autocast(), pytest.raises(ValueError, match="no batch today"):
            graph(x)
    for _ in range(3):
        with autocast():
            graph(x)
    assert graph.why == ""
    assert graph.decided.run is not None


def test_graph_outside_of_autocast_calls_the_network() -> None:
    model = nn.Linear(8, 8)
    graph = CastGraph(model, FP16)
    x = torch.ones(2, 8)
    for number in range(3):
        step(graph, model, x, number)
    assert graph.decided.run is not None
    assert graph(x).dtype is torch.float32


def test_graph_under_a_listener_reports_each_operation() -> None:
    """A graph runs no operation of autocast, so under a listener the network itself is called."""
    model = nn.Linear(8, 8)
    graph = CastGraph(model, FP16)
    x = torch.ones(2, 8)
    for number in range(3):
        step(graph, model, x, number)
    assert graph.decided.run is not None
    events: list[object] = []
    with half_storage("cpu"), autocast(listen=events.append):
        graph(x)
    assert len(events) == 1
    assert [row.op for row in ledger(graph, x)] == ["linear"]


def test_graph_runs_under_a_mode_that_intercepts_no_operation() -> None:
    class Scales(TorchFunctionMode):
        """A mode that scales a loss on its way into backward, and changes no call of a network."""

        def __torch_function__(
            self, func: object, types: object, args: tuple = (), kwargs: object = None
        ) -> object:
            args = (args[0] * 8, *args[1:]) if func is Tensor.backward else args
            return func(*args, **(kwargs or {}))

    for intercepts_operations in (True, False):
        Scales.intercepts_operations = intercepts_operations
        model = nn.Linear(8, 8)
        graph = CastGraph(model, FP16)
        for _ in range(4):
            model.zero_grad()
            with half_storage("cpu"), autocast(), Scales():
                graph(torch.ones(4, 8)).float().sum().backward()
            # A sum over four rows, times the scale of 8.
            assert (model.bias.grad == 4 * 8).all()
        assert (graph.decided.run is not None) is not intercepts_operations


def trained(
    model: nn.Module, steps: int = 4, in_place: bool = False, **compile: Any
) -> list[list[Tensor]]:
    """Train a copy of a network under "O1 graph"; return output, loss and gradients of each step.

    Without options of torch.compile, nothing is compiled; with them, the whole network is, by
    torch.compile or in place by its method `compile`.
    """
    torch._dynamo.reset()
    model = copy.deepcopy(model)
    tensors_of_steps = []
    compiled = (
        torch.compile(model, fullgraph=True, **compile) if compile and not in_place else model
    )
    if in_place:
        model.compile(fullgraph=True, **compile)
    engine = Engine(compiled, partial(torch.optim.SGD, lr=0.1), RECIPES["O1 graph"])
    for step in range(steps):
        torch.manual_seed(step)
        images = torch.rand(8, 1, 8, 8)
        targets = torch.randint(10, (8,))
        engine.zero_grad()
        with engine.forward():
            output = engine(images)
            loss = F.cross_entropy(output, targets)
        engine.backward(loss)
        tensors_of_steps.append(
            [output.detach(), loss.detach(), *(p.grad.clone() for p in model.parameters())]
        )
        engine.step()
    assert engine.call.why == ""
    return tensors_of_steps


@pytest.mark.slow
def test_a_compiled_graph_is_one_piece_and_bit_equal() -> None:
    # The import takes a second, which the collection of tests should not pay.
    from torch._dynamo.utils import counters

    torch.manual_seed(0)
    net = networks.mlp(32, 2)
    eager = trained(net)
    for in_place in (False, True):
        counters.clear()
        assert_same(eager, trained(net, backend="eager", in_place=in_place))
        assert not counters["graph_break"]
        assert counters["stats"]["unique_graphs"] == 1
    for layer in net:
        if isinstance(layer, nn.Linear):
            layer.compile(backend="eager")
    # A compiled layer is traced by its original Python code.
    assert_same(eager, trained(net))


@pytest.mark.slow
def test_a_custom_function_is_not_compiled_and_reported() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient * 2

    class Net(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return Double.apply(super().forward(x.flatten(1)))

    net = Net(64, 10)
    with pytest.warns(UserWarning, match="the graph runs, but is not compiled: Double"):
        compiled = trained(net, backend="eager")
    assert_same(trained(net), compiled)


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("g++") is None, reason="inductor writes C++, and there is no compiler for it here"
)
def test_inductor_is_bit_equal_if_it_emulates_casts() -> None:
    """The rounding between two operations stays, although inductor fuses them into one kernel.

    Without `emulate_precision_casts`, inductor drops the rounding FP32 -> FP16 -> FP32 in
    relu(half(x)).float().
    """
    torch.manual_seed(0)
    net = networks.mlp(32, 2)
    with torch._inductor.config.patch(emulate_precision_casts=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_same(trained(net, 3), trained(net, 3, backend="inductor"))
