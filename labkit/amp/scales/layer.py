"""One layer's scaled, rounded products, forward and backward.

Each of a layer's three products takes operands that are written for it (`ProductFormat`), along the axis it sums over;
autograd gets the two of the backward pass.

Invariant: a product is that of the written operands, added up in FP32, divided by the tensors' scales once. An operand
that holds inf or NaN makes its product NaN where it is used, so that the step finds it.

What it does not do: second derivatives, and transforms of torch.func. No recipe says how their operands are written.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from labkit.amp.scales.memory import ScaleMemory, quotient
from labkit.amp.scales.operand_rounding import largest_in, round_saturating, round_tiles, tiled, untiled
from labkit.amp.scales.product_format import ProductFormat, TensorScale
from labkit.amp.scales.rotation import rotate
from labkit.amp.scaling.unscale import largest_magnitude
from labkit.formats import BlockFormat, Format


class Written(NamedTuple):
    """An operand as its product takes it: values of its format, and what they were multiplied by."""

    values: Tensor
    scale: Tensor | float


class Layer:
    """A layer's products, called by `labkit.gemm.accumulated` in place of a plain one.

    Args:
        format: how its operands are written.
        memory: what the scales of its model remember.
        key: what they remember of this layer stands under it.
        weight, op: from whose shape a unit scale follows.
        recipe: the name that a refusal says.

    Raises:
        RuntimeError: it is called inside a transform of torch.func, or its gradient is to be differentiated again.
    """

    def __init__(
        self, format: ProductFormat, memory: ScaleMemory, key: str, weight: Tensor, op: str, recipe: str
    ) -> None:
        self.format, self.memory, self.key, self.recipe = format, memory, key, recipe
        if torch._C._are_functorch_transforms_active():
            raise RuntimeError(self._unsupported("a plain call", "one inside a transform (grad, vmap, jacrev ...)"))
        self.roles = ("input", "weight") if op == "linear" else ("weight", "input")  # of A and B
        transposed = "transpose" in op
        self.fan_in, self.width = weight.shape[0] if transposed else weight[0].numel(), weight.shape[int(transposed)]
        self._notes = torch.is_grad_enabled()

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        """Return A[g, m, k] @ B[g, k, n], differentiable."""
        product: Tensor = _Product.apply(a, b, self)  # type: ignore[no-untyped-call]
        return product

    def require_first_derivative(self) -> None:
        """Refuse a backward pass whose results are to be differentiated: they would be wrong, or lack a part."""
        if torch.is_grad_enabled():
            raise RuntimeError(
                self._unsupported("first derivatives", "create_graph=True, for derivatives of the gradient")
            )

    def _unsupported(self, expected: str, got: str) -> str:
        return (
            f"recipe {self.recipe!r}: expected {expected} of layers whose operands are written in "
            f"{self.format.forward.name} and {self.format.gradient.name}, got {got}. How others would be "
            "scaled is not defined. Take recipe 'O1', 'BF16', or 'FP8', which casts alone."
        )

    def rewrite(self, tensor: Tensor, role: str) -> Tensor:
        """Return a tensor as it is written along its last axis; one with the role "gradient", as it is: its own is."""
        rewritten: Tensor = _Rewritten.apply(tensor, self, role)  # type: ignore[no-untyped-call]
        return rewritten

    def write(self, tensor: Tensor, role: str, axis: int, *, rotated: bool = False) -> Written:
        """Write an operand, "input", "weight" or "gradient", for a product that sums over `axis` (-1 or -2)."""
        if role == "gradient":
            self.memory.went_back = True
        elif not tensor.is_contiguous() and tensor.mT.is_contiguous():  # it is written as it lies
            values, scale = self._write(tensor.mT, role, -3 - axis, rotated)
            return Written(values.mT, scale)
        return self._write(tensor, role, axis, rotated)

    def _write(self, tensor: Tensor, role: str, axis: int, rotated: bool) -> Written:
        format = self.format.gradient if role == "gradient" else self.format.forward
        tensor = rotate(tensor, axis) if rotated else tensor
        if not tensor.numel():
            return Written(tensor, 1.0)
        random = self.memory.generator if role == "gradient" and self.format.stochastic_gradients else None
        scale = self._scale(tensor, role, format)
        scaled = tensor if _is_one(scale) else tensor * scale
        if not isinstance(format, BlockFormat):
            return Written(self._found(round_saturating(scaled, format, random), scaled), scale)
        tiles = tiled(scaled, self._tile(format, role, axis))
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
        """Make NaN of what was inf or NaN, and may have become the largest number; the step finds it.

        A current scale has done so already: with an infinite magnitude it is 0, and 0 times inf is NaN.
        """
        return rounded if self.format.scale is TensorScale.CURRENT else rounded.add_(values, alpha=0)

    def _random(self, role: str) -> torch.Generator | None:
        return self.memory.generator if role == "gradient" and self.format.stochastic_gradients else None

    def keeps(self, role: str) -> bool:
        """Say whether an operand is the same numbers in the backward pass, along whichever axis it is summed over."""
        return not self.format.blocks or (role == "weight" and self.format.square_weights)

    def _tile(self, format: BlockFormat, role: str, axis: int) -> tuple[int, int]:
        """Return rows and columns of a block: along the axis that the product sums over, or square."""
        if role == "weight" and self.format.square_weights:
            return format.size, format.size
        return (1, format.size) if axis == -1 else (format.size, 1)

    def _scale(self, tensor: Tensor, role: str, format: Format | BlockFormat) -> Tensor | float:
        """Return the FP32 number that a whole tensor is multiplied by, on its device unless the host knows it.

        If it follows from a magnitude that is inf, it is 0, and the product NaN: the step finds it.
        """
        kind = self.format.scale
        if kind is TensorScale.NONE:
            return 1.0
        if kind is TensorScale.UNIT:
            return 2.0 ** self._log2_unit(tensor, role)
        top = format.element.max * format.scale.max if isinstance(format, BlockFormat) else format.max
        size = largest_magnitude(tensor)
        if kind is TensorScale.CURRENT:
            return quotient(top, size)
        key, top = f"{self.key}:{role}", float(top) / 2**self.format.margin
        scale = self.memory.scale(key, top)
        if self._notes or role == "gradient":
            self.memory.note(key, size, top)
        return scale

    def _log2_unit(self, tensor: Tensor, role: str) -> int:
        """Return the power of two that brings an operand near size 1, from the layer's shape.

        A weight is of size fan_in^-1/2, so that activations keep theirs; a gradient is then of size width^-1/2 times
        one number for the whole network, which the first backward pass tells.
        """
        if role == "input":
            return 0
        if role == "weight":
            return round(math.log2(self.fan_in) / 2)
        memory, root = self.memory, math.sqrt(self.width)
        if not memory.loss_size:
            memory.loss_size = float(tensor.square().mean().sqrt()) * root
        return round(math.log2(root / memory.loss_size)) if memory.loss_size else 0


class _Product(torch.autograd.Function):
    """D[g,m,n] = A[g,m,k] @ B[g,k,n]; dA = dD @ B^T sums over n, dB = A^T @ dD over m."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, layer: Layer) -> Tensor:
        one, two = layer.write(a, layer.roles[0], -1), layer.write(b, layer.roles[1], -2)
        ctx.layer, ctx.scales = layer, (one.scale, two.scale)
        both = zip(layer.roles, (a, b), (one, two), strict=True)
        ctx.save_for_backward(*(written.values if layer.keeps(role) else given for role, given, written in both))
        return _multiplied(one, two)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        layer: Layer = ctx.layer
        layer.require_first_derivative()
        operands = ctx.saved_tensors  # once: activation checkpointing hands them out a single time
        whole = None if layer.format.blocks else layer.write(gradients[0], "gradient", -1)

        def of(operand: int) -> Tensor:
            """The gradient of A or B, from that of D and the other one, both written along what is summed over."""
            other, axis = 1 - operand, -1 - operand
            rotated = layer.format.hadamard and layer.roles[operand] == "weight"
            d = whole or layer.write(gradients[0], "gradient", axis, rotated=rotated)
            role, saved = layer.roles[other], operands[other]
            kept = Written(saved, ctx.scales[other]) if layer.keeps(role) else None
            values, scale = kept or layer.write(saved, role, axis, rotated=rotated)
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
        ctx.layer.require_first_derivative()
        return _read(ctx.layer.write(gradients[0], "gradient", -1)), None, None


def _read(written: Written) -> Tensor:
    return written.values if _is_one(written.scale) else written.values / written.scale


def _multiplied(one: Written, two: Written) -> Tensor:
    """Multiply, then take both scales out again."""
    product = one.values @ two.values
    scale = one.scale * two.scale
    return product if _is_one(scale) else product.div_(scale)


def _is_one(scale: Tensor | float) -> bool:
    """Whether the host knows that there is nothing to multiply by."""
    return isinstance(scale, float) and scale == 1
