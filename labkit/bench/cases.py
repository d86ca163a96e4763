"""What is timed? Matrix products, convolutions and element-wise work, as values that know their own arithmetic.

Idea: from the shapes and the format of a case follow its FLOPs, the bytes it must at least move, and the ratio of the
two, its arithmetic intensity. That ratio says which ceiling a case can meet first, before anything is timed.

Invariant: a case names what was asked, never what was measured; what follows from it is a property, never stored.

Source: S. Williams, A. Waterman, D. Patterson, "Roofline", CACM 52(4), 2009, section 3: intensity counts the traffic
between memory and cache. Here each operand is counted once, which is the least there can be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from labkit.formats import BF16, E4M3, E5M2, FP16, FP32, TF32, Format

LAYOUTS = ("NN", "NT", "TN", "TT")


class Case(Protocol):
    """What every case can say of itself."""

    @property
    def format(self) -> Format:
        """The format of the operands."""
        ...

    @property
    def flops(self) -> int:
        """Additions and multiplications."""
        ...

    @property
    def bytes(self) -> int:
        """The least that must be read and written."""
        ...

    @property
    def label(self) -> str:
        """What it is, in a few words."""
        ...


def stored_bytes(format: Format) -> int:
    """Return the bytes of one element in memory.

    >>> stored_bytes(TF32), stored_bytes(E4M3)  # a Tensor Core reads 19 bits of an FP32 number
    (4, 1)
    """
    return 4 if format is TF32 else format.bits // 8


def output_format(format: Format) -> Format:
    """Return what a product of such operands is stored in.

    >>> output_format(FP16).name, output_format(TF32).name, output_format(E4M3).name
    ('FP16', 'FP32', 'BF16')
    """
    return {TF32: FP32, E4M3: BF16, E5M2: BF16}.get(format, format)


def intensity(case: Case) -> float:
    """Return FLOPs for each byte that must be moved.

    >>> round(intensity(GemmCase(4096, 4096, 4096)))  # n^3 work on n^2 data: n / 3 in FP16
    1365
    """
    return case.flops / case.bytes


@dataclass(frozen=True)
class GemmCase:
    """D[m,n] = A[m,k] @ B[k,n].

    layout   of A and B: N, rows contiguous as the formula writes them; T, stored transposed
    reduced  allow the accumulation in less than FP32 that torch offers (FP16: FP16 accumulators; BF16: BF16 between
             parts of a split k; FP8: fast accumulation); changes nothing for other formats, nor on a CPU
    about    what it stands for, where it stands for something
    kernel   who multiplies: "" is torch (cuBLAS on a GPU), else the name of a tile of our own kernel: see TILES

    Raises:
        ValueError: a size is below 1, there is no such layout, or FP8 is asked in shapes that torch does not multiply.

    >>> GemmCase(64, 32, 16).flops, GemmCase(64, 32, 16).bytes
    (65536, 7168)
    """

    m: int
    n: int
    k: int
    format: Format = FP16
    layout: str = "NN"
    reduced: bool = False
    about: str = ""
    kernel: str = ""

    def __post_init__(self) -> None:
        if min(self.m, self.n, self.k) < 1:
            raise ValueError(f"a product has sizes of 1 and more; it was given m={self.m}, n={self.n}, k={self.k}.")
        if self.layout not in LAYOUTS:
            raise ValueError(f"a layout is one of {', '.join(LAYOUTS)}; it was given {self.layout!r}.")
        if self.format in (E4M3, E5M2) and (self.layout != "NT" or self.n % 16 or self.k % 16):
            raise ValueError(
                f"{self.format.name} operands are multiplied in layout NT, with n and k multiples of 16; this is "
                f"{self.layout} with n={self.n}, k={self.k}. Take layout='NT' and pad."
            )

    @property
    def flops(self) -> int:
        """2mnk: a multiplication and an addition for each product."""
        return 2 * self.m * self.n * self.k

    @property
    def inputs(self) -> int:
        """Elements of A and B."""
        return self.m * self.k + self.k * self.n

    @property
    def bytes(self) -> int:
        """A and B read once, D written once."""
        return self.inputs * stored_bytes(self.format) + self.m * self.n * stored_bytes(output_format(self.format))

    @property
    def label(self) -> str:
        """For example "FP16 NT 64x32x16" (m, n, k)."""
        reduced = ", reduced accumulation" if self.reduced else ""
        kernel = f", Triton tiles {self.kernel}" if self.kernel else ""
        about = f" ({self.about})" if self.about else ""
        return f"{self.format.name} {self.layout} {self.m}x{self.n}x{self.k}{reduced}{kernel}{about}"


@dataclass(frozen=True)
class ConvCase:
    """A convolution with stride 1 that keeps height and width: [images, channels, height, width] -> filters.

    As a matrix product it has m = images * height * width, n = filters, k = channels * kernel^2.

    >>> ConvCase(1, 64, 56, 56, 64, 3).flops == GemmCase(56 * 56, 64, 64 * 9).flops
    True
    """

    images: int
    channels: int
    height: int
    width: int
    filters: int
    kernel: int = 3
    format: Format = FP16

    @property
    def gemm(self) -> GemmCase:
        """The matrix product with the same FLOPs."""
        return GemmCase(
            self.images * self.height * self.width, self.filters, self.channels * self.kernel**2, self.format
        )

    @property
    def flops(self) -> int:
        """Those of the matrix product; the border, where the filter meets padding, counts in full."""
        return self.gemm.flops

    @property
    def bytes(self) -> int:
        """Images and filters read once, the result written once: the matrix of the product is never stored."""
        pixels = self.images * self.height * self.width
        weights = self.filters * self.channels * self.kernel**2
        return stored_bytes(self.format) * (pixels * (self.channels + self.filters) + weights)

    @property
    def label(self) -> str:
        """For example "FP16 conv 3x3, 64 to 64 channels, 32 images of 56x56"."""
        return (
            f"{self.format.name} conv {self.kernel}x{self.kernel}, {self.channels} to {self.filters} channels, "
            f"{self.images} images of {self.height}x{self.width}"
        )


# Tensors read and written by each kernel of an op, and its FLOPs for each element.
PASSES: dict[str, tuple[tuple[int, ...], int]] = {
    "copy": ((2,), 0),
    "hardswish": ((2,), 4),  # one kernel
    "hardswish by hand": ((2, 2, 3, 2), 4),  # x + 3, clamp to 0..6, times x, over 6: four kernels
}


@dataclass(frozen=True)
class ElementwiseCase:
    """An op on each element: "copy", or the activation x * clamp(x + 3, 0, 6) / 6, fused or as four kernels.

    >>> fused, by_hand = ElementwiseCase("hardswish", 1000), ElementwiseCase("hardswish by hand", 1000)
    >>> by_hand.bytes / fused.bytes
    4.5
    """

    op: str
    elements: int
    format: Format = FP16

    def __post_init__(self) -> None:
        if self.op not in PASSES:
            raise ValueError(f"there is no op {self.op!r}; there are {', '.join(map(repr, PASSES))}.")

    @property
    def flops(self) -> int:
        """A few for each element."""
        return PASSES[self.op][1] * self.elements

    @property
    def bytes(self) -> int:
        """What all its kernels read and write."""
        return sum(PASSES[self.op][0]) * self.elements * stored_bytes(self.format)

    @property
    def label(self) -> str:
        """For example "FP16 copy, 1,048,576 elements"."""
        return f"{self.format.name} {self.op}, {self.elements:,} elements"


def linear_gemms(batch: int, inputs: int, outputs: int, format: Format = FP16) -> tuple[GemmCase, GemmCase, GemmCase]:
    """Return the three products of a linear layer: Y = X W^T, and backward dX = dY W and dW = dY^T X.

    The weight W[outputs, inputs] is stored as torch stores it.

    >>> [(case.m, case.n, case.k, case.layout) for case in linear_gemms(64, 300, 10)]
    [(64, 10, 300, 'NT'), (64, 300, 10, 'NN'), (10, 300, 64, 'TN')]
    """
    return (
        GemmCase(batch, outputs, inputs, format, "NT", about="Y of a linear layer"),
        GemmCase(batch, inputs, outputs, format, "NN", about="dX of a linear layer"),
        GemmCase(outputs, inputs, batch, format, "TN", about="dW of a linear layer"),
    )
