"""The page's trainings against a reference from parts of the lab: every weight, bit by bit."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from labkit.formats import Rounding, round_to
from labkit.widgets.base.joining import in_order, joined
from labkit.widgets.playground.widget import PRESETS
from tests.javascript.node import NodeEngine, node
from tests.playground.reference import Training, format_named, random_bits

pytestmark = pytest.mark.skipif(node() is None, reason="node runs the page's modules")

EXPORT = """(name, preset, changes, method) => {
  const recipe = { ...RECIPE_PRESETS[preset], ...changes };
  globalThis.training = newTraining(PROBLEMS[name](), recipe, 3);
  takeMethod(training, { ...training.method, ...method });
  const { shape, batch } = training.problem;
  const inputs = Array.from(training.problem.inputs);
  const targets = Array.from(training.problem.targets);
  const parameters = training.parameters.map(({ values }) => Array.from(values));
  const problem = { shape, batch, inputs, targets };
  return { problem, recipe, method: training.method, parameters };
}"""
STEP = """() => {
  const { loss, scale, skipped } = trainStep(training);
  const bits = [Float32Array.of(loss), ...training.parameters.map(({ values }) => values)];
  return { scale, skipped, bits: bits.map((one) => Array.from(new Int32Array(one.buffer))) };
}"""
PROBLEMS = ("spirals", "picture", "targets", "digits", "fine_tuning")
FEW = {("spirals", "O3"), ("targets", "FP16 dynamic"), ("digits", "FP8")}
OWN: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("own formats", {"weights": "e6m9", "activations": "e5m6", "gradients": "e4m8"}, {}),
    ("sums in FP16", {"accumulator": "format"}, {}),
    ("Adam in FP16", {"optimizer": "FP16", "master": False}, {"kind": "Adam", "epsilon": 1e-4}),
    ("no momentum", {}, {"kind": "SGD", "momentum": 0}),
]


@pytest.fixture(scope="module")
def engine() -> Iterator[NodeEngine]:
    with NodeEngine() as engine:
        engine.load(joined(in_order(["playground/trainer.js", "playground/problems.js"])))
        yield engine


def bits_of(values: NDArray[Any]) -> Any:
    """Return FP32's codes, one for all NaN."""
    narrow = np.asarray(values, np.float32).ravel()
    return np.where(np.isnan(narrow), 0x7FC00000, narrow.view(np.int32))


def begun(engine: NodeEngine, *arguments: Any) -> Training:
    """Begin a training in the page; return it as the reference goes on with it."""
    data = engine.call(EXPORT, list(arguments))
    problem = data["problem"]
    sizes = problem["shape"]["sizes"]
    problem["inputs"] = np.array(problem["inputs"]).reshape(-1, sizes[0])
    problem["targets"] = np.array(problem["targets"])
    parameters = []
    for i, values in enumerate(data["parameters"]):
        shape = (sizes[i // 2], sizes[i // 2 + 1]) if i % 2 == 0 else (sizes[i // 2 + 1],)
        parameters.append(np.array(values, np.float64).reshape(shape))
    return Training(problem, data["recipe"], data["method"], 3, parameters)


def compare(engine: NodeEngine, reference: Training, steps: int) -> None:
    """Take steps in both; every weight, loss, scale and skip is the same."""
    for step in range(1, steps + 1):
        page = engine.call(STEP, [])
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore", RuntimeWarning)
            ours = reference.step()
        assert page["scale"] == ours["scale"], step
        assert page["skipped"] == ours["skipped"], step
        wanted = [np.array(ours["loss"]), *reference.parameters]
        for i, (got, values) in enumerate(zip(page["bits"], wanted, strict=True)):
            numbers = np.array(got, np.int32).view(np.float32)
            assert np.array_equal(bits_of(numbers), bits_of(values)), (step, i)


@pytest.mark.parametrize(
    ("problem", "preset"),
    [
        pytest.param(p, r, marks=[] if (p, r) in FEW else pytest.mark.slow)
        for p in PROBLEMS
        for r in PRESETS
    ],
)
def test_100_steps_are_the_reference_to_the_bit(
    engine: NodeEngine, problem: str, preset: str
) -> None:
    compare(engine, begun(engine, problem, preset, {}, {}), 100)


@pytest.mark.parametrize(
    ("changes", "method"), [row[1:] for row in OWN], ids=[row[0] for row in OWN]
)
def test_knobs_beyond_presets_are_the_reference_too(
    engine: NodeEngine, changes: dict[str, Any], method: dict[str, Any]
) -> None:
    compare(engine, begun(engine, "targets", "FP16 dynamic", changes, method), 20)


DRAWS = """(name, key, count, random) => {
  const format = formatNamed(name);
  const found = new Float64Array(count);
  const range = 2 ** format.exponentBits + 8;
  for (let i = 0; i < count; i++) {
    const part = 1 + randomBitsAt(key, 2 * i) / 2 ** 32 + randomBitsAt(key + 1, i) / 2 ** 53;
    const exponent = Math.floor((randomBitsAt(key, 2 * i + 1) / 2 ** 32) * range) - range / 2;
    found[i] = (i & 1 ? -1 : 1) * part * 2 ** exponent;
  }
  const round = random
    ? (x, i) => toRandom(x, format, randomBitsAt(key + 2, i))
    : (x) => toNearest(x, format);
  return [found, found.map(round)].map((all) => {
    let text = "";
    for (const byte of new Uint8Array(all.buffer)) text += byte.toString(16).padStart(2, "0");
    return text;
  });
}"""


@pytest.mark.parametrize("random", [False, True], ids=["nearest", "random"])
@pytest.mark.parametrize("name", ["FP32", "FP16", "BF16", "E4M3", "E5M2", "e6m9", "e3m2"])
@pytest.mark.parametrize("count", [20_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_formats_round_as_round_to_does(
    engine: NodeEngine, name: str, random: bool, count: int
) -> None:
    texts = engine.call(DRAWS, [name, 11, count, random])
    values, got = (np.frombuffer(bytes.fromhex(text), np.float64) for text in texts)
    if random:
        bits = random_bits(13, count)
        wanted = round_to(values, format_named(name), Rounding.STOCHASTIC, random_bits=bits)
    else:
        wanted = round_to(values, format_named(name))
    assert np.array_equal(got, wanted, equal_nan=True)
    numbers = ~np.isnan(wanted)
    assert np.array_equal(np.signbit(got[numbers]), np.signbit(wanted[numbers]))
