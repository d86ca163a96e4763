"""Records of a watch: sampled steps, skips, sources of inf and NaN, and comparisons with FP32.

Idea: the effect of another format or scale, and the safe scales, follow from counts per binade. So
a report holds counts, and no tensor.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch

import labkit
from labkit.formats import FormatLike, as_format
from labkit.instrument.histogram import ExponentHistogram

# Binades below a tensor's largest number. A sum in FP32 has 24 significant bits, so a gradient that
# is further below the largest one consists of rounding errors.
NOISE = 24
KINDS = ("weights", "activations", "activation gradients", "weight gradients", "updates")
# kind -> name of a layer or parameter -> histogram
Histograms = Mapping[str, Mapping[str, ExponentHistogram]]


def trimmed(histogram: ExponentHistogram) -> ExponentHistogram:
    """Return the same counts without the empty binades at both ends."""
    occupied = np.flatnonzero(histogram.counts)
    if not len(occupied):
        return replace(histogram, counts=histogram.counts[:0].copy(), lo=0)
    first = int(occupied[0])
    end = int(occupied[-1]) + 1
    return replace(histogram, counts=histogram.counts[first:end].copy(), lo=histogram.lo + first)


@dataclass(frozen=True)
class Software:
    """The versions and the system with which a training ran.

    >>> print(Software("0.3.0", "2.13.0", "Linux"))
    labkit 0.3.0, torch 2.13.0, Linux
    """

    labkit: str
    torch: str
    system: str

    @staticmethod
    def here() -> Software:
        """Return those of this process."""
        return Software(labkit.__version__, str(torch.__version__), platform.system())

    def __str__(self) -> str:
        """Return the versions and the system in one line."""
        return f"labkit {self.labkit}, torch {self.torch}, {self.system}"


@dataclass(frozen=True)
class WatchedStep:
    """One sampled step.

    Attributes:
        step: number of the step, from 0; skipped steps count.
        scale: scale of the loss.
        histograms: kind -> name -> histogram of unscaled numbers. The names are those of layers for
            activations and their gradients, else those of parameters.
        moves: parameter -> (number of elements with a gradient, how many of these are the same
            number after the step). Under an engine with stochastic rounding, the latter is 0.
        memory: "weights", "master weights", "gradients", "optimizer state" or "activations" (those
            kept for backward) -> bytes.
        casts: "float32 to float16" -> (number of casts inside the model, bytes that they wrote).
        clipped: norm of the gradients of the step / norm after backward; 1 without clipping.
        half: the layers whose gradients arrived in FP16.
        lines: "backward", "clip" and "step" -> file and line of the user's code that called them.
    """

    step: int
    scale: float
    histograms: Histograms
    moves: Mapping[str, tuple[int, int]]
    memory: Mapping[str, int]
    casts: Mapping[str, tuple[int, int]]
    clipped: float = 1.0
    half: tuple[str, ...] = ()
    lines: Mapping[str, str] = field(default_factory=dict, compare=False)


def log2_of_scale(scale: float) -> float | None:
    """Return the exponent of a loss scale; None for a scale of 0, inf, NaN or below 0.

    >>> log2_of_scale(1024.0), log2_of_scale(math.inf)
    (10.0, None)
    """
    return math.log2(scale) if 0 < scale < math.inf else None


def with_gradient(histograms: Histograms) -> set[str]:
    """Return the parameters whose gradient is more than rounding errors.

    The gradient of a bias before a batch norm, for instance, is exactly zero, so what is left of it
    are rounding errors.
    """
    # a gradient of zeros has no largest exponent
    tops = {
        name: h.top
        for name, h in histograms.get("weight gradients", {}).items()
        if h.finite_non_zero
    }
    if not tops:
        return set()
    lowest = max(tops.values()) - NOISE
    return {name for name, top in tops.items() if top > lowest}


@dataclass(frozen=True)
class Skip:
    """A step that a scaler or an engine did not take.

    Attributes:
        step: number of the step.
        scale: scale of the loss.
        culprits: parameters whose gradients held inf or NaN.
        why: the reason, as a sentence.
    """

    step: int
    scale: float
    culprits: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class NonFinite:
    """The source of inf or NaN in a step, found by a replay of the step.

    Attributes:
        step: number of the step.
        layer: the layer, "" outside all layers; the name of the parameter if the source is a
            weight.
        op: the operation.
        direction: "forward", "backward", "input", "weight" or "after the model".
        value: "inf" or "NaN".
        largest: the largest finite |value| among the operation's inputs.
        by_scale: the scale is the cause: without it, the gradients hold neither inf nor NaN.
        line: file and line of the user's code in the forward pass; "" if unknown.
    """

    step: int
    layer: str
    op: str
    direction: str
    value: str
    largest: float
    by_scale: bool = False
    line: str = field(default="", compare=False)

    def __str__(self) -> str:
        """Return one sentence."""
        if self.direction in ("forward", "backward"):
            layer = self.layer or "the model"
            where = f"{self.op} in the {self.direction} pass of {layer}"
        elif self.direction == "input":
            where = f"{self.op} that the model got"
        elif self.direction == "weight":
            where = f"the weight {self.layer}, before the step"
        else:
            where = self.op
        return f"{self.value} from {where}; largest finite value before it {self.largest:.3g}"


@dataclass(frozen=True)
class AgainstFP32:
    """A step's gradients compared with those of the same step in FP32.

    Attributes:
        step: number of the step.
        lost: kind -> name -> (number of elements that are zero here and not in FP32, number of
            elements that are not zero in FP32).
        histograms: kind -> name -> histogram of the unscaled FP32 gradients.
        arrived: (number of non-zero elements, number of elements) of the gradient that arrived at
            the model's outputs.
        begins_at: where the FP32 gradients begin. "the loss", or "the model's outputs": then what
            underflowed between the loss and the outputs is not included.
    """

    step: int
    lost: Mapping[str, Mapping[str, tuple[int, int]]]
    histograms: Histograms
    arrived: tuple[int, int]
    begins_at: str


@dataclass(frozen=True)
class Window:
    """The scales, as powers of two, that keep a layer's gradients inside a format.

    Attributes:
        low: the smallest scale at which at most one gradient in a thousand underflows.
        high: the largest scale at which no gradient overflows.
    """

    low: int
    high: int

    @property
    def safe(self) -> bool:
        """Whether such a scale exists."""
        return self.low <= self.high


def without_noise(histogram: ExponentHistogram) -> ExponentHistogram:
    """Return a histogram without the numbers that are more than 24 binades below its largest.

    A gradient is a sum, which FP32 rounds to 24 bits: if the exact sum is 0, rounding errors of
    that size remain.

    >>> import torch
    >>> from labkit.instrument import exponent_histogram
    >>> without_noise(exponent_histogram(torch.tensor([1.0, 2.0**-24, 2.0**-25]))).finite_non_zero
    2
    """
    occupied = np.flatnonzero(histogram.counts)
    if not len(occupied):
        return histogram
    counts = histogram.counts.copy()
    counts[: max(0, int(occupied[-1]) - NOISE)] = 0
    return replace(histogram, counts=counts)


def window(histogram: ExponentHistogram, format: FormatLike, tolerance: float = 1e-3) -> Window:
    """Return the safe scales for a histogram of unscaled gradients that are not all zero.

    Which binades underflow and overflow is judged as in `fate`.

    Args:
        histogram: the gradients; those that `without_noise` removes do not count.
        format: the format that the scaled gradients are rounded to.
        tolerance: share of the gradients that may underflow at the smallest safe scale.

    Raises:
        ValueError: `tolerance` is not from 0 to below 1.

    >>> import torch
    >>> from labkit.formats import FP16
    >>> from labkit.instrument import exponent_histogram
    >>> window(exponent_histogram(torch.tensor([1.5 * 2.0**-10, 1.5 * 2.0**-30])), FP16)
    Window(low=5, high=25)
    """
    format = as_format(format)
    if not 0 <= tolerance < 1:
        raise ValueError(f"tolerance: expected a share from 0 to below 1, got {tolerance}")
    histogram = without_noise(histogram)
    occupied = np.flatnonzero(histogram.counts)
    exponents = histogram.lo + occupied
    # numbers in this binade and below
    cumulative = np.cumsum(histogram.counts[occupied])
    tolerated = math.floor(tolerance * cumulative[-1])
    # the first binade that is not tolerated to underflow
    least = int(exponents[np.searchsorted(cumulative, tolerated, side="right")])
    # the binade below the smallest subnormal rounds up to it
    survives_from = format.emin - format.significand_bits - 1
    return Window(low=survives_from - least, high=format.emax - int(exponents[-1]))
