"""Records of a watch: sampled steps, skips, sources of inf and NaN, and comparisons with FP32.

Idea: the effect of another format or scale, and the safe scales, follow from counts per binade. So
a report holds counts, and no tensor.

Invariant: the same counts give the same answers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from labkit.formats import Format
from labkit.instrument.histogram import ExponentHistogram

NOISE = 20  # binades: a gradient so far below the largest is rounding errors
KINDS = ("weights", "activations", "activation gradients", "weight gradients", "updates")
# kind -> name of a layer or parameter -> histogram
Histograms = Mapping[str, Mapping[str, ExponentHistogram]]


def trimmed(histogram: ExponentHistogram) -> ExponentHistogram:
    """Return the same counts without the empty binades at both ends."""
    used = np.flatnonzero(histogram.counts)
    first, last = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 0)
    lo = histogram.lo + first if len(used) else 0
    return ExponentHistogram(
        histogram.counts[first:last].copy(), lo, histogram.zeros, histogram.non_finite
    )


@dataclass(frozen=True)
class WatchedStep:
    """One sampled step.

    Attributes:
        step: its number, from 0, skipped ones included.
        scale: scale of its loss.
        histograms: kind -> name -> histogram; all gradients unscaled. Layers are named for
            activations, parameters for the rest.
        moves: parameter -> weights with a gradient, and those of them that are the same number
            after the step.
        memory: bytes: weights, master weights, gradients, optimizer state, activations (kept for
            backward).
        casts: "float32 to float16" -> casts inside the model, and the bytes that they wrote.
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


def with_gradient(histograms: Histograms) -> set[str]:
    """Return the parameters whose gradient is more than rounding errors.

    A bias before a batch norm has only rounding errors, for instance.
    """
    tops = {name: h.top for name, h in histograms.get("weight gradients", {}).items()}
    return {name for name, top in tops.items() if top > max(tops.values()) - NOISE}


@dataclass(frozen=True)
class Skip:
    """A step that a scaler or an engine did not take."""

    step: int
    scale: float
    culprits: tuple[str, ...]  # parameters whose gradients held inf or NaN
    why: str


@dataclass(frozen=True)
class NonFinite:
    """Where inf or NaN came from in a step, found by replaying it.

    Attributes:
        layer: "" outside of any; of an input or a weight, its name.
        op: the operation.
        direction: "forward", "backward", "input", "weight" or "after the model".
        value: "inf" or "NaN".
        largest: the largest finite |value| among the operation's inputs.
        by_scale: whether nothing is inf or NaN in the gradients divided by the scale.
        line: file and line of the user's code in the forward pass, if known.
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
        where = {
            "forward": f"{self.op} in the forward pass of {self.layer or 'the model'}",
            "backward": f"{self.op} in the backward pass of {self.layer or 'the model'}",
            "input": f"{self.op} that the model got",
            "weight": f"the weight {self.layer}, before the step",
        }.get(self.direction, self.op)
        return f"{self.value} from {where}; largest finite value before it {self.largest:.3g}"


@dataclass(frozen=True)
class AgainstFP32:
    """A step's gradients beside those of the same step in FP32.

    Attributes:
        lost: kind -> name -> elements that are zero here and not in FP32, elements that are not
            zero in FP32.
        histograms: kind -> name -> the FP32 ones, unscaled.
        arrived: how many elements of the gradient at the model's outputs are not zero here, and how
            many there are.
        begins_at: "the model's outputs" (losses between the loss and them are not included) or "the
            loss".
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
        low: the least at which at most one in a thousand underflows.
        high: the largest at which none overflows.
    """

    low: int
    high: int

    @property
    def safe(self) -> bool:
        """Whether such a scale exists."""
        return self.low <= self.high


# binades below a tensor's largest number, where FP32 has no digit of a sum left
NOISE = 24


def without_noise(histogram: ExponentHistogram) -> ExponentHistogram:
    """Return a histogram without the numbers that are below 2^-24 of its largest.

    A gradient is a sum, and FP32 rounds it to 24 bits: where the exact sum is 0, noise of that size
    is left.

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


def window(histogram: ExponentHistogram, format: Format, tolerance: float = 1e-3) -> Window:
    """Return the safe scales for a histogram of unscaled gradients that are not all zero.

    Noise counts for none.

    >>> import torch
    >>> from labkit.formats import FP16
    >>> from labkit.instrument import exponent_histogram
    >>> window(exponent_histogram(torch.tensor([2.0**-10, 2.0**-30])), FP16)
    Window(low=5, high=25)
    """
    histogram = without_noise(histogram)
    exponents = histogram.lo + np.flatnonzero(histogram.counts)
    before = np.cumsum(histogram.counts[histogram.counts > 0])
    least = int(
        exponents[np.searchsorted(before, math.floor(tolerance * before[-1]), side="right")]
    )
    survives_from = format.emin - format.significand_bits - 1
    return Window(survives_from - least, format.emax - int(exponents[-1]))
