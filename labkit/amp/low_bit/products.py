"""Training with matrix products of 8- or 4-bit numbers, and the state of their scales.

A mode intercepts each call of a linear layer or a convolution, and computes it as products of
scaled, rounded operands. A layer has three products: its output in the forward pass, and the
gradients of its input and its weight in the backward pass. Each operand of each product is rounded
to the format of the recipe (`ProductFormat`), in blocks along the axis that the product sums over.

Some scales depend on earlier steps. A delayed scale needs the largest magnitudes of these steps,
unit scaling needs the size of the first gradient, and stochastic rounding needs the state of
its random generator. `ScaleMemory` stores them by the name of the weight, and a checkpoint includes
them. Magnitudes and scales stay on the device on which they were computed; only a checkpoint waits
for that device.

Invariant: the product of the rounded operands is added up in FP32, and divided once by the scales
of both tensors. An operand that holds inf or NaN makes its product NaN where it is used, so that
the step is skipped. A step's magnitudes are added to the history when the next step begins. A
forward pass without gradients changes no state.

Limits: products of two activations (attention) and embeddings stay in FP32. Of a recurrent layer,
the inputs, the weights and the gradient of the outputs are rounded, but its computations between
time steps are in FP32. Second derivatives and transforms of torch.func raise an error, because no
recipe defines how their operands are rounded.

Source: NVIDIA Transformer Engine, common/recipe/delayed_scaling.cu (a history of zeros keeps the
scale as it is).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import zip_longest
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from labkit.amp.loss_scaling.magnitudes import largest_magnitude
from labkit.amp.low_bit.operands import (
    ProductFormat,
    TensorScale,
    largest_in,
    rotate,
    round_saturating,
    round_tiles,
    tiled,
    untiled,
)
from labkit.amp.masters.without_master import restore
from labkit.formats import FP32, BlockFormat, Format
from labkit.gemm.product import run
from labkit.gemm.recurrent import RECURRENT
from labkit.modes import LabMode, body_of, break_graph, is_composite

# FP32 holds the product of two unit scales, a weight's and a gradient's, whose log2 is this or less
_LARGEST_UNIT_LOG2 = 100


class ScaleMemory:
    """What one engine remembers of earlier steps to compute its scales.

    Args:
        steps: number of steps that a history covers.
        device: the device on which stochastic rounding draws its random numbers.
        seed: seed of stochastic rounding.

    Attributes:
        loss_size: for unit scaling: the RMS of the first finite gradient that is not zero, times
            the square root of its layer's width; 0 before that gradient.
        generator: the random generator of stochastic rounding.
        backward_began: whether a backward pass has reached a layer, so that the next forward pass
            begins another step.
    """

    def __init__(self, steps: int, device: torch.device | str = "cpu", seed: int = 0) -> None:
        self.steps = steps
        self.loss_size = 0.0
        self.generator = torch.Generator(device).manual_seed(seed)
        self.backward_began = False
        # weight and operand -> the largest magnitudes of earlier steps, the oldest first
        self._history: dict[str, Tensor] = {}
        # weight and operand -> the largest magnitude in this step, and the format's largest number
        self._largest: dict[str, tuple[Tensor, float]] = {}
        # weight and operand -> the scale that follows from the history
        self._scales: dict[str, Tensor] = {}

    def scale(self, key: str, top: float) -> Tensor | float:
        """Return the scale that brings an operand's largest magnitude of earlier steps to `top`.

        Without earlier steps it is 1.
        """
        if key not in self._scales and key in self._history:
            # A loaded history has no scale yet. The host reads it, in the first step only.
            size = float(self._history[key].max())
            value = float(np.float32(min(top / size, FP32.max))) if size else 1.0
            self._scales[key] = torch.full((), value, device=self._history[key].device)
        return self._scales.get(key, 1.0)

    def record_largest(self, key: str, size: Tensor, top: float) -> None:
        """Record an operand's largest magnitude in this step.

        Args:
            key: the weight and the operand.
            size: the largest magnitude, a scalar on the operand's device.
            top: the number that the scale maps the largest magnitude to.
        """
        if key in self._largest:
            earlier_size, _ = self._largest[key]
            size = torch.maximum(earlier_size, size)
        self._largest[key] = (size, top)

    @torch.no_grad()
    def end_step(self) -> None:
        """Append this step's largest magnitudes to the history, if its backward pass has begun.

        The scale of an operand that was zero in all steps of the history stays as it is. An operand
        that was inf or NaN counts as zero: its step was skipped, and says nothing about the next.
        """
        if not self.backward_began:
            return
        # histories of one device, format and length are extended together
        groups: dict[tuple[torch.device, float, int], list[str]] = {}
        for key, (size, top) in self._largest.items():
            known = len(self._history[key]) if key in self._history else 0
            groups.setdefault((size.device, top, known), []).append(key)
        for (device, top, known), keys in groups.items():
            now = torch.stack([self._largest[key][0] for key in keys])[:, None]
            # inf in a history would make the scale 0, and every product NaN until it leaves
            now = now.nan_to_num(0.0, 0.0, 0.0)
            if known:
                before = torch.stack([self._history[key].to(device) for key in keys])
                now = torch.cat([before, now], 1)[:, -self.steps :]
            earlier = [self.scale(key, top) for key in keys]
            one = torch.ones((), device=device)
            kept = torch.stack(
                [scale.to(device) if isinstance(scale, Tensor) else one for scale in earlier]
            )
            largest = now.amax(1)
            scales = torch.where(largest > 0, quotient(top, largest), kept)
            for key, row, scale in zip(keys, now, scales, strict=True):
                self._history[key] = row
                self._scales[key] = scale
        self._largest = {}
        self.backward_began = False

    @property
    def history(self) -> dict[str, list[float]]:
        """The largest magnitudes of earlier steps, by weight and operand, on the host."""
        return {key: row.tolist() for key, row in self._history.items()}

    @history.setter
    def history(self, values: Mapping[str, Sequence[float]]) -> None:
        devices = {key: scale.device for key, scale in self._scales.items()}
        self._history = {}
        for key, magnitudes in values.items():
            if len(magnitudes):
                device = devices.get(key, torch.device("cpu"))
                row = torch.tensor(list(magnitudes), device=device)
                # states of earlier versions have inf and NaN (see `end_step`)
                self._history[key] = row.nan_to_num(0.0, 0.0, 0.0)
        # `scale` computes the others from their history; a scale without one, or with a history of
        # zeros, stays as it is
        self._scales = {
            key: scale for key, scale in self._scales.items() if not any(values.get(key, ()))
        }

    def shared_state(self) -> dict[str, Any]:
        """Return the state that processes exchange: magnitudes of past steps, size of the loss."""
        self.end_step()
        return {"history": self.history, "loss_size": self.loss_size}

    def take_largest(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Replace each step's magnitude by the largest of all processes, so that states agree.

        Args:
            states: the `shared_state` of each process.
        """
        keys = dict.fromkeys(key for state in states for key in state["history"])
        history: dict[str, list[float]] = {}
        for key in keys:
            # the newest first, since histories may begin at different steps
            newest_first = [state["history"].get(key, ())[::-1] for state in states]
            steps = zip_longest(*newest_first, fillvalue=0.0)
            largest = [max(magnitudes) for magnitudes in steps]
            history[key] = largest[::-1]
        self.history = history
        self.loss_size = max(state["loss_size"] for state in states)

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Restore the state at the end of a block that runs a forward and a backward pass."""
        history = dict(self._history)
        scales = dict(self._scales)
        largest = dict(self._largest)
        loss_size = self.loss_size
        backward_began = self.backward_began
        random_state = self.generator.get_state()
        try:
            yield
        finally:
            self._history = history
            self._scales = scales
            self._largest = largest
            self.loss_size = loss_size
            self.backward_began = backward_began
            self.generator.set_state(random_state)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the scales, in plain values and tensors."""
        self.end_step()
        state = self.shared_state()
        # a history of zeros does not determine its scale, nor does none
        scales = {
            key: float(scale)
            for key, scale in self._scales.items()
            if key not in self._history or not self._history[key].any()
        }
        if scales:
            state["scales"] = scales
        state["generator"] = self.generator.get_state()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a `state_dict`; an invalid one raises an error, and nothing has changed then."""
        history = {
            str(key): [float(value) for value in values] for key, values in state["history"].items()
        }
        scales = {
            str(key): torch.tensor(float(value)) for key, value in state.get("scales", {}).items()
        }
        loss_size = float(state["loss_size"])
        restore(self.generator, state["generator"])
        self.history = history
        self.loss_size = loss_size
        self._largest = {}
        self.backward_began = False
        self._scales = scales


def quotient(top: float, sizes: Tensor) -> Tensor:
    """Return top / sizes in FP32, rounded once, and at most FP32's largest number, also for 0."""
    return torch.div(_number(top, sizes.device), sizes).clamp_(max=FP32.max)


@cache
def _number(value: float, device: torch.device) -> Tensor:
    """Return a number on a device.

    torch divides a number of the host by multiplying it by a reciprocal, which rounds twice.
    """
    return torch.full((), value, device=device)


class RoundedOperand(NamedTuple):
    """An operand of a product, scaled and rounded.

    Attributes:
        values: operand * scale, rounded to the operand's format, in FP32.
        scale: the factor of the whole tensor; a number if the host knows it, else a scalar on the
            operand's device.
    """

    values: Tensor
    scale: Tensor | float


class Layer:
    """One call of a layer, which `labkit.gemm.product` calls to compute its product A @ B.

    Args:
        products: the mode, which has the format of operands and the memory of scales.
        key: the key of the layer's weight in that memory.
        weight: the weight, whose shape determines a unit scale.
        op: the name of torch's function.

    Raises:
        RuntimeError: it is constructed inside a transform of torch.func.
    """

    def __init__(self, products: LowBitProducts, key: str, weight: Tensor, op: str) -> None:
        self.format = products.format
        self.memory = products.memory
        self.recipe = products.recipe
        self.key = key
        if torch._C._are_functorch_transforms_active():
            raise RuntimeError(
                self._unsupported("a plain call", "one inside a transform (grad, vmap, jacrev ...)")
            )
        # the roles of A and B: "input" or "weight"
        self.roles = ("input", "weight") if op == "linear" else ("weight", "input")
        transposed = "transpose" in op
        self.fan_in = weight.shape[0] if transposed else math.prod(weight.shape[1:])
        self.width = weight.shape[int(transposed)]
        # a forward pass without gradients changes no state
        self._records_magnitudes = torch.is_grad_enabled()

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        """Return A[g, m, k] @ B[g, k, n], differentiable."""
        product: Tensor = _LowBitProduct.apply(a, b, self)  # type: ignore[no-untyped-call]
        return product

    def require_first_derivative(self) -> None:
        """Refuse to differentiate a backward pass: the result would be wrong or incomplete."""
        if torch.is_grad_enabled():
            raise RuntimeError(
                self._unsupported(
                    "first derivatives", "create_graph=True, for derivatives of the gradient"
                )
            )

    def _unsupported(self, expected: str, got: str) -> str:
        """Return the message of an error about a use of the layer that no recipe defines."""
        return (
            f"recipe {self.recipe!r}: expected {expected} of layers whose operands are written in "
            f"{self.format.forward.name} and {self.format.gradient.name}, got {got}. How others "
            "would be scaled is not defined. Take recipe 'O1', 'BF16', or 'FP8', which casts alone."
        )

    def round_in_forward(self, tensor: Tensor, role: str) -> Tensor:
        """Return an input or a weight of a recurrent layer, rounded; its gradient is not rounded.

        Args:
            tensor: FP32 matrices, rounded along their last axis.
            role: "input" or "weight".
        """
        rounded: Tensor = _RoundInForward.apply(tensor, self, role)  # type: ignore[no-untyped-call]
        return rounded

    def round_in_backward(self, tensor: Tensor) -> Tensor:
        """Return the output of a recurrent layer unchanged; its gradient is rounded."""
        same: Tensor = _RoundInBackward.apply(tensor, self)  # type: ignore[no-untyped-call]
        return same

    def round_operand(
        self, tensor: Tensor, role: str, axis: int, *, rotated: bool = False
    ) -> RoundedOperand:
        """Scale and round an operand for one product.

        Args:
            tensor: FP32 matrices [..., rows, columns].
            role: "input", "weight" or "gradient".
            axis: the axis that the product sums over, -1 or -2.
            rotated: whether the operand is rotated along this axis first (`rotate`).
        """
        if role == "gradient":
            self.memory.backward_began = True
        elif not tensor.is_contiguous() and tensor.mT.is_contiguous():
            # A transposed view is rounded in the order of memory. -3 - axis is the other axis.
            values, scale = self._round_operand(tensor.mT, role, -3 - axis, rotated)
            return RoundedOperand(values.mT, scale)
        return self._round_operand(tensor, role, axis, rotated)

    def _round_operand(self, tensor: Tensor, role: str, axis: int, rotated: bool) -> RoundedOperand:
        format = self.format.forward
        generator: torch.Generator | None = None
        if role == "gradient":
            format = self.format.gradient
            if self.format.stochastic_gradients:
                generator = self.memory.generator
        if rotated:
            tensor = rotate(tensor, axis)
        if not tensor.numel():
            return RoundedOperand(tensor, 1.0)
        scale = self._scale(tensor, role, format)
        scaled = tensor if _is_one(scale) else tensor * scale
        if not isinstance(format, BlockFormat):
            rounded = round_saturating(scaled, format, generator)
            return RoundedOperand(self._with_non_finite(rounded, scaled), scale)
        # a block lies along the axis that the product sums over
        tile = (1, format.size) if axis == -1 else (format.size, 1)
        if role == "weight" and self.format.square_weights:
            tile = (format.size, format.size)
        tiles = tiled(scaled, tile)
        rounded = round_tiles(
            tiles,
            largest_in(tiles),
            format,
            scale_up=self.format.scale_up,
            # a current scale brings the largest magnitude into the range of a block's scale
            scales_fit=self.format.scale is TensorScale.CURRENT,
            generator=generator,
        )
        return RoundedOperand(untiled(self._with_non_finite(rounded, tiles), tensor.shape), scale)

    def _with_non_finite(self, rounded: Tensor, values: Tensor) -> Tensor:
        """Set NaN where an operand was inf or NaN, which saturation hides from the step's check.

        Args:
            rounded: the rounded operand, changed in place.
            values: the operand before it was rounded.
        """
        # such a scale is 0 if a magnitude is infinite, and 0 times inf is NaN already
        if self.format.scale is TensorScale.CURRENT:
            return rounded
        # 0 times inf or NaN is NaN, and 0 times any other number adds nothing
        return rounded.add_(values, alpha=0)

    def rounds_alike(self, role: str) -> bool:
        """Return whether an operand is rounded to the same numbers for both axes of summation."""
        return not self.format.blocks or (role == "weight" and self.format.square_weights)

    def _scale(self, tensor: Tensor, role: str, format: Format | BlockFormat) -> Tensor | float:
        """Return the FP32 number that multiplies a whole tensor.

        It is on the tensor's device unless the host knows it. A current scale that follows from inf
        is 0, and the product is NaN, so that the step is skipped.
        """
        kind = self.format.scale
        if kind is TensorScale.NONE:
            return 1.0
        if kind is TensorScale.UNIT:
            return self._unit_scale(tensor, role)
        if isinstance(format, BlockFormat):
            top = format.element.max * format.scale.max
        else:
            top = format.max
        size = largest_magnitude(tensor)
        if kind is TensorScale.CURRENT:
            return quotient(top, size)
        key = f"{self.key}:{role}"
        top = float(top) / 2**self.format.margin
        scale = self.memory.scale(key, top)
        if self._records_magnitudes or role == "gradient":
            self.memory.record_largest(key, size, top)
        return scale

    def _unit_scale(self, tensor: Tensor, role: str) -> float:
        """Return the power of two that brings an operand to size 1 when training begins."""
        if role == "input":
            return 1.0
        # a weight is of size fan_in^-1/2 when training begins
        if role == "weight":
            return 2.0 ** round(math.log2(self.fan_in) / 2)
        # A gradient is of size width^-1/2 times one number for the whole network, which the first
        # gradient determines.
        memory = self.memory
        root = math.sqrt(self.width)
        if not memory.loss_size:
            largest = float(largest_magnitude(tensor))
            # A gradient of zeros has no size. One with inf or NaN makes the product NaN.
            if not 0 < largest < math.inf:
                return 1.0
            # FP32 might not hold the squares of the gradient itself
            rms = float((tensor / largest).square().mean().sqrt()) * largest
            memory.loss_size = rms * root
        exponent = round(math.log2(root / memory.loss_size))
        return 2.0 ** max(-_LARGEST_UNIT_LOG2, min(exponent, _LARGEST_UNIT_LOG2))

    def operand_gradient(
        self, operand: int, other: RoundedOperand, gradient: Tensor, rounded: RoundedOperand | None
    ) -> Tensor:
        """Return the gradient of A or B, the product of the output's gradient and the other one.

        Args:
            operand: 0 for A: dD @ B^T, which sums over the columns of dD and B. 1 for B: A^T @ dD,
                which sums over the rows of A and dD.
            other: the other operand, as the forward pass saved it.
            gradient: dD, the gradient of the output.
            rounded: dD rounded, if that is the same for both axes of summation; None rounds it
                here.
        """
        axis = -1 - operand
        rotated = self.format.hadamard and self.roles[operand] == "weight"
        if rounded is None:
            rounded = self.round_operand(gradient, "gradient", axis, rotated=rotated)
        role = self.roles[1 - operand]
        if not self.rounds_alike(role):
            other = self.round_operand(other.values, role, axis, rotated=rotated)
        transposed = RoundedOperand(other.values.mT, other.scale)
        if operand == 0:
            return _multiplied(rounded, transposed)
        return _multiplied(transposed, rounded)


class _LowBitProduct(torch.autograd.Function):
    """D[g,m,n] = A[g,m,k] @ B[g,k,n]; dA = dD @ B^T sums over n, dB = A^T @ dD over m."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, layer: Layer) -> Tensor:
        rounded_a = layer.round_operand(a, layer.roles[0], -1)
        rounded_b = layer.round_operand(b, layer.roles[1], -2)
        ctx.layer = layer
        ctx.scales = (rounded_a.scale, rounded_b.scale)
        # Backward sums over another axis. It needs the original operand unless the operand is
        # rounded to the same numbers for both axes.
        saved_a = rounded_a.values if layer.rounds_alike(layer.roles[0]) else a
        saved_b = rounded_b.values if layer.rounds_alike(layer.roles[1]) else b
        ctx.save_for_backward(saved_a, saved_b)
        return _multiplied(rounded_a, rounded_b)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        layer: Layer = ctx.layer
        layer.require_first_derivative()
        # activation checkpointing returns the saved tensors only once
        saved_a, saved_b = ctx.saved_tensors
        scale_a, scale_b = ctx.scales
        gradient = gradients[0]
        # A gradient in blocks depends on the axis of summation, so each product rounds its own.
        rounded: RoundedOperand | None = None
        if not layer.format.blocks:
            rounded = layer.round_operand(gradient, "gradient", -1)
        of_a: Tensor | None = None
        of_b: Tensor | None = None
        if ctx.needs_input_grad[0]:
            of_a = layer.operand_gradient(0, RoundedOperand(saved_b, scale_b), gradient, rounded)
        if ctx.needs_input_grad[1]:
            of_b = layer.operand_gradient(1, RoundedOperand(saved_a, scale_a), gradient, rounded)
        return of_a, of_b, None


class _RoundInForward(torch.autograd.Function):
    """Round an input or a weight in the forward pass; backward returns the gradient unchanged."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, layer: Layer, role: str) -> Tensor:
        return _unscaled(layer.round_operand(tensor, role, -1))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return gradients[0], None, None


class _RoundInBackward(torch.autograd.Function):
    """Return an output unchanged in the forward pass; backward rounds its gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, layer: Layer) -> Tensor:
        ctx.layer = layer
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ctx.layer.require_first_derivative()
        return _unscaled(ctx.layer.round_operand(gradients[0], "gradient", -1)), None


def _unscaled(operand: RoundedOperand) -> Tensor:
    """Return an operand's values divided by its scale."""
    if _is_one(operand.scale):
        return operand.values
    return operand.values / operand.scale


def _multiplied(one: RoundedOperand, two: RoundedOperand) -> Tensor:
    """Return the product of two operands, divided by both scales."""
    product = one.values @ two.values
    scale = one.scale * two.scale
    return product if _is_one(scale) else product.div_(scale)


def _is_one(scale: Tensor | float) -> bool:
    """Return whether a scale is 1, as far as the host knows without waiting for a device."""
    return isinstance(scale, float) and scale == 1


# names of torch's functions whose product is computed here
LAYERS = frozenset(f"conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3)) | {"linear"}


class LowBitProducts(LabMode):
    """The mode of one engine, and the state of its scales.

    Args:
        format: the formats and scales of operands.
        model: the model. Its last layer, in the order of its modules, may stay FP32; embeddings do
            not count, since they multiply nothing.
        names: the names of the model's parameters, by which the state of layers is stored.
        seed: seed of stochastic rounding.
        recipe: the recipe's name in error messages.
    """

    def __init__(
        self,
        format: ProductFormat,
        model: nn.Module,
        names: Mapping[nn.Parameter, str],
        seed: int,
        recipe: str,
    ) -> None:
        super().__init__()
        self.format = format
        self.names = names
        self.recipe = recipe
        device = next((p.device for p in names), torch.device("cpu"))
        self.memory = ScaleMemory(
            format.history, device if format.stochastic_gradients else "cpu", seed
        )
        layers = [
            part for part in model.modules() if not isinstance(part, nn.Embedding | nn.EmbeddingBag)
        ]
        weights = [p for part in layers for p in part.parameters(recurse=False) if p.dim() > 1]
        self._last = [names[p] for p in weights[-1:]] if format.last_in_fp32 else []

    def begin_forward(self) -> Self:
        """End the step before, if its backward pass has begun, and return the mode to enter."""
        self.memory.end_step()
        return self

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Any = None,
    ) -> Any:
        break_graph()
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in RECURRENT:
            return self._recurrent(func, args, kwargs)
        if name not in LAYERS:
            if not is_composite(func):
                return func(*args, **kwargs)
            with self:
                return body_of(func)(*args, **kwargs)
        input = args[0] if args else kwargs["input"]
        weight = args[1] if len(args) > 1 else kwargs["weight"]
        key = self._key(weight, name)
        in_fp32 = input.dtype == torch.float32 and weight.dtype == torch.float32
        if key in self._last or weight.dim() < 2 or not in_fp32:
            return func(*args, **kwargs)
        return run(func, args, kwargs, Layer(self, key, weight, name))

    def _key(self, weight: Tensor, op: str) -> str:
        """Return the key of a weight's state: its name, or the shape of a computed weight."""
        if isinstance(weight, nn.Parameter) and weight in self.names:
            return self.names[weight]
        return f"{op} {tuple(weight.shape)}"

    def _recurrent(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        """Call a recurrent layer with its inputs, its weights and its outputs' gradient rounded."""
        # the weights are the last sequence; the one before has the states of an LSTM
        place = max(index for index, arg in enumerate(args) if isinstance(arg, list | tuple))
        weights = args[place]
        is_last = any(self._key(weight, "recurrent") in self._last for weight in weights)
        if is_last or any(tensor.dtype != torch.float32 for tensor in (args[0], *weights)):
            return func(*args, **kwargs)
        layers: list[Layer] = []
        rounded_weights: list[Tensor] = []
        for weight in weights:
            # a bias is added in FP32
            if weight.dim() < 2:
                rounded_weights.append(weight)
                continue
            layer = Layer(self, self._key(weight, "recurrent"), weight, "recurrent")
            layers.append(layer)
            rounded_weights.append(layer.round_in_forward(weight, "weight"))
        # the scales of the input and of the outputs' gradient have the key of the first weight
        first = layers[0]
        rounded_args = list(args)
        rounded_args[0] = first.round_in_forward(args[0], "input")
        rounded_args[place] = rounded_weights
        out, *states = func(*rounded_args, **kwargs)
        return (first.round_in_backward(out), *states)
