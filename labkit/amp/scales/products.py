"""How does a model train whose matrix products take 8- or 4-bit numbers?

Idea: a mode sees each layer's call, linear or convolution, and carries it out as products of scaled, rounded operands
(`ProductFormat`); autograd gets the two products of the backward pass, with operands written anew along the axis that
each of them sums over. What a scale has to remember is kept here by the weight's name, and is part of a checkpoint.

Invariant: a product is that of the written operands, added up in FP32, divided by the tensors' scales once. Looking (a
pass without gradients) changes no state.

What it does not do: products of two activations (attention) and embeddings stay FP32. A recurrent layer's inputs,
weights and the gradient of its outputs are written, but what happens between its steps is FP32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from labkit.amp.scales.operand_rounding import largest_in, round_saturating, round_tiles, tiled, untiled
from labkit.amp.scales.product_format import ProductFormat, TensorScale
from labkit.formats import FP32, BlockFormat, Format
from labkit.gemm.accumulated import run
from labkit.gemm.recurrent import RECURRENT
from labkit.modes import LabMode, body_of, break_graph, is_composite

LAYERS = frozenset(f"conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3)) | {"linear"}
ROTATED = 16  # numbers that a Hadamard matrix rotates at a time
# 16 random signs, drawn once (torch.manual_seed(0)): with the matrix they spread an outlier over 16 numbers.
_SIGNS = (-1.0, 1.0, 1.0, -1.0, 1.0, 1.0, 1.0, 1.0, 1.0, -1.0, -1.0, 1.0, 1.0, 1.0, -1.0, 1.0)


class Written(NamedTuple):
    """An operand as its product takes it: values of its format, and what they were multiplied by."""

    values: Tensor
    scale: float


class Products(LabMode):
    """The mode of one engine, and what its scales remember: per weight and operand, largest magnitudes by step.

    Args:
        format: how operands are written.
        names: the model's parameters by name: what a layer's state is kept under.
        seed: of stochastic rounding.
    """

    def __init__(self, format: ProductFormat, names: Mapping[nn.Parameter, str], seed: int = 0) -> None:
        super().__init__()
        self.format, self.names = format, names
        self.history: dict[str, list[float]] = {}
        self.largest: dict[str, float] = {}  # in this step
        self.loss_size = 0.0  # of UNIT: a gradient times the root of its layer's width, in the first backward pass
        device = next((p.device for p in names), torch.device("cpu"))
        self.generator = torch.Generator(device if format.stochastic_gradients else "cpu").manual_seed(seed)
        self.went_back = False  # a backward pass has come to a layer: the next region begins another step
        self._last = [name for p, name in names.items() if p.dim() > 1][-1:] if format.last_in_fp32 else []

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        break_graph()
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if name in RECURRENT:
            return self._recurrent(func, args, kwargs)
        if name not in LAYERS:
            if not is_composite(func):
                return func(*args, **kwargs)
            with self:
                return body_of(func)(*args, **kwargs)
        given, weight = (args[i] if len(args) > i else kwargs[key] for i, key in enumerate(("input", "weight")))
        key = self._key(weight, name)
        if key in self._last or weight.dim() < 2 or not given.dtype == weight.dtype == torch.float32:
            return func(*args, **kwargs)
        return run(func, args, kwargs, Layer(self, key, weight, name))

    def _key(self, weight: Tensor, op: str) -> str:
        """Return what a weight's state is kept under; one that was computed has no name, so its shape has to do."""
        name = self.names.get(weight) if isinstance(weight, nn.Parameter) else None
        return name or f"{op} {tuple(weight.shape)}"

    def _recurrent(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        """Call a recurrent layer on written inputs and weights; its outputs' gradient is written on the way back."""
        weights = next(a for a in args if isinstance(a, list | tuple) and any(isinstance(t, nn.Parameter) for t in a))
        if any(t.dtype != torch.float32 for t in (args[0], *weights)):
            return func(*args, **kwargs)
        layers = [Layer(self, self._key(w, "recurrent"), w, "recurrent") if w.dim() > 1 else None for w in weights]
        first = next(layer for layer in layers if layer is not None)
        written = [w if at is None else at.rewrite(w, "weight") for at, w in zip(layers, weights, strict=True)]
        given = [written if a is weights else a for a in args[1:]]
        out, *states = func(first.rewrite(args[0], "input"), *given, **kwargs)
        return (first.rewrite(out, "gradient"), *states)

    # --- what scales remember -----------------------------------------------------------------------------------------

    def earlier(self, key: str) -> float:
        """Return an operand's largest magnitude in earlier steps, 0 if there were none."""
        return max(self.history.get(key, ()), default=0.0)

    def begun(self) -> Products:
        """Return the mode, for the region of another forward pass to open."""
        self._end_step()
        return self

    def _end_step(self) -> None:
        """Append this step's largest magnitudes to the history, if its backward pass has begun."""
        if not self.went_back:
            return
        for key, largest in self.largest.items():
            self.history[key] = [*self.history.get(key, ()), largest][-self.format.history :]
        self.largest, self.went_back = {}, False

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Let a forward and a backward pass leave what the scales remember as it is."""
        kept = self.history.copy(), self.largest.copy(), self.loss_size, self.went_back
        random = self.generator.get_state()
        try:
            yield
        finally:
            self.history, self.largest, self.loss_size, self.went_back = kept
            self.generator.set_state(random)

    def state_dict(self) -> dict[str, Any]:
        """Return what the scales remember, in plain values and tensors."""
        self._end_step()
        return {
            "history": {key: list(values) for key, values in self.history.items()},
            "loss_size": self.loss_size,
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned; what cannot be read raises, and nothing has changed."""
        history = {str(key): [float(value) for value in values] for key, values in state["history"].items()}
        loss_size = float(state["loss_size"])
        self.generator.set_state(state["generator"].cpu())
        self.history, self.largest, self.loss_size, self.went_back = history, {}, loss_size, False


class Layer:
    """A layer's products, called by `labkit.gemm.accumulated` in place of a plain one."""

    def __init__(self, products: Products, key: str, weight: Tensor, op: str) -> None:
        self.products, self.format, self.key = products, products.format, key
        self.roles = ("input", "weight") if op == "linear" else ("weight", "input")  # of A and B
        transposed = "transpose" in op
        self.fan_in, self.width = weight.shape[0] if transposed else weight[0].numel(), weight.shape[int(transposed)]
        self._notes = torch.is_grad_enabled()

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        """Return A[g, m, k] @ B[g, k, n], differentiable."""
        product: Tensor = _Product.apply(a, b, self)  # type: ignore[no-untyped-call]
        return product

    def rewrite(self, tensor: Tensor, role: str) -> Tensor:
        """Return a tensor as it is written along its last axis; one with the role "gradient", as it is: its own is."""
        rewritten: Tensor = _Rewritten.apply(tensor, self, role)  # type: ignore[no-untyped-call]
        return rewritten

    def write(self, tensor: Tensor, role: str, axis: int, *, rotated: bool = False) -> Written:
        """Write an operand, "input", "weight" or "gradient", for a product that sums over `axis` (-1 or -2)."""
        if role == "gradient":
            self.products.went_back = True
        format = self.format.gradient if role == "gradient" else self.format.forward
        tensor = rotate(tensor, axis) if rotated else tensor
        if not tensor.numel():
            return Written(tensor, 1.0)
        tiles = tiled(tensor, self._tile(format, role, axis)) if isinstance(format, BlockFormat) else tensor
        largest = largest_in(tiles) if isinstance(format, BlockFormat) else tensor.abs().amax()
        size = float(largest.amax())
        if not math.isfinite(size):
            return Written(tensor, 1.0)  # so that the step finds it
        scale = self._scale(tensor, role, format, size)
        scaled = tiles if scale == 1 else tiles * scale
        random = self.products.generator if role == "gradient" and self.format.stochastic_gradients else None
        if not isinstance(format, BlockFormat):
            return Written(round_saturating(scaled, format, random), scale)
        up = self.format.scale_up
        rounded = round_tiles(scaled, largest * scale, format, scale_up=up, generator=random)
        return Written(untiled(rounded, tensor.shape), scale)

    def _tile(self, format: BlockFormat, role: str, axis: int) -> tuple[int, int]:
        """Return rows and columns of a block: along the axis that the product sums over, or square."""
        if role == "weight" and self.format.square_weights:
            return format.size, format.size
        return (1, format.size) if axis == -1 else (format.size, 1)

    def _scale(self, tensor: Tensor, role: str, format: Format | BlockFormat, size: float) -> float:
        """Return the FP32 number that a whole tensor is multiplied by."""
        kind = self.format.scale
        if kind is TensorScale.UNIT:
            return 2.0 ** self._log2_unit(tensor, role)
        if kind is TensorScale.DELAYED:
            key, now = f"{self.key}:{role}", size
            size = self.products.earlier(key)
            if self._notes or role == "gradient":
                self.products.largest[key] = max(now, self.products.largest.get(key, 0.0))
        if kind is TensorScale.NONE or size == 0:
            return 1.0
        top = format.element.max * format.scale.max if isinstance(format, BlockFormat) else format.max
        return float(np.float32(min(top / size, FP32.max)))

    def _log2_unit(self, tensor: Tensor, role: str) -> int:
        """Return the power of two that brings an operand near size 1, from the layer's shape.

        A weight is of size fan_in^-1/2, so that activations keep theirs; a gradient is then of size width^-1/2 times
        one number for the whole network, which the first backward pass tells.
        """
        if role == "input":
            return 0
        if role == "weight":
            return round(math.log2(self.fan_in) / 2)
        products, root = self.products, math.sqrt(self.width)
        if not products.loss_size:
            products.loss_size = float(tensor.square().mean().sqrt()) * root
        return round(math.log2(root / products.loss_size)) if products.loss_size else 0


class _Product(torch.autograd.Function):
    """D[g,m,n] = A[g,m,k] @ B[g,k,n]; dA = dD @ B^T sums over n, dB = A^T @ dD over m."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, layer: Layer) -> Tensor:
        one, two = layer.write(a, layer.roles[0], -1), layer.write(b, layer.roles[1], -2)
        ctx.layer, ctx.scales = layer, (one.scale, two.scale)
        ctx.save_for_backward(*((a, b) if layer.format.blocks else (one.values, two.values)))
        return _multiplied(one, two)

    @staticmethod
    @once_differentiable  # these products are not recorded, so a second derivative is refused rather than wrong
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        layer: Layer = ctx.layer
        operands = ctx.saved_tensors  # once: activation checkpointing hands them out a single time
        blocks, whole = layer.format.blocks, None if layer.format.blocks else layer.write(gradients[0], "gradient", -1)

        def of(operand: int) -> Tensor:
            """The gradient of A or B, from that of D and the other one, both written along what is summed over."""
            other, axis = 1 - operand, -1 - operand
            rotated = layer.format.hadamard and layer.roles[operand] == "weight"
            d = whole or layer.write(gradients[0], "gradient", axis, rotated=rotated)
            saved = operands[other]
            both = layer.write(saved, layer.roles[other], axis, rotated=rotated) if blocks else None
            values, scale = both or Written(saved, ctx.scales[other])
            transposed = Written(values.mT, scale)
            return _multiplied(transposed, d) if operand else _multiplied(d, transposed)

        return *(of(i) if ctx.needs_input_grad[i] else None for i in (0, 1)), None


class _Rewritten(torch.autograd.Function):
    """A recurrent layer's input or weight as it is written, or the gradient of its output."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, layer: Layer, role: str) -> Tensor:
        ctx.layer, ctx.role = layer, role
        return tensor.view_as(tensor) if role == "gradient" else _read(layer.write(tensor, role, -1))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        if ctx.role != "gradient":
            return gradients[0], None, None
        return _read(ctx.layer.write(gradients[0], "gradient", -1)), None, None


def _read(written: Written) -> Tensor:
    return written.values if written.scale == 1 else written.values / written.scale


def _multiplied(one: Written, two: Written) -> Tensor:
    """Multiply, then take both scales out again."""
    product = one.values @ two.values
    scale = one.scale * two.scale
    return product if scale == 1 else product.div_(scale)


def rotate(tensor: Tensor, axis: int) -> Tensor:
    """Multiply each 16 numbers along an axis by random signs and an orthogonal Hadamard matrix; zeros fill it up.

    Both operands of a product that are rotated along the axis it sums over have the same product as before.

    >>> one, two = torch.randn(2, 20), torch.randn(20, 3)
    >>> torch.allclose(rotate(one, -1) @ rotate(two, -2), one @ two, atol=1e-5)
    True
    """
    if axis == -1:
        return rotate(tensor.mT, -2).mT
    more = -tensor.shape[-2] % ROTATED
    full = F.pad(tensor, (0, 0, 0, more)) if more else tensor
    cut = full.unflatten(-2, (-1, ROTATED))
    rotated: Tensor = _rotation(tensor.device) @ cut
    return rotated.flatten(-3, -2)


@cache
def _rotation(device: torch.device) -> Tensor:
    matrix = torch.ones(1, 1, device=device)
    while len(matrix) < ROTATED:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix.mul(torch.tensor(_SIGNS, device=device)).div(math.sqrt(ROTATED))
