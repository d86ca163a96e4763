"""In which format, and at which scale, are the operands of a layer's matrix products written?

Idea: a layer is three products: its output, the gradient of its input, the gradient of its weight. Only their operands
are 8 or 4 bits wide; sums, weights, optimizer and all that stands between two layers stay FP32. What the published
recipes differ in is a handful of values, so a recipe is a row.

Invariant: a row that exists is consistent; an inconsistent one is refused with the reason.

Source: arXiv:2209.05433 (FP8), NVIDIA Transformer Engine (delayed and current scaling, margin, `common/recipe`),
arXiv:2303.11257 (unit scaling), OCP Microscaling Formats 1.0, arXiv:2506.08027 (MXFP8), arXiv:2509.25149 (NVFP4),
arXiv:2412.19437 (blocks of 128).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from labkit.formats import E4M3, E5M2, MXFP8, NVFP4, BlockFormat, Format


class TensorScale(Enum):
    """Where the scale of a whole tensor comes from; one that a block has comes on top."""

    NONE = "none"  # 1, always
    CURRENT = "current"  # the tensor's own largest magnitude lands on the format's largest number
    DELAYED = "delayed"  # the largest magnitude of earlier steps does; 1 in the first
    UNIT = "unit"  # the layer's shape: a power of two that brings operands to size 1 when training begins


@dataclass(frozen=True)
class ProductFormat:
    """How the operands of a layer's products are written. They saturate; what holds inf or NaN is left as it is.

    forward               format of activations and weights, of numbers or of blocks
    gradient              format of gradients
    scale                 where the scale of a whole tensor comes from
    history               steps that a delayed scale looks back
    margin                a delayed scale is divided by 2^margin: room for magnitudes that grow from step to step
    scale_up              a block's power-of-two scale: rounded up, so that nothing saturates (arXiv:2506.08027), or
                          down, as OCP's text has it
    square_weights        a weight's blocks are square, so that it is the same numbers forward and backward
    stochastic_gradients  gradients are rounded stochastically
    hadamard              a weight's gradient: both operands are rotated by a random Hadamard matrix of 16 first
    last_in_fp32          the model's last layer stays FP32

    Raises:
        ValueError: the parts contradict each other.

    >>> ProductFormat(E4M3, E5M2, hadamard=True)
    Traceback (most recent call last):
    ...
    ValueError: square weights and a Hadamard matrix are for formats of blocks; forward is E4M3. Take forward=NVFP4.
    """

    forward: Format | BlockFormat
    gradient: Format | BlockFormat
    scale: TensorScale = TensorScale.CURRENT
    history: int = 16
    margin: int = 0
    scale_up: bool = True
    square_weights: bool = False
    stochastic_gradients: bool = False
    hadamard: bool = False
    last_in_fp32: bool = False

    def __post_init__(self) -> None:
        self._require_margin()
        for format in (self.forward, self.gradient):
            element = format.element if isinstance(format, BlockFormat) else format
            if not (element.signed and element.has_zero) or element.significand_bits > 8 or element.exponent_bits > 5:
                raise ValueError(f"operands have a sign, a zero and 8 bits or so; {format.name} has not. Take E4M3.")
        if isinstance(self.forward, BlockFormat) != isinstance(self.gradient, BlockFormat):
            raise ValueError(
                f"forward={self.forward.name} and gradient={self.gradient.name}: one is of blocks, the other is not."
            )
        if (self.square_weights or self.hadamard) and not isinstance(self.forward, BlockFormat):
            raise ValueError(
                "square weights and a Hadamard matrix are for formats of blocks; "
                f"forward is {self.forward.name}. Take forward=NVFP4."
            )
        if self.history < 1:
            raise ValueError(f"a delayed scale looks back 1 step or more; history is {self.history}")

    def _require_margin(self) -> None:
        if not isinstance(self.margin, int) or isinstance(self.margin, bool) or self.margin < 0:
            raise ValueError(f"margin: expected a whole number of 0 or more, got {self.margin!r}. Take margin=0.")
        if self.margin and self.scale is not TensorScale.DELAYED:
            raise ValueError(
                f"margin={self.margin}: expected scale=TensorScale.DELAYED, which alone leaves room for what grows, "
                f"got {self.scale}. Take margin=0."
            )
        for format in (self.forward, self.gradient):
            element = format.element if isinstance(format, BlockFormat) else format
            if float(element.max) / 2**self.margin < element.smallest_subnormal:
                raise ValueError(
                    f"margin: expected less than the powers of two that {element.name} spans, got {self.margin}, with "
                    "which every number is written as 0. Take margin=0."
                )

    @property
    def remembers(self) -> bool:
        """Whether a scale follows from earlier steps."""
        return self.scale in (TensorScale.DELAYED, TensorScale.UNIT)

    @property
    def needs_names(self) -> bool:
        """Whether something is kept for each weight, or done with one of them, so that all need names that last."""
        return self.scale is TensorScale.DELAYED or self.last_in_fp32

    @property
    def blocks(self) -> bool:
        """Whether blocks have scales of their own, along the axis that a product sums over."""
        return isinstance(self.forward, BlockFormat)


_NVFP4 = ProductFormat(NVFP4, NVFP4, square_weights=True, stochastic_gradients=True, hadamard=True, last_in_fp32=True)
PRODUCTS: dict[str, ProductFormat] = {
    "FP8 current": ProductFormat(E4M3, E5M2),
    "FP8 delayed": ProductFormat(E4M3, E5M2, TensorScale.DELAYED),
    "MXFP8": ProductFormat(MXFP8, MXFP8, TensorScale.NONE),
    "NVFP4": _NVFP4,
    "unit scaled": ProductFormat(E4M3, E4M3, TensorScale.UNIT),
}
