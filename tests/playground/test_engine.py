"""A step of the page against a step of `Engine`, from five states of a training.

Both begin with the page's weights, optimizer state and scaler, and see the same batch. The engine's
recipe takes the accumulator `SEQUENTIAL_FP32`, which the page's products have. Each operation of
the page has the engine's operands, so that a difference stays where it arises:

- products of 16-bit operands, and of FP8: equal to the bit, so that their zeros are, too;
- products of FP32 operands, which torch adds in its own order: rounding by
  `labkit.testing.compare`, in both;
- tanh and its derivative, the loss and its derivative: within the bound of each test, from counted
  roundings;
- scale and skip: equal;
- the optimizer's step: as `bound_of_step` says.

The engine adds a bias after the product; so that it comes first, as in the page, it is a row of the
weights, and each input has a 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from labkit.amp import RECIPES, Engine, Recipe
from labkit.amp.loss_scaling.scaler import ScalerState, StepReport
from labkit.formats import FP32, Format, round_to, ulp
from labkit.gemm import SEQUENTIAL_FP32
from labkit.instrument.events import Moment
from labkit.testing import compare, matmul
from labkit.widgets.base.joining import in_order, joined
from labkit.widgets.playground.widget import PRESETS
from tests.javascript.node import NodeEngine, node
from tests.playground.reference import format_named

pytestmark = pytest.mark.skipif(node() is None, reason="node runs the page's modules")

Floats = NDArray[Any]
STEPS = (1, 2, 10, 50, 100)
# tanh and classes under Adam; ReLU and classes under SGD with momentum; tanh and squares
PROBLEMS = ("spirals", "digits", "targets")
FEW = {("spirals", "O2"), ("digits", "FP16 dynamic"), ("targets", "FP32")}

BEGIN = """(name, preset) => {
  const recipe = RECIPE_PRESETS[preset];
  globalThis.training = newTraining(PROBLEMS[name](), recipe, 3);
  const { shape } = training.problem;
  return { shape, recipe, method: training.method };
}"""
STATE = """(before) => {
  while (training.steps < before) trainStep(training);
  globalThis.recorded = structuredClone({
    parameters: training.parameters, memory: training.memory, scaler: training.scaler,
  });
  const plain = (arrays) => arrays.map((values) => Array.from(values, String));
  const { inputs, targets } = batchOf(training);
  const { memory, scaler } = training;
  return {
    inputs: Array.from(inputs), targets: Array.from(targets), scaler,
    parameters: plain(training.parameters.map(({ values }) => values)),
    first: plain(memory.first), second: plain(memory.second), steps: memory.steps,
  };
}"""
STEP = """() => {
  const { scale, skipped } = trainStep(training);
  return { scale, skipped, after: training.scaler };
}"""
PRODUCT = """(a, rows, b, columns, formats, result) => {
  const [left, right] = [a, b].map((values) => Float32Array.from(values, Number));
  const terms = left.length / rows;
  const [first, second] = formats.map(knownFormat);
  const sum = { result: knownFormat(result), narrow: false };
  const found = product(
    matrix(left, rows, terms, first), matrix(right, terms, columns, second), null, sum);
  return Array.from(found, String);
}"""
TANH = """(values, format) => {
  const found = Float32Array.from(values, Number);
  activate(found, "tanh", knownFormat(format));
  return Array.from(found, String);
}"""
TANH_SLOPES = """(slopes, states, format) => {
  const found = Float32Array.from(slopes, Number);
  deactivate(found, Float32Array.from(states, Number), "tanh", knownFormat(format));
  return Array.from(found, String);
}"""
LOSS = """(out, count, targets, scale) => {
  const pass = { states: [Float32Array.from(out, Number)], count };
  const { shape } = training.problem;
  const found = lossOf(shape.loss, pass, Float32Array.from(targets), scale, training.recipe);
  return [String(found.loss), Array.from(found.slopes, String)];
}"""
UPDATE = """(gradients) => {
  const { parameters, memory } = recorded;
  const { method, recipe } = training;
  const found = gradients.map((values) => Float32Array.from(values, Number));
  for (const one of found) roundAll(one, knownFormat(recipe.optimizer));
  stepAll(parameters, found, memory, method, recipe, 0);
  return parameters.map(({ values }) => Array.from(values, String));
}"""


def numbers(texts: list[str]) -> Floats:
    """Return numbers that were written as JavaScript does, inf and NaN among them."""
    return np.array([float(text.replace("Infinity", "inf")) for text in texts])


def texts(values: Floats) -> list[str]:
    """Return numbers as JavaScript reads them."""
    return [
        repr(float(one)).replace("inf", "Infinity").replace("nan", "NaN") for one in values.ravel()
    ]


class Dense(nn.Module):
    """A layer that adds its bias first, as one more row of its weights.

    `seen` has the operands and the output of the last step, and their gradients.
    """

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(bias)
        self.seen: dict[str, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        ones = torch.ones(len(x), 1, dtype=x.dtype)
        rows = torch.cat([self.bias[None], self.weight])
        out = torch.cat([ones, x], 1) @ rows
        self.seen |= {"input": x.detach(), "rows": rows.detach(), "output": out.detach()}
        out.register_hook(lambda slopes: self.seen.update(slopes=slopes.detach()))
        if x.requires_grad:
            x.register_hook(lambda slopes: self.seen.update(input_slopes=slopes.detach()))
        return out


class Network(nn.Module):
    """Layers with an activation between them; `seen` has the activated outputs."""

    def __init__(self, layers: list[Dense], activation: str) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.activation = torch.tanh if activation == "tanh" else torch.relu
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.clear()
        for layer in self.layers[:-1]:
            x = self.activation(layer(x))
            self.seen.append(x.detach())
        out: Tensor = self.layers[-1](x)
        return out


@dataclass
class Stepped:
    """What one step of the engine saw.

    Attributes:
        report: The engine's report of the step.
        loss: The loss, without its scale.
        out: The outputs of the network.
        out_slopes: The gradient of the outputs.
        layers: The layers, with what they saw.
        activated: The outputs of each layer after its activation.
        after: The weights that the optimizer steps, in the page's order of parameters.
        scaler: The state of the scaler after the step.
        scaled: The scaled gradients of the parameters, in the page's order.
        unscaled: The unscaled gradients; empty if the step was skipped.
    """

    report: StepReport
    loss: float
    out: Tensor
    out_slopes: Tensor
    layers: list[Dense]
    activated: list[Tensor]
    after: list[Floats]
    scaler: ScalerState
    scaled: list[Floats] = field(default_factory=list)
    unscaled: list[Floats] = field(default_factory=list)


@pytest.fixture(scope="module")
def engine() -> Iterator[NodeEngine]:
    """A process of node with the page's trainer."""
    with NodeEngine() as engine:
        engine.load(joined(in_order(["playground/trainer.js", "playground/problems.js"])))
        yield engine


def recipe_of(preset: str) -> Recipe:
    """Return a recipe of the lab, with the page's accumulator unless all operands are FP32."""
    recipe = RECIPES[preset]
    narrow = recipe.model != FP32 or recipe.autocast is not None
    return replace(recipe, accumulator=SEQUENTIAL_FP32) if narrow else recipe


def optimizer_of(method: dict[str, Any]) -> Any:
    """Return a function that makes torch's optimizer for a method of the page."""
    if method["kind"] == "Adam":
        return lambda weights: torch.optim.Adam(weights, method["rate"], eps=method["epsilon"])
    return lambda weights: torch.optim.SGD(weights, method["rate"], momentum=method["momentum"])


def engine_step(setup: dict[str, Any], state: dict[str, Any], preset: str) -> Stepped:
    """Take one step of an engine from a state of the page."""
    shape = setup["shape"]
    method = setup["method"]
    sizes = shape["sizes"]
    values = [torch.from_numpy(one).float() for one in state["parameters"]]
    pairs = [
        (values[2 * i].reshape(sizes[i], sizes[i + 1]), values[2 * i + 1])
        for i in range(len(sizes) - 1)
    ]
    layers = [Dense(*pair) for pair in pairs]
    network = Network(layers, shape["activation"])
    made = Engine(network, optimizer_of(method), recipe_of(preset))
    clean = state["scaler"]["clean"]
    made.scaler = ScalerState(state["scaler"]["scale"], clean if made.recipe.scaler.dynamic else 0)
    _load_weights(made, pairs)
    _load_memory(made, state, method["kind"])
    events: dict[Moment, dict[str, Tensor]] = {}
    inputs = torch.tensor(state["inputs"]).reshape(-1, sizes[0])
    targets = torch.tensor(state["targets"])
    found: dict[str, Tensor] = {}

    def keep(event: Any) -> None:
        events[event.moment] = {k: v.detach().clone() for k, v in event.gradients.items()}

    with made.listen(keep):
        made.zero_grad()
        with made.forward():
            out = made(inputs)
            out.register_hook(lambda slopes: found.update(slopes=slopes.detach()))
            if shape["loss"] == "classes":
                loss = F.cross_entropy(out.float(), targets.long())
            else:
                loss = F.mse_loss(out.float(), targets.reshape(out.shape))
        made.backward(loss)
        report = made.step()
    names = [f"layers.{i}.{part}" for i in range(len(layers)) for part in ("weight", "bias")]
    masters = made.masters()
    return Stepped(
        report,
        float(loss.detach()),
        out.detach(),
        found["slopes"],
        layers,
        list(network.seen),
        [masters[name].detach().double().numpy().ravel() for name in names],
        made.scaler,
        [events[Moment.SCALED][name].double().numpy() for name in names],
        [events[Moment.UNSCALED][name].double().numpy() for name in names]
        if Moment.UNSCALED in events
        else [],
    )


@torch.no_grad()
def _load_weights(made: Engine, pairs: list[tuple[Tensor, Tensor]]) -> None:
    """Give the masters the page's weights, of which the model has a rounded copy."""
    for name, master in made.masters().items():
        layer, part = name.removeprefix("layers.").split(".")
        master.copy_(pairs[int(layer)][("weight", "bias").index(part)])


def _load_memory(made: Engine, state: dict[str, Any], kind: str) -> None:
    """Give the optimizer the page's memory."""
    if not state["first"]:
        return
    masters = made.masters()
    order = [f"layers.{i // 2}.{('weight', 'bias')[i % 2]}" for i in range(len(state["first"]))]
    for i, name in enumerate(order):
        parameter = masters[name]
        first = torch.from_numpy(state["first"][i]).to(parameter.dtype).reshape(parameter.shape)
        if kind == "SGD":
            made.optimizer.state[parameter] = {"momentum_buffer": first}
            continue
        second = torch.from_numpy(state["second"][i]).to(parameter.dtype).reshape(parameter.shape)
        step = torch.tensor(float(state["steps"]))
        made.optimizer.state[parameter] = {"step": step, "exp_avg": first, "exp_avg_sq": second}


def flat(tensor: Tensor) -> list[str]:
    """Return the numbers of a tensor as JavaScript reads them."""
    return texts(tensor.double().numpy())


def steps_between(got: Floats, wanted: Floats, format: Format) -> Floats:
    """Return how many units in the last place numbers are apart.

    It is 0 for equal numbers and for two NaN.
    """
    alike = (got == wanted) | (np.isnan(got) & np.isnan(wanted))
    with np.errstate(invalid="ignore"):
        apart = np.abs(got - wanted) / np.maximum(ulp(got, format), ulp(wanted, format))
    return np.where(alike, 0, apart)


class Page:
    """The page's operations on the engine's operands."""

    def __init__(self, node: NodeEngine, recipe: dict[str, Any]) -> None:
        self.node = node
        self.activations = recipe["activations"]
        self.gradients = recipe["gradients"]

    def product(self, a: Tensor, b: Tensor, formats: tuple[str, str], result: str) -> Floats:
        arguments = [flat(a), len(a), flat(b), b.shape[1], formats, result]
        return numbers(self.node.call(PRODUCT, arguments)).reshape(len(a), b.shape[1])

    def require(
        self, a: Tensor, b: Tensor, formats: tuple[str, str], result: str, stored: Floats
    ) -> None:
        """Require that the page's product is the engine's, `stored`, to the bit.

        In FP32, in which torch adds in its own order, both must be explained by rounding instead.
        """
        ours = self.product(a, b, formats, result)
        format = format_named(result)
        if format == FP32:
            for one in (ours, stored):
                compared = compare(torch.from_numpy(one).float(), matmul(a.float(), b.float()))
                assert compared.explained, compared
            return
        # The engine stores some results in FP32, as autocast does for FP8; they are rounded when
        # they are read.
        theirs = np.asarray(round_to(stored, format))
        assert np.array_equal(ours, theirs, equal_nan=True)
        numbers = ~np.isnan(theirs)
        assert np.array_equal(np.signbit(ours[numbers]), np.signbit(theirs[numbers]))


def as_operand(tensor: Tensor, name: str) -> Tensor:
    """Return a tensor in the format that a product reads it in."""
    rounded = round_to(tensor.double().numpy(), format_named(name))
    return torch.from_numpy(np.asarray(rounded)).float()


def require_layers(page: Page, found: Stepped) -> None:
    """Compare the products of each layer, forward and backward."""
    ahead, back = page.activations, page.gradients
    for i, layer in enumerate(found.layers):
        seen = layer.seen
        x = as_operand(seen["input"], ahead)
        x = torch.cat([torch.ones(len(x), 1), x], 1)
        rows = as_operand(seen["rows"], ahead)
        output = seen["output"].double().numpy()
        page.require(x, rows, (ahead, ahead), ahead, output)
        slopes = as_operand(seen["slopes"], back)
        gradient = np.vstack([found.scaled[2 * i + 1], found.scaled[2 * i]])
        page.require(x.mT.contiguous(), slopes, (ahead, back), back, gradient)
        if "input_slopes" in seen:
            below = seen["input_slopes"].double().numpy()
            page.require(slopes, rows[1:].mT.contiguous(), (back, ahead), back, below)


def require_tanh(page: Page, found: Stepped) -> None:
    """Compare tanh and its derivative.

    The page rounds once. torch's tanh in FP32 is within 4 units of FP32, and rounds again: one unit
    of a 16-bit format. The derivative g (1 - y y) has three roundings of FP32, of numbers that are
    at most g, and one of its format.
    """
    format = format_named(page.activations)
    back = format_named(page.gradients)
    for layer, after, state in zip(found.layers, found.layers[1:], found.activated, strict=False):
        inner = layer.seen["output"]
        ours = numbers(page.node.call(TANH, [flat(as_operand(inner, format.name)), format.name]))
        theirs = np.asarray(round_to(state.double().numpy().ravel(), format))
        if inner.dtype == torch.float32 and format != FP32:
            # FP8: the engine's tanh has another operand, which is not rounded.
            continue
        assert steps_between(ours, theirs, format).max() <= (4 if format == FP32 else 1)
        slopes = after.seen["input_slopes"]
        arguments = [flat(slopes), flat(state), back.name]
        ours = numbers(page.node.call(TANH_SLOPES, arguments))
        theirs = layer.seen["slopes"].double().numpy().ravel()
        size = np.abs(slopes.double().numpy().ravel())
        unit = ulp(theirs, back)
        bound = size * 3 * 2.0**-24 + (unit if back != FP32 else 0)
        finite = np.isfinite(theirs)
        assert np.array_equal(finite, np.isfinite(ours))
        assert (np.abs(ours[finite] - theirs[finite]) <= bound[finite]).all()


def require_loss(page: Page, found: Stepped, state: dict[str, Any]) -> None:
    """Compare the loss and its derivative.

    The loss is a sum of positive terms, each with at most 8 roundings of FP32 and an exp and a log
    of 2 units each. The derivatives of both may be apart by 16 roundings of FP32 of the largest
    one, and by one rounding of their format.
    """
    out = found.out.double().numpy()
    rounded = np.asarray(round_to(out, format_named(page.activations)))
    loss, slopes = page.node.call(
        LOSS, [texts(rounded), len(out), state["targets"], found.report.scale]
    )
    if not np.array_equal(rounded, out, equal_nan=True):
        # FP8: the engine's loss has other operands.
        return
    relative = (out.size + 12) * 2.0**-24
    largest = np.abs(out).max()
    mean = float(numbers([loss])[0])
    tolerance = largest * 4 * 2.0**-24
    assert mean == pytest.approx(found.loss, rel=relative, abs=tolerance, nan_ok=True)
    ours = numbers(slopes)
    theirs = found.out_slopes.double().numpy().ravel()
    back = format_named(page.gradients)
    theirs = np.asarray(round_to(theirs, back))
    finite = np.isfinite(theirs)
    assert np.array_equal(finite, np.isfinite(ours))
    size = np.abs(theirs[finite]).max(initial=0.0)
    bound = size * 16 * 2.0**-24 + (ulp(theirs[finite], back) if back != FP32 else 0)
    assert (np.abs(ours[finite] - theirs[finite]) <= bound).all()


def reach_of(
    method: dict[str, Any], gradient: Floats, state: dict[str, Any], i: int, updates: int
) -> Floats:
    """Return the step that gradient and memory would take if they had the same sign.

    The roundings of a step are relative to numbers of this size, even if the two cancel.
    """
    before = np.abs(state["first"][i]) if state["first"] else np.zeros_like(gradient)
    sum_of_both = before + np.abs(gradient)
    if method["kind"] == "SGD":
        return np.asarray(method["rate"] * sum_of_both)
    squares = state["second"][i] if state["second"] else np.zeros_like(gradient)
    squares = (squares * 0.999 + gradient**2 * 0.001) / (1 - 0.999**updates)
    with np.errstate(all="ignore"):
        below = np.sqrt(squares) + method["epsilon"]
        return np.asarray(method["rate"] / (1 - 0.9**updates) * sum_of_both / below)


def bound_of_step(recipe: Recipe, after: Floats, reach: Floats) -> Floats:
    """Return how far two results of an optimizer's step may be apart.

    8 roundings of the step in the optimizer's format, and one of the weight; without masters one
    more, of the model's format.
    """
    bound = reach * 8 * 2.0 ** -(recipe.optimizer.significand_bits + 1) + ulp(after, FP32)
    narrow = not recipe.master_weights and recipe.model != FP32
    return np.asarray(bound + (ulp(after, recipe.model) if narrow else 0))


def require_update(
    node: NodeEngine,
    found: Stepped,
    setup: dict[str, Any],
    state: dict[str, Any],
    recipe: Recipe,
) -> None:
    """Compare the optimizer's step."""
    ours = [numbers(one) for one in node.call(UPDATE, [list(map(texts, found.unscaled))])]
    for i, (mine, theirs) in enumerate(zip(ours, found.after, strict=True)):
        gradient = found.unscaled[i].ravel()
        reach = reach_of(setup["method"], gradient, state, i, state["steps"] + 1)
        finite = np.isfinite(theirs)
        assert np.array_equal(finite, np.isfinite(mine)), i
        apart = np.abs(mine[finite] - theirs[finite])
        assert (apart <= bound_of_step(recipe, theirs, reach)[finite]).all(), (i, apart.max())


@pytest.mark.parametrize(
    ("problem", "preset"),
    [
        pytest.param(p, r, marks=[] if (p, r) in FEW else pytest.mark.slow)
        for p in PROBLEMS
        for r in PRESETS
    ],
)
def test_a_step_is_that_of_the_engine(engine: NodeEngine, problem: str, preset: str) -> None:
    setup = engine.call(BEGIN, [problem, preset])
    page = Page(engine, setup["recipe"])
    recipe = recipe_of(preset)
    for number in STEPS:
        state = engine.call(STATE, [number - 1])
        for name in ("parameters", "first", "second"):
            state[name] = [numbers(one) for one in state[name]]
        found = engine_step(setup, state, preset)
        require_layers(page, found)
        if setup["shape"]["activation"] == "tanh":
            require_tanh(page, found)
        require_loss(page, found, state)
        # Stochastic roundings differ, since the page draws its own random bits.
        if found.report.stepped and recipe.rounding.name != "STOCHASTIC":
            require_update(engine, found, setup, state, recipe)
        step = engine.call(STEP, [])
        assert step["scale"] == found.report.scale, number
        assert step["skipped"] == (not found.report.stepped), number
        assert step["after"]["scale"] == found.scaler.scale, number
