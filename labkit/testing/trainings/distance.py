"""The distance of a tensor in two trainings, and the distance that rounding explains.

A distance is relative: that of the drawn elements, of the norms or of the largest magnitudes,
whichever is larger. What rounding explains follows from the distances of the tensors that were
computed before:

    allowed = e + 100 d

Here d is the largest distance of the tensors that it was computed from: one layer seldom amplifies
a difference by more. The error of the layer itself is e, the bound of `labkit.testing.bound` for a
sum of K terms, relative to the sum of magnitudes. (A sum of numbers of both signs is about sqrt(K)
times smaller than that, and real orders reach about 1 / sqrt(K) of the bound: both cancel.) So a
difference that grows step by step is explained, and one that begins in a layer, or jumps, is not.

Three places need more, since they subtract numbers that nearly agree:

- The gradient of a loss is a small difference of large numbers when a model fits its data. Of a
  mean over N rows it is about 1 / N; its error grows by as much as it is smaller.
- The gradient of a bias is a sum. If the terms cancel, as before a batch norm, all of it may be
  rounding.
- An update is the difference of two weights, and Adam divides a gradient by its own size. So
  elements that are rounding errors have updates of full size: errors of the gradient count element
  by element.

Everything is computed from the sketches in the two files.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from labkit.formats import BF16, E4M3, E5M2, FP16, FP32, FP64, TF32, Format
from labkit.instrument.recording import Key, RecordedStep, layer_of
from labkit.instrument.sketch import DRAWN, Sketch
from labkit.testing.bound import arithmetic, sum_error, unit_roundoff

# How much one layer may amplify a relative difference.
AMPLIFICATION = 100.0
# How much an optimizer may amplify relative differences of single elements.
OF_UPDATES = 30.0
# Norms in the short form of a sketch differ by less than this from rounding to it alone.
CUT_NORM = 2.0**-6
# Below this share of the largest gradient, all of a gradient may be rounding.
NOISE = 2.0**-16
# A layer is judged as if it added at least this many terms.
LEAST_TERMS = 64
# The terms of a sum whose length is not recorded.
UNKNOWN_TERMS = 4096
# The distance of two tensors with different bits is not less, even if their sketches agree.
LEAST_DISTANCE = 2.0**-40
FORMATS_OF = {
    "float64": FP64,
    "float32": FP32,
    "float16": FP16,
    "bfloat16": BF16,
    "float8_e4m3fn": E4M3,
    "float8_e5m2": E5M2,
}
# The settings that choose the format of operands in FP32 products.
SETTINGS = ("FP32 matmul", "FP32 conv", "FP32 rnn")


def distance(ours: Sketch, theirs: Sketch, *, same_scale: bool = True) -> float:
    """Return the relative distance of a tensor in two runs; NaN if the sizes differ.

    Args:
        ours: The tensor of the baseline.
        theirs: The tensor of the other run.
        same_scale: Whether both have the same loss scale, so that their bits can be compared.
    """
    if ours.size != theirs.size:
        return math.nan
    if ours.finite != theirs.finite:
        return math.inf
    if (same_scale and same_bits(ours, theirs)) or not ours.finite:
        return 0.0
    of_norms = _relative(ours.norm, theirs.norm)
    distances = [_relative(ours.largest, theirs.largest)]
    if _both_have_elements(ours, theirs):
        distances += [of_norms, elements_distance(ours, theirs)]
    else:
        # The short form has rounded norms, and no elements.
        if of_norms > CUT_NORM:
            distances.append(of_norms)
        drawn = min(ours.size, DRAWN)
        length = max(ours.norm, theirs.norm) * math.sqrt(drawn / max(ours.size, 1))
        if length:
            # A sum of elements with random signs differs by about the distance of the elements.
            distances.append(min(abs(ours.projection - theirs.projection) / length, 2.0))
    if same_scale:
        distances.append(LEAST_DISTANCE)
    return max(distances)


def same_bits(ours: Sketch, theirs: Sketch) -> bool:
    """Return whether two tensors have the same bits, as far as their sketches tell."""
    return (
        ours.digest == theirs.digest
        and ours.dtype == theirs.dtype
        and np.float32(ours.largest).tobytes() == np.float32(theirs.largest).tobytes()
        and np.float32(ours.projection).tobytes() == np.float32(theirs.projection).tobytes()
    )


def elements_distance(ours: Sketch, theirs: Sketch) -> float:
    """Return the relative distance of the drawn elements."""
    here = ours.elements.astype(np.float64)
    there = theirs.elements.astype(np.float64)
    length = max(float(np.linalg.norm(here)), float(np.linalg.norm(there)))
    return float(np.linalg.norm(here - there)) / length if length else 0.0


def _relative(one: float, other: float) -> float:
    """Return the difference of two numbers in units of the larger magnitude."""
    largest = max(abs(one), abs(other))
    return abs(one - other) / largest if largest else 0.0


def _both_have_elements(ours: Sketch, theirs: Sketch) -> bool:
    """Return whether both sketches hold the drawn elements, which the short form does not."""
    return len(ours.elements) == len(theirs.elements) > 0


def single_errors(ours: Sketch, theirs: Sketch) -> float:
    """Return the root mean square of the relative differences of single elements, at most 2.

    If the elements are not recorded and the bits differ, it is unknown, and 2 is returned.
    """
    if not _both_have_elements(ours, theirs):
        return 0.0 if same_bits(ours, theirs) else 2.0
    here = ours.elements.astype(np.float64)
    there = theirs.elements.astype(np.float64)
    size = np.maximum(np.abs(here), np.abs(there))
    each = np.abs(here - there) / np.where(size > 0, size, 1.0)
    return float(np.sqrt(np.mean(each**2)))


@lru_cache(maxsize=1024)
def error_of_sum(format: Format, terms: int) -> float:
    """Return the relative error of a sum that rounding explains, in any order.

    >>> error_of_sum(FP32, 64) == 64 * 2**-24
    False
    >>> 1e-6 < error_of_sum(FP32, 64) < 1e-5
    True
    """
    if format in (FP32, FP64):
        how = arithmetic(format)
    else:
        # Operands have the format, and sums are in FP32.
        how = arithmetic(FP32, multiplied_as=format)
    # The result is stored in the format, and functions such as exp have errors of a few units.
    stored = 8 * unit_roundoff(format)
    return float(sum_error(how, max(terms, LEAST_TERMS), np.array(1.0), extra=2)) + stored


def coarser(one: Format, other: Format) -> Format:
    """Return the format with fewer significant bits."""
    return one if one.precision <= other.precision else other


def format_of_settings(settings: Mapping[str, str]) -> Format:
    """Return the coarsest format that the settings of a run allow in FP32 products."""
    coarsest = FP32
    for name in SETTINGS:
        value = settings.get(name, "ieee")
        if value.startswith("tf32"):
            coarsest = coarser(coarsest, TF32)
        elif value.startswith("bf16"):
            coarsest = coarser(coarsest, BF16)
    return coarsest


@dataclass(frozen=True)
class Cell:
    """One tensor in one step of both runs.

    Attributes:
        step: The number of the step.
        key: Kind and name of the tensor in the baseline.
        distance: The relative distance; NaN if the shapes differ.
        allowed: The distance that rounding explains.
    """

    step: int
    key: Key
    distance: float
    allowed: float

    @property
    def units(self) -> float:
        """The distance in units of what rounding explains."""
        if math.isnan(self.distance):
            return math.nan
        if self.distance == 0:
            return 0.0
        return self.distance / self.allowed if self.allowed else math.inf

    @property
    def beyond(self) -> bool:
        """Whether rounding does not explain the distance."""
        return self.units > 1


@dataclass
class History:
    """What the bounds of a step take from earlier steps.

    Attributes:
        errors: Parameter -> the largest `single_errors` of its gradient so far.
    """

    errors: dict[str, float] = field(default_factory=dict)


def cells_of_step(
    ours: RecordedStep,
    theirs: RecordedStep,
    pairs: Mapping[Key, Key],
    format: Format,
    history: History,
) -> list[Cell]:
    """Return the tensors of a step in the order in which it makes them.

    Args:
        ours: The step of the baseline.
        theirs: The same step of the other run.
        pairs: The tensors' partners.
        format: The coarsest format that the settings allow in products.
        history: That of the earlier steps, to which this step is added.
    """
    both = _pairs_of_step(ours, theirs, pairs)
    same_scale = ours.scale == theirs.scale
    bounds = _StepBounds(both, format, history)
    cells = []
    for key, (here, there) in both.items():
        is_scaled = "gradient" in key[0]
        apart = distance(here, there, same_scale=same_scale or not is_scaled)
        # Weights are judged between two steps, by `labkit.testing.trainings.weights`.
        allowed = math.inf if key[0] == "weights" else bounds.allowed(key, apart)
        cells.append(Cell(ours.step, key, apart, allowed))
    return cells


def _pairs_of_step(
    ours: RecordedStep, theirs: RecordedStep, pairs: Mapping[Key, Key]
) -> dict[Key, tuple[Sketch, Sketch]]:
    """Return the sketches of the tensors that both runs have in a step."""
    both: dict[Key, tuple[Sketch, Sketch]] = {}
    for key, partner in pairs.items():
        here = ours.sketches.get(key)
        there = theirs.sketches.get(partner)
        if key[0] == "step gradients" and (here is not None or there is not None):
            # A run that has none has not changed its gradients after backward.
            here = here or ours.sketches.get(("weight gradients", key[1]))
            there = there or theirs.sketches.get(("weight gradients", partner[1]))
        if here is not None and there is not None:
            both[key] = here, there
    return both


class _StepBounds:
    """The distances that rounding explains in one step.

    A bound depends on the distances of the tensors before, so `allowed` is called for the tensors
    in the order in which the step makes them.

    Args:
        pairs: The sketches of each tensor in both runs.
        format: The coarsest format that the settings allow in products.
        history: That of the earlier steps, to which this step is added.
    """

    def __init__(
        self, pairs: Mapping[Key, tuple[Sketch, Sketch]], format: Format, history: History
    ) -> None:
        self.pairs = pairs
        self.history = history
        # The coarsest format so far.
        self.format = format
        # The largest distances so far of what layers were computed from, and of their gradients.
        self.forward = weights_distance(pairs, [key for key in pairs if key[0] == "weights"])
        self.backward = 0.0
        self.has_gradients = False

    def allowed(self, key: Key, apart: float) -> float:
        """Return the distance that rounding explains.

        Args:
            key: Kind and name of the tensor.
            apart: Its distance, NaN if the shapes differ.
        """
        kind, name = key
        for sketch in self.pairs[key]:
            self.format = coarser(self.format, FORMATS_OF.get(sketch.dtype, FP32))
        known = 0.0 if math.isnan(apart) else apart
        if kind == "inputs":
            self.forward = max(self.forward, known)
            return unit_roundoff(self.format) * 4
        if kind == "activations":
            return self._of_activation(name, known)
        if kind == "activation gradients":
            return self._of_activation_gradient(name, known)
        if kind == "weight gradients":
            return self._of_weight_gradient(name)
        if kind == "step gradients":
            return self._of_step_gradient(name)
        return self._of_update(name)

    def _of_activation(self, name: str, known: float) -> float:
        layer = layer_of(name)
        own = [k for k in self.pairs if k[0] == "weights" and _layer_of_parameter(k[1]) == layer]
        before = max(self.forward, weights_distance(self.pairs, own))
        self.forward = max(self.forward, known)
        self.backward = max(self.backward, self.forward)
        return error_of_sum(self.format, _terms(self.pairs, own)) + AMPLIFICATION * before

    def _of_activation_gradient(self, name: str, known: float) -> float:
        here, _ = self.pairs["activation gradients", name]
        error = error_of_sum(self.format, here.shape[-1] if here.shape else 1)
        before = self.backward
        cancelled = 1.0
        if not self.has_gradients:
            # The first gradient is that of the loss.
            cancelled = _cancelled_in_loss(here, self.pairs.get(("activations", name)))
            self.has_gradients = True
        self.backward = max(self.backward, known)
        return (error + AMPLIFICATION * before) * cancelled

    def _of_weight_gradient(self, name: str) -> float:
        here, there = self.pairs["weight gradients", name]
        of_output = self.pairs.get(("activation gradients", _layer_of_parameter(name)))
        if of_output is None:
            # The layers between this one and the loss were not recorded.
            gradients = [
                pair[0] for (kind, _), pair in self.pairs.items() if kind == "weight gradients"
            ]
            if here.largest < least_gradient(gradients):
                return math.inf
            error = error_of_sum(self.format, UNKNOWN_TERMS)
            return AMPLIFICATION * (error + max(self.backward, self.forward))
        error = error_of_sum(self.format, _rows(of_output[0]))
        allowed = error + AMPLIFICATION * self.backward
        if len(here.shape) > 1:
            return allowed
        # The gradient of a bias is a sum, whose error grows by as much as its terms cancel.
        length = min(here.norm, there.norm)
        return allowed * max(1.0, of_output[0].norm / length) if length else math.inf

    def _of_step_gradient(self, name: str) -> float:
        of_backward = self.pairs.get(("weight gradients", name))
        before = self.backward
        if of_backward is not None:
            before = max(distance(*of_backward), before)
        return error_of_sum(self.format, UNKNOWN_TERMS) + AMPLIFICATION * before

    def _of_update(self, name: str) -> float:
        here, there = self.pairs["updates", name]
        weight = self.pairs.get(("weights", name))
        stored = unit_roundoff(FORMATS_OF.get(here.dtype, FP32))
        length = min(here.norm, there.norm)
        if weight is not None and length > 0:
            # An update is recorded as the difference of two weights, which are rounded.
            stored *= 2 * max(1.0, weight[0].norm / length)
        gradient = self.pairs.get(("step gradients", name))
        if gradient is None:
            gradient = self.pairs.get(("weight gradients", name))
        # Without its gradient, any difference of single elements is possible.
        now = 2.0 if gradient is None else single_errors(*gradient)
        # The moments of an optimizer keep the errors of earlier gradients.
        errors = max(self.history.errors.get(name, 0.0), now)
        self.history.errors[name] = errors
        of_weight = 0.0 if weight is None else distance(*weight)
        return OF_UPDATES * (errors + of_weight) + 16 * unit_roundoff(FP32) + stored


def least_gradient(gradients: Iterable[Sketch]) -> float:
    """Return the magnitude below which gradients of a step are rounding errors."""
    return NOISE * max((each.largest for each in gradients if each.finite), default=0.0)


def _cancelled_in_loss(gradient: Sketch, output: tuple[Sketch, Sketch] | None) -> float:
    """Return how much smaller the gradient of a loss is than before the model fits its data.

    Args:
        gradient: The gradient of the last layer's output.
        output: This output in both runs, if it was recorded.
    """
    size = max(1.0, output[0].largest) if output is not None else 1.0
    if not (gradient.finite and gradient.largest):
        return 1.0
    return max(1.0, size / (_rows(gradient) * gradient.largest))


def _terms(both: Mapping[Key, tuple[Sketch, Sketch]], weights: Iterable[Key]) -> int:
    """Return how many products a layer adds for one number, from the shapes of its weights."""
    shapes = [both[key][0].shape for key in weights]
    return max((math.prod(shape[1:]) for shape in shapes), default=1)


def _rows(sketch: Sketch) -> int:
    """Return the number of rows of a tensor: the product of all sides but the last."""
    return max(math.prod(sketch.shape[:-1]), 1)


def _layer_of_parameter(name: str) -> str:
    """Return the name of the layer that has a parameter."""
    return name.rpartition(".")[0]


def weights_distance(both: Mapping[Key, tuple[Sketch, Sketch]], keys: Iterable[Key]) -> float:
    """Return the relative distance of several tensors, concatenated."""
    apart = 0.0
    length = 0.0
    for key in keys:
        here, there = both[key]
        each = distance(here, there)
        if math.isfinite(each) and here.finite:
            apart += (each * max(here.norm, there.norm)) ** 2
            length += max(here.norm, there.norm) ** 2
    return math.sqrt(apart / length) if length else 0.0
