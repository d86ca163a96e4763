"""Training with matrix products of 8- or 4-bit numbers, and the state of their scales.

A mode sees each layer's call, linear or convolution, and carries it out as products of scaled,
rounded operands. Each of a layer's three products takes operands that are written for it
(`ProductFormat`), along the axis it sums over; autograd gets the two of the backward pass. A
delayed scale needs the largest magnitudes of earlier steps, unit scaling one number of the first
backward pass, stochastic rounding its random numbers. All of it is kept by the weight's name
(`ScaleMemory`), and is part of a checkpoint. Magnitudes and scales stay on the device that they
were computed on; only a checkpoint waits for them.

Invariant: a product is that of the written operands, added up in FP32, divided by the tensors'
scales once. An operand that holds inf or NaN makes its product NaN where it is used, so that the
step finds it. A step's magnitudes join the history when the next step begins; looking, a pass
without gradients, changes no state.

What it does not do: products of two activations (attention) and embeddings stay FP32. A recurrent
layer's inputs, weights and the gradient of its outputs are written, but what happens between its
steps is FP32. Second derivatives and transforms of torch.func are refused: no recipe says how their
operands are written.

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

from labkit.amp.loss_scaling.unscale import largest_magnitude
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


class ScaleMemory:
    """The memory of one engine's scales.

    Args:
        steps: how many steps a history goes back.
        device: where the random numbers of stochastic rounding are drawn.
        seed: seed of stochastic rounding.
    """

    def __init__(self, steps: int, device: torch.device | str = "cpu", seed: int = 0) -> None:
        self.steps = steps
        # for unit scaling: a gradient's size in the first backward pass, times the root of its
        # layer's width
        self.loss_size = 0.0
        self.generator = torch.Generator(device).manual_seed(seed)
        # whether a backward pass has reached a layer, so that the next region begins another step
        self.went_back = False
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

    def note(self, key: str, size: Tensor, top: float) -> None:
        """Note an operand's largest magnitude in this step, a scalar on its device."""
        before = self._largest.get(key)
        self._largest[key] = (size if before is None else torch.maximum(before[0], size), top)

    @torch.no_grad()
    def end_step(self) -> None:
        """Append this step's largest magnitudes to the history, if its backward pass has begun."""
        if not self.went_back:
            return
        groups: dict[tuple[torch.device, float, int], list[str]] = {}
        for key, (size, top) in self._largest.items():
            known = len(self._history[key]) if key in self._history else 0
            groups.setdefault((size.device, top, known), []).append(key)
        # histories of one length, all at once
        for (device, top, known), keys in groups.items():
            now = torch.stack([self._largest[key][0] for key in keys])[:, None]
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
                self._history[key], self._scales[key] = row, scale
        self._largest = {}
        self.went_back = False

    @property
    def history(self) -> dict[str, list[float]]:
        """The largest magnitudes of earlier steps, by weight and operand, on the host."""
        return {key: row.tolist() for key, row in self._history.items()}

    @history.setter
    def history(self, values: Mapping[str, Sequence[float]]) -> None:
        devices = {key: scale.device for key, scale in self._scales.items()}
        self._history = {
            k: torch.tensor(list(v), device=devices.get(k, "cpu"))
            for k, v in values.items()
            if len(v)
        }
        self._scales = {
            key: scale for key, scale in self._scales.items() if not any(values.get(key, ()))
        }

    def remembered(self) -> dict[str, Any]:
        """Return the state that processes exchange: magnitudes of past steps, size of the loss."""
        self.end_step()
        return {"history": self.history, "loss_size": self.loss_size}

    def take_largest(self, every: Sequence[Mapping[str, Any]]) -> None:
        """Replace each step's magnitude by the largest of all processes, so that states agree."""
        keys = dict.fromkeys(key for each in every for key in each["history"])
        history: dict[str, list[float]] = {}
        for key in keys:
            # the newest first, since histories may begin at different steps
            newest_first = [each["history"].get(key, ())[::-1] for each in every]
            steps = zip_longest(*newest_first, fillvalue=0.0)
            largest = [max(magnitudes) for magnitudes in steps]
            history[key] = largest[::-1]
        self.history = history
        self.loss_size = max(each["loss_size"] for each in every)

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Run a forward and a backward pass without a change of the scales' state."""
        kept = (
            dict(self._history),
            dict(self._scales),
            dict(self._largest),
            self.loss_size,
            self.went_back,
        )
        random = self.generator.get_state()
        try:
            yield
        finally:
            self._history, self._scales, self._largest, self.loss_size, self.went_back = kept
            self.generator.set_state(random)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the scales, in plain values and tensors."""
        self.end_step()
        scales = {
            key: float(scale) for key, scale in self._scales.items() if not self._history[key].any()
        }
        # those that do not follow from their history, of zeros
        kept = {"scales": scales} if scales else {}
        return self.remembered() | kept | {"generator": self.generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a `state_dict`; an invalid one raises, and changes nothing."""
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
        self.went_back = False
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


class Written(NamedTuple):
    """An operand as its product reads it: values in its format, and their scale."""

    values: Tensor
    scale: Tensor | float


class Layer:
    """A layer's products, called by `labkit.gemm.product` in place of a plain one.

    Args:
        products: the mode, which knows how operands are written, and what the scales of its model
            remember.
        key: the key of this layer in that memory.
        weight, op: the weight and the operation whose shape determines a unit scale.

    Raises:
        RuntimeError: it is called inside a transform of torch.func, or its gradient is to be
            differentiated again.
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
        # the roles of A and B
        self.roles = ("input", "weight") if op == "linear" else ("weight", "input")
        transposed = "transpose" in op
        self.fan_in = weight.shape[0] if transposed else weight[0].numel()
        self.width = weight.shape[int(transposed)]
        self._notes = torch.is_grad_enabled()

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
        return (
            f"recipe {self.recipe!r}: expected {expected} of layers whose operands are written in "
            f"{self.format.forward.name} and {self.format.gradient.name}, got {got}. How others "
            "would be scaled is not defined. Take recipe 'O1', 'BF16', or 'FP8', which casts alone."
        )

    def rewrite(self, tensor: Tensor, role: str) -> Tensor:
        """Return a tensor as it is written along its last axis.

        With the role "gradient", the tensor is returned unchanged, and its gradient is written.
        """
        rewritten: Tensor = _Rewritten.apply(tensor, self, role)  # type: ignore[no-untyped-call]
        return rewritten

    def write(self, tensor: Tensor, role: str, axis: int, *, rotated: bool = False) -> Written:
        """Write an operand for a product that sums over `axis` (-1 or -2).

        Operands are "input", "weight" and "gradient".
        """
        if role == "gradient":
            self.memory.went_back = True
        elif not tensor.is_contiguous() and tensor.mT.is_contiguous():
            # a transposed view is written in the order of memory
            values, scale = self._write(tensor.mT, role, -3 - axis, rotated)
            return Written(values.mT, scale)
        return self._write(tensor, role, axis, rotated)

    def _write(self, tensor: Tensor, role: str, axis: int, rotated: bool) -> Written:
        format = self.format.gradient if role == "gradient" else self.format.forward
        if rotated:
            tensor = rotate(tensor, axis)
        if not tensor.numel():
            return Written(tensor, 1.0)
        random = (
            self.memory.generator
            if role == "gradient" and self.format.stochastic_gradients
            else None
        )
        scale = self._scale(tensor, role, format)
        scaled = tensor if _is_one(scale) else tensor * scale
        if not isinstance(format, BlockFormat):
            return Written(self._found(round_saturating(scaled, format, random), scaled), scale)
        square = role == "weight" and self.format.square_weights
        # the axis that the product sums over
        along = (1, format.size) if axis == -1 else (format.size, 1)
        tiles = tiled(scaled, (format.size, format.size) if square else along)
        rounded = round_tiles(
            tiles,
            largest_in(tiles),
            format,
            scale_up=self.format.scale_up,
            scales_fit=self.format.scale is TensorScale.CURRENT,
            generator=random,
        )
        return Written(untiled(self._found(rounded, tiles), tensor.shape), scale)

    def _found(self, rounded: Tensor, values: Tensor) -> Tensor:
        """Write NaN where the operand was inf or NaN, so that the step finds what saturation hides.

        A current scale has done so already: with an infinite magnitude it is 0, and 0 times inf is
        NaN.
        """
        if self.format.scale is TensorScale.CURRENT:
            return rounded
        # 0 times inf or NaN is NaN, and 0 times any other number adds nothing
        return rounded.add_(values, alpha=0)

    def keeps(self, role: str) -> bool:
        """Return whether an operand is rounded to the same numbers for both axes of summation."""
        return not self.format.blocks or (role == "weight" and self.format.square_weights)

    def _scale(self, tensor: Tensor, role: str, format: Format | BlockFormat) -> Tensor | float:
        """Return the FP32 number that multiplies a whole tensor.

        It is on the tensor's device unless the host knows it.

        If it follows from a magnitude that is inf, it is 0, and the product NaN: the step finds it.
        """
        kind = self.format.scale
        if kind is TensorScale.NONE or (kind is TensorScale.UNIT and role == "input"):
            return 1.0
        if kind is TensorScale.UNIT:
            # a weight is of size fan_in^-1/2 when training begins
            if role == "weight":
                return 2.0 ** round(math.log2(self.fan_in) / 2)
            # A gradient is of size width^-1/2 times one number for the whole network, which the
            # first gradient determines.
            memory = self.memory
            root = math.sqrt(self.width)
            if not memory.loss_size:
                memory.loss_size = float(tensor.square().mean().sqrt()) * root
            return 2.0 ** round(math.log2(root / memory.loss_size)) if memory.loss_size else 1.0
        top = (
            format.element.max * format.scale.max if isinstance(format, BlockFormat) else format.max
        )
        size = largest_magnitude(tensor)
        if kind is TensorScale.CURRENT:
            return quotient(top, size)
        key = f"{self.key}:{role}"
        top = float(top) / 2**self.format.margin
        scale = self.memory.scale(key, top)
        if self._notes or role == "gradient":
            self.memory.note(key, size, top)
        return scale


class _LowBitProduct(torch.autograd.Function):
    """D[g,m,n] = A[g,m,k] @ B[g,k,n]; dA = dD @ B^T sums over n, dB = A^T @ dD over m."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, layer: Layer) -> Tensor:
        written_a = layer.write(a, layer.roles[0], -1)
        written_b = layer.write(b, layer.roles[1], -2)
        ctx.layer = layer
        ctx.scales = (written_a.scale, written_b.scale)
        # Backward sums over another axis. It needs the original operand unless the operand is
        # rounded to the same numbers for both axes.
        saved_a = written_a.values if layer.keeps(layer.roles[0]) else a
        saved_b = written_b.values if layer.keeps(layer.roles[1]) else b
        ctx.save_for_backward(saved_a, saved_b)
        return _multiplied(written_a, written_b)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        layer: Layer = ctx.layer
        layer.require_first_derivative()
        # activation checkpointing returns the saved tensors only once
        operands = ctx.saved_tensors
        whole = None if layer.format.blocks else layer.write(gradients[0], "gradient", -1)

        def of(operand: int) -> Tensor:
            """Return the gradient of A (0) or B (1), from that of D and the other operand.

            Both are rounded along the axis that this product sums over.
            """
            other = 1 - operand
            axis = -1 - operand
            rotated = layer.format.hadamard and layer.roles[operand] == "weight"
            d = whole
            if d is None:
                d = layer.write(gradients[0], "gradient", axis, rotated=rotated)
            role = layer.roles[other]
            written = Written(operands[other], ctx.scales[other])
            if not layer.keeps(role):
                written = layer.write(operands[other], role, axis, rotated=rotated)
            transposed = Written(written.values.mT, written.scale)
            if operand == 0:
                return _multiplied(d, transposed)
            return _multiplied(transposed, d)

        of_a = of(0) if ctx.needs_input_grad[0] else None
        of_b = of(1) if ctx.needs_input_grad[1] else None
        return of_a, of_b, None


class _Rewritten(torch.autograd.Function):
    """A recurrent layer's input or weight, or the gradient of its output, rounded to its format."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, layer: Layer, role: str) -> Tensor:
        ctx.layer = layer
        ctx.role = role
        if role == "gradient":
            return tensor.view_as(tensor)
        return _unscaled(layer.write(tensor, role, -1))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        if ctx.role != "gradient":
            return gradients[0], None, None
        ctx.layer.require_first_derivative()
        return _unscaled(ctx.layer.write(gradients[0], "gradient", -1)), None, None


def _unscaled(written: Written) -> Tensor:
    if _is_one(written.scale):
        return written.values
    return written.values / written.scale


def _multiplied(one: Written, two: Written) -> Tensor:
    """Multiply, then divide by both scales."""
    product = one.values @ two.values
    scale = one.scale * two.scale
    return product if _is_one(scale) else product.div_(scale)


def _is_one(scale: Tensor | float) -> bool:
    """Return whether a scale is 1, as far as the host knows without waiting for a device."""
    return isinstance(scale, float) and scale == 1


LAYERS = frozenset(f"conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3)) | {"linear"}


class LowBitProducts(LabMode):
    """The mode of one engine, and the state of its scales.

    Args:
        format: how operands are written.
        model: the model. Its last layer, in the order of its modules, may stay FP32; embeddings
            do not count, since they multiply nothing.
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

    def begun(self) -> Self:
        """Return the mode, for the region of another forward pass to open."""
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
        given = args[0] if args else kwargs["input"]
        weight = args[1] if len(args) > 1 else kwargs["weight"]
        key = self._key(weight, name)
        if (
            key in self._last
            or weight.dim() < 2
            or not given.dtype == weight.dtype == torch.float32
        ):
            return func(*args, **kwargs)
        return run(func, args, kwargs, Layer(self, key, weight, name))

    def _key(self, weight: Tensor, op: str) -> str:
        """Return the key of a weight's state: its name, or the shape of a computed weight."""
        name = self.names.get(weight) if isinstance(weight, nn.Parameter) else None
        return name or f"{op} {tuple(weight.shape)}"

    def _recurrent(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        """Call a recurrent layer on written inputs and weights.

        Its outputs' gradient is written on the way back.
        """
        weights = next(
            a
            for a in args
            if isinstance(a, list | tuple) and any(isinstance(t, nn.Parameter) for t in a)
        )
        if any(t.dtype != torch.float32 for t in (args[0], *weights)):
            return func(*args, **kwargs)
        layers = [
            Layer(self, self._key(w, "recurrent"), w, "recurrent") if w.dim() > 1 else None
            for w in weights
        ]
        first = next(layer for layer in layers if layer is not None)
        written = [
            w if at is None else at.rewrite(w, "weight")
            for at, w in zip(layers, weights, strict=True)
        ]
        given = [written if a is weights else a for a in args[1:]]
        out, *states = func(first.rewrite(args[0], "input"), *given, **kwargs)
        return (first.rewrite(out, "gradient"), *states)
