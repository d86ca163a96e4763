"""Benchmark cases and sweeps: matrix products, convolutions and element-wise operations.

Idea: shapes and format of a case determine its FLOPs, the least bytes it must move, and their
ratio, its arithmetic intensity. The intensity predicts which ceiling limits the case. A sweep is a
name, a question, and cases that vary one property; their sizes follow from the device, so that a
sweep takes minutes on each.

Invariant: a case is a description without measurements; derived quantities are properties. `sweeps`
returns the same cases in the same order for the same device and extent.

Source: S. Williams, A. Waterman, D. Patterson, "Roofline", CACM 52(4), 2009, section 3: intensity
counts the traffic between memory and cache. This module counts each operand once, the lower bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from labkit.bench.triton_gemm import TILES
from labkit.formats import BF16, E4M3, E5M2, FP16, FP32, FP64, TF32, Format
from labkit.machine.device import DeviceReport

LAYOUTS = ("NN", "NT", "TN", "TT")


def stored_bytes(format: Format) -> int:
    """Return the bytes of one element in memory.

    >>> stored_bytes(TF32), stored_bytes(E4M3)  # a Tensor Core reads 19 bits of an FP32 number
    (4, 1)
    """
    return 4 if format is TF32 else format.bits // 8


def output_format(format: Format) -> Format:
    """Return the storage format of a product of operands in a format.

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

    Attributes:
        layout: layout of A and B: N, rows contiguous as the formula has them; T, transposed.
        reduced: allow torch's accumulation in less than FP32 (FP16: FP16 accumulators; BF16: BF16
            between parts of a split k; FP8: fast accumulation); no effect on other formats, or on a
            CPU.
        about: description of the product's use, or "".
        kernel: "" for torch (cuBLAS on a GPU), else the name of a tile of the lab's Triton kernel
            (see TILES).

    Raises:
        ValueError: a size is below 1, the layout is unknown, or torch does not multiply FP8 in
            these shapes.

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
            raise ValueError(f"expected sizes of 1 or more, got m={self.m}, n={self.n}, k={self.k}")
        if self.layout not in LAYOUTS:
            raise ValueError(f"expected a layout of {', '.join(LAYOUTS)}, got {self.layout!r}")
        if self.format in (E4M3, E5M2) and (self.layout != "NT" or self.n % 16 or self.k % 16):
            raise ValueError(
                f"expected layout NT, with n and k multiples of 16, for {self.format.name} "
                f"operands, got {self.layout} with n={self.n}, k={self.k}. Use layout='NT' and pad."
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
        return self.inputs * stored_bytes(self.format) + self.m * self.n * stored_bytes(
            output_format(self.format)
        )

    @property
    def label(self) -> str:
        """For example "FP16 NT 64x32x16" (m, n, k)."""
        reduced = ", reduced accumulation" if self.reduced else ""
        kernel = f", Triton tiles {self.kernel}" if self.kernel else ""
        about = f" ({self.about})" if self.about else ""
        return (
            f"{self.format.name} {self.layout} {self.m}x{self.n}x{self.k}{reduced}{kernel}{about}"
        )


@dataclass(frozen=True)
class ConvCase:
    """A convolution with stride 1 that keeps height and width.

    Its input is [images, channels, height, width].

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
            self.images * self.height * self.width,
            self.filters,
            self.channels * self.kernel**2,
            self.format,
        )

    @property
    def flops(self) -> int:
        """Those of the matrix product; the padded border counts in full."""
        return self.gemm.flops

    @property
    def bytes(self) -> int:
        """Images and filters read once, the result written once.

        The product's matrix is not stored.
        """
        pixels = self.images * self.height * self.width
        weights = self.filters * self.channels * self.kernel**2
        return stored_bytes(self.format) * (pixels * (self.channels + self.filters) + weights)

    @property
    def label(self) -> str:
        """For example "FP16 conv 3x3, 64 to 64 channels, 32 images of 56x56"."""
        return (
            f"{self.format.name} conv {self.kernel}x{self.kernel}, {self.channels} to "
            f"{self.filters} channels, {self.images} images of {self.height}x{self.width}"
        )


# Tensors read and written by each kernel of an op, and its FLOPs for each element.
PASSES: dict[str, tuple[tuple[int, ...], int]] = {
    "copy": ((2,), 0),
    "hardswish": ((2,), 4),  # one kernel
    # x + 3, clamp to 0..6, times x, over 6: four kernels
    "hardswish by hand": ((2, 2, 3, 2), 4),
}


@dataclass(frozen=True)
class ElementwiseCase:
    """An element-wise operation: "copy", or an activation, fused or as four kernels.

    The activation is x * clamp(x + 3, 0, 6) / 6.

    >>> fused = ElementwiseCase("hardswish", 1000)
    >>> by_hand = ElementwiseCase("hardswish by hand", 1000)
    >>> by_hand.bytes / fused.bytes
    4.5
    """

    op: str
    elements: int
    format: Format = FP16

    def __post_init__(self) -> None:
        if self.op not in PASSES:
            raise ValueError(f"expected an op of {', '.join(map(repr, PASSES))}, got {self.op!r}")

    @property
    def flops(self) -> int:
        """FLOPs of the op, a few for each element."""
        return PASSES[self.op][1] * self.elements

    @property
    def bytes(self) -> int:
        """Bytes that all its kernels read and write."""
        return sum(PASSES[self.op][0]) * self.elements * stored_bytes(self.format)

    @property
    def label(self) -> str:
        """For example "FP16 copy, 1,048,576 elements"."""
        return f"{self.format.name} {self.op}, {self.elements:,} elements"


# each has the properties format, flops, bytes and label
Case: TypeAlias = GemmCase | ConvCase | ElementwiseCase


def linear_gemms(
    batch: int, inputs: int, outputs: int, format: Format = FP16
) -> tuple[GemmCase, GemmCase, GemmCase]:
    """Return the three products of a linear layer: Y = X W^T, dX = dY W and dW = dY^T X.

    The weight W[outputs, inputs] is stored as torch stores it.

    >>> [(case.m, case.n, case.k, case.layout) for case in linear_gemms(64, 300, 10)]
    [(64, 10, 300, 'NT'), (64, 300, 10, 'NN'), (10, 300, 64, 'TN')]
    """
    return (
        GemmCase(batch, outputs, inputs, format, "NT", about="Y of a linear layer"),
        GemmCase(batch, inputs, outputs, format, "NN", about="dX of a linear layer"),
        GemmCase(outputs, inputs, batch, format, "TN", about="dW of a linear layer"),
    )


@dataclass(frozen=True)
class Sweep:
    """Cases that answer a question together."""

    name: str
    question: str
    cases: tuple[Case, ...]


@dataclass(frozen=True)
class Extent:
    """Sizes of the cases.

    Attributes:
        sizes: sides of square products.
        base: size of the product with one variable side, and of the product that sets the ceiling.
        batches: rows of the activations, in the batch sweep.
        layers: (batch, inputs, outputs) of linear layers.
        images: number of images of each convolution.
        elements: elements of element-wise operations, more than fit in any cache.
    """

    sizes: tuple[int, ...]
    base: int
    batches: tuple[int, ...]
    layers: tuple[tuple[int, int, int], ...]
    images: int
    elements: int


# Around a multiple of 128, the rows of a tile, one row more is one row of tiles more; that is why
# 1025 is there.
GPU = Extent(
    sizes=(128, 256, 512, 1024, 2048, 4096, 8192, 16384),
    base=4096,
    batches=(*range(128, 4097, 128), 1, 8, 16, 32, 64, 1025, 1032, 2049, 2056),
    layers=((4096, 1024, 4096), (16, 1024, 4096), (64, 300, 10)),
    images=32,
    elements=2**27,
)
GPU_SHORT = replace(  # takes three minutes and fits into 4 GiB
    GPU,
    sizes=(256, 512, 1024, 2048, 4096, 8192),
    base=2048,
    batches=(1, 8, 16, 32, 64, 128, 256, 512, 1024, 1025, 1032, 2048),
    images=16,
    elements=2**26,
)
CPU = Extent(
    sizes=(32, 64, 128, 256, 512, 1024, 2048),
    base=512,
    batches=(1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256),
    layers=((512, 256, 1024), (16, 256, 1024), (64, 300, 10)),
    images=2,
    elements=2**24,
)
QUICK = Extent(
    sizes=(16, 32), base=32, batches=(1, 8), layers=((16, 8, 8),), images=1, elements=2**12
)


def formats_on(report: DeviceReport) -> tuple[Format, ...]:
    """Return the operand formats to time on a device, widest first.

    >>> [format.name for format in formats_on(DeviceReport("cpu", "Some CPU", 0, 2))]
    ['FP64', 'FP32', 'BF16', 'FP16']
    """
    if report.kind == "cpu":
        return FP64, FP32, BF16, FP16
    special = tuple(
        format for format in (TF32, BF16, FP16, E4M3) if format.name in report.tensor_cores
    )
    return FP64, FP32, *(special or (FP16,))


def sweeps(report: DeviceReport, extent: Extent | None = None) -> dict[str, Sweep]:
    """Return every sweep for a device by its name, the most informative first.

    >>> list(sweeps(DeviceReport("cpu", "Some CPU", 0, 2)))
    ['ceilings', 'size', 'layers', 'bandwidth', 'alignment', 'batch', 'convolution']
    """
    size = extent or (CPU if report.kind == "cpu" else GPU)
    base = size.base
    formats = formats_on(report)
    plain = [f for f in formats if f in (FP32, BF16, FP16)]
    narrow = [f for f in formats if f in (FP32, TF32, BF16, FP16)]
    ops = ("copy", "hardswish", "hardswish by hand")
    near = range(base - 7, base)  # sizes below one that is a multiple of 8
    alignment = [gemm(base, base, k, f) for f in narrow for k in (*near, base)]
    alignment += [gemm(base, n, base, f) for f in narrow for n in near]
    shapes = ((64, 56), (256, 14), (512, 7)) if extent is not QUICK else ((4, 8),)
    convolutions = [ConvCase(size.images, c, s, s, c, 3, f) for c, s in shapes for f in narrow]
    # A long k is where an accumulator has most to lose.
    full = [
        gemm(base, base, k, f) for f in formats if f in (FP16, BF16, E4M3) for k in (base, 4 * base)
    ]
    large = [
        square(n, FP16) for n in [n for n in size.sizes if n >= 1024] or size.sizes[:1] if n <= 8192
    ]
    kernels = ("", *(tile.name for tile in TILES))
    rows = {
        "ceilings": (
            "How fast can this device multiply, and copy, at best?",
            ceilings(formats, size),
        ),
        "size": (
            "How large must a product be?",
            [square(n, f) for n in size.sizes for f in formats],
        ),
        "layers": (
            "What are the three products of a linear layer?",
            [case for layer in size.layers for f in narrow for case in linear_gemms(*layer, f)],
        ),
        "bandwidth": (
            "What does half the bytes gain where nothing is multiplied?",
            [ElementwiseCase(op, size.elements, f) for op in ops for f in plain],
        ),
        "alignment": ("What does a size gain that is a multiple of 8?", alignment),
        "batch": (
            "What does one row more cost?",
            [gemm(m, base, base, f) for f in plain for m in sorted(size.batches)],
        ),
        "convolution": (
            "Is a convolution as fast as the product that computes it?",
            [
                case
                for conv in convolutions
                for case in (conv, replace(conv.gemm, about="as the convolution above"))
            ],
        ),
        "accumulation": (
            "What does a narrower accumulator gain, and cost?",
            [case for row in full for case in (row, replace(row, reduced=True))],
        ),
        "kernel": (
            "How near to cuBLAS does a kernel come that a person can read?",
            [replace(case, kernel=kernel) for case in large for kernel in kernels],
        ),
    }
    # torch has another accumulator, and Triton compiles
    on_gpus = ("accumulation", "kernel")
    return {
        name: Sweep(name, question, tuple(cases))
        for name, (question, cases) in rows.items()
        if report.kind == "cuda" or name not in on_gpus
    }


def ceilings(formats: Sequence[Format], extent: Extent) -> tuple[Case, ...]:
    """Return the cases that set a device's ceilings: copies, and large products."""
    copies = [ElementwiseCase("copy", extent.elements, f) for f in formats if f in (FP32, FP16)]
    products = [square(n, f) for n in (extent.base, 2 * extent.base) for f in formats]
    return (*copies, *products)


def gemm(m: int, n: int, k: int, format: Format) -> GemmCase:
    """Return a product in the layout of Y = X W^T, the only one that FP8 has."""
    return GemmCase(m, n, k, format, "NT")


def square(n: int, format: Format) -> GemmCase:
    return gemm(n, n, n, format)
