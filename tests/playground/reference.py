"""The playground's arithmetic from parts of the lab: `round_to`, `accumulate` and `advance`.

What is not a product of matrices is computed in FP64 and rounded once to the format of its result.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from labkit.amp.loss_scaling.scaler import ScalerConfig, ScalerState, advance, initial
from labkit.formats import E4M3, E5M2, FORMATS, FP16, FP32, Format, Rounding, round_to
from labkit.gemm import SEQUENTIAL_FP16, SEQUENTIAL_FP32, accumulate

Floats = NDArray[np.float64]
# Streams of random bits.
BATCHES = 2
ROUNDINGS = 3
BETA, BETA_SQUARE = 0.9, 0.999


def format_named(name: str) -> Format:
    """Return a known format, or that of a name such as e5m10."""
    if name in FORMATS:
        return FORMATS[name]
    exponent_bits, significand_bits = name.removeprefix("e").split("m")
    return Format(name, int(exponent_bits), int(significand_bits))


def nearest(values: Any, format: Format) -> Floats:
    return np.asarray(round_to(np.asarray(values, np.float64), format), np.float64)


def fp32(values: Any) -> Floats:
    return nearest(values, FP32)


# --- random bits ----------------------------------------------------------------------------------


def _mixed(keys: Any) -> NDArray[np.uint64]:
    """Return the last step of murmur3 of 32-bit numbers."""
    x = np.asarray(keys, np.uint64) & np.uint64(0xFFFFFFFF)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        x = ((x ^ (x >> np.uint64(shift))) * np.uint64(factor)) & np.uint64(0xFFFFFFFF)
    return np.asarray(x ^ (x >> np.uint64(16)))


def stream_key(*parts: int) -> int:
    key = 0
    for part in parts:
        key = int(_mixed(key + 0x9E3779B9 + part))
    return key


def random_bits(key: int, count: int) -> NDArray[np.int64]:
    numbers = np.arange(count, dtype=np.uint64) + np.uint64(0x9E3779B9)
    return _mixed(_mixed(numbers) ^ np.uint64(key)).astype(np.int64)


# --- sums -----------------------------------------------------------------------------------------


def product(
    a: Floats,
    b: Floats,
    c: Floats | None,
    formats: tuple[Format, Format],
    out: Format,
    narrow: bool,
) -> Floats:
    """Return A @ B + C, by the accumulator FP32 or `out`, rounded to `out`."""
    if narrow and out != FP32:
        assert out == FP16, "labkit.gemm has no other narrow accumulator"
    accumulator = SEQUENTIAL_FP16 if narrow and out == FP16 else SEQUENTIAL_FP32
    # Operands of unlike formats are values of FP32, which are summed to the same bits.
    alike = formats[0] == formats[1] or {*formats} == {E4M3, E5M2}
    start = None if c is None else torch.from_numpy(np.tile(c, (len(a), 1)))
    sums = accumulate(
        torch.from_numpy(a.astype(np.float32)),
        torch.from_numpy(b.astype(np.float32)),
        None if start is None else start.float(),
        accumulator,
        FP32,
        formats if alike else (FP32, FP32),
    )
    return nearest(sums.double().numpy(), out)


def in_order(values: Floats) -> Floats:
    """Return the sums [rows] of FP32 numbers [rows, columns], added from left to right."""
    ones = np.ones((values.shape[1], 1))
    return product(values, ones, None, (FP32, FP32), FP32, narrow=False)[:, 0]


def fused(x: Any, y: Any, z: Any, format: Format) -> Floats:
    """Return x * y + z of FP32 numbers, rounded once to a format.

    FP64 holds the product. Where the sum is inexact, its neighbour with an odd last bit is taken,
    which is no tie of the format.
    """
    terms = np.broadcast_arrays(np.asarray(x, np.float64) * np.asarray(y, np.float64), z)
    exact, other = (np.asarray(term, np.float64) for term in terms)
    total = exact + other
    part = total - exact
    missed = (exact - (total - part)) + (other - part)
    even = total.view(np.int64) & 1 == 0
    beside = np.nextafter(total, np.where(missed > 0, np.inf, -np.inf))
    inexact = np.isfinite(total) & (missed != 0) & even
    return nearest(np.where(inexact, beside, total), format)


# --- a training -----------------------------------------------------------------------------------


@dataclass
class Training:
    """A training as the page exports it before its first step, which is continued here.

    Attributes:
        problem: JSON, as problems.js has it.
        recipe: JSON, as recipe.js has it.
        method: JSON, as recipe.js has it.
        seed: The seed of the batches and of stochastic rounding.
        parameters: Weights [inputs, outputs] and biases [outputs], in turn.
        scaler: The state of the loss scaler.
        steps: The number of steps that were taken.
        updates: The number of steps that were not skipped.
        first: The optimizer's first state of each parameter: momentum, or the mean of Adam.
        second: Its second state: the mean square of Adam.
    """

    problem: dict[str, Any]
    recipe: dict[str, Any]
    method: dict[str, Any]
    seed: int
    parameters: list[Floats]
    scaler: ScalerState = field(init=False)
    steps: int = 0
    updates: int = 0
    first: dict[int, Floats] = field(default_factory=dict)
    second: dict[int, Floats] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.scaler = initial(self.config)
        if not self.recipe["master"]:
            self.parameters = [
                nearest(values, self.format("weights")) for values in self.parameters
            ]

    def format(self, part: str) -> Format:
        return format_named(self.recipe[part])

    @property
    def config(self) -> ScalerConfig:
        scaling = self.recipe["scaling"]
        return ScalerConfig(
            init_scale=1.0 if scaling == "none" else 2.0 ** self.recipe["log2_scale"],
            growth_interval=self.recipe["growth_interval"],
            dynamic=scaling == "dynamic",
        )

    # --- forward and backward ---------------------------------------------------------------------

    def batch(self) -> tuple[Floats, Floats]:
        inputs = self.problem["inputs"]
        targets = self.problem["targets"]
        if self.problem["batch"] == len(inputs):
            return inputs, targets
        key = stream_key(BATCHES, self.seed, self.steps)
        chosen = random_bits(key, self.problem["batch"]) % len(inputs)
        return inputs[chosen], targets[chosen]

    def operand(self, i: int) -> Floats:
        return nearest(
            nearest(self.parameters[i], self.format("weights")), self.format("activations")
        )

    def forward(self, inputs: Floats) -> list[Floats]:
        """Return what goes into each layer, and what comes out of the last."""
        shape = self.problem["shape"]
        format = self.format("activations")
        narrow = self.recipe["accumulator"] == "format"
        states = [nearest(inputs, format)]
        last = len(self.parameters) // 2 - 1
        for layer in range(last + 1):
            weight = self.operand(2 * layer)
            bias = self.operand(2 * layer + 1)
            out = product(states[-1], weight, bias, (format, format), format, narrow)
            if layer == last:
                out = nearest(out * shape["unit"], format)
            elif shape["activation"] == "tanh":
                out = nearest(np.tanh(out), format)
            else:
                out = np.where(out < 0, 0, out)
            states.append(out)
        return states

    def loss(self, out: Floats, targets: Floats) -> tuple[float, Floats]:
        """Return the loss, and the derivative of the scaled loss by the outputs."""
        kind = self.problem["shape"]["loss"]
        if kind == "classes":
            total, slopes = _class_loss(out, targets.astype(int))
        else:
            slopes = fp32(out - targets.reshape(out.shape))
            row = slopes.reshape(1, -1)
            total = product(row, row.T, None, (FP32, FP32), FP32, narrow=False)[0, 0]
        terms = {"mean": out.size, "sum": 1, "classes": len(out)}[kind]
        share = fp32(self.scaler.scale * (1 if kind == "classes" else 2) / terms)
        return float(fp32(total / terms)), nearest(share * slopes, self.format("gradients"))

    def backward(self, states: list[Floats], slopes: Floats) -> list[Floats]:
        shape = self.problem["shape"]
        state_format = self.format("activations")
        format = self.format("gradients")
        narrow = self.recipe["accumulator"] == "format"
        found: list[Floats] = []
        slopes = nearest(slopes * shape["unit"], format)
        for layer in reversed(range(len(self.parameters) // 2)):
            state = states[layer]
            ones = np.ones((1, len(slopes)))
            bias = product(ones, slopes, None, (E4M3, format), format, narrow)[0]
            weight = product(state.T, slopes, None, (state_format, format), format, narrow)
            found[:0] = [weight, bias]
            if layer == 0:
                break
            formats = (format, state_format)
            slopes = product(slopes, self.operand(2 * layer).T, None, formats, format, narrow)
            if shape["activation"] == "tanh":
                slopes = nearest(slopes * (1 - state * state), format)
            else:
                slopes = np.where(state > 0, slopes, 0)
        return found

    # --- steps ------------------------------------------------------------------------------------

    def step(self) -> dict[str, Any]:
        """Take a step; return its loss, its scale, and whether it was skipped."""
        inputs, targets = self.batch()
        states = self.forward(inputs)
        loss, slopes = self.loss(states[-1], targets)
        gradients = self.backward(states, slopes)
        found_inf = not all(np.isfinite(gradient).all() for gradient in gradients)
        if not found_inf:
            self.update(gradients)
        scale = self.scaler.scale
        self.scaler = advance(self.scaler, found_inf, self.config)
        self.steps += 1
        return {"loss": loss, "scale": scale, "skipped": found_inf}

    def update(self, gradients: list[Floats]) -> None:
        self.updates += 1
        reciprocal = fp32(1 / self.scaler.scale)
        sgd = self.method["kind"] == "SGD"
        key = stream_key(ROUNDINGS, self.seed, self.steps)
        for i, gradient in enumerate(gradients):
            unscaled = nearest(gradient * reciprocal, self.format("optimizer"))
            move = self.momentum(i, unscaled) if sgd else self.adam(i, unscaled)
            rate = -fp32(self.method["rate"]) if sgd else np.asarray(-1.0)
            self.parameters[i] = self.stored(fused(rate, move, self.parameters[i], FP32), key, i)

    def stored(self, values: Floats, key: int, i: int) -> Floats:
        """Return what is kept of a parameter until the next step."""
        if self.recipe["master"]:
            return values
        if self.recipe["rounding"] == "nearest":
            return nearest(values, self.format("weights"))
        bits = random_bits(stream_key(key, i), values.size).reshape(values.shape)
        rounded = round_to(values, self.format("weights"), Rounding.STOCHASTIC, random_bits=bits)
        return np.asarray(rounded, np.float64)

    def momentum(self, i: int, gradient: Floats) -> Floats:
        if self.method["momentum"] == 0:
            return gradient
        if i in self.first:
            format = self.format("optimizer")
            slower = nearest(self.first[i] * fp32(self.method["momentum"]), format)
            self.first[i] = nearest(slower + gradient, format)
        else:
            self.first[i] = gradient
        return self.first[i]

    def adam(self, i: int, gradient: Floats) -> Floats:
        format = self.format("optimizer")
        zeros = np.zeros_like(gradient)
        mean = nearest(self.first.get(i, zeros) * fp32(BETA), format)
        mean = fused(fp32(1 - BETA), gradient, mean, format)
        square = nearest(self.second.get(i, zeros) * fp32(BETA_SQUARE), format)
        square = fused(fp32(fp32(1 - BETA_SQUARE) * gradient), gradient, square, format)
        self.first[i], self.second[i] = mean, square
        rate = fp32(self.method["rate"] / (1 - BETA**self.updates))
        correction = fp32(np.sqrt(1 - BETA_SQUARE**self.updates))
        root = nearest(nearest(np.sqrt(square), format) / correction, format)
        return fp32(fp32(rate * mean) / nearest(root + fp32(self.method["epsilon"]), format))


def _class_loss(out: Floats, classes: NDArray[np.int64]) -> tuple[float, Floats]:
    """Return the sum of the cross-entropies, and p - y."""
    rows = np.arange(len(out))
    below = fp32(out - out.max(axis=1, keepdims=True))
    powers = fp32(np.exp(below))
    sums = in_order(powers)
    each = fp32(fp32(np.log(sums)) - below[rows, classes])
    slopes = fp32(powers / sums[:, None])
    slopes[rows, classes] = fp32(slopes[rows, classes] - 1)
    return float(in_order(each[None, :])[0]), slopes
