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
from labkit.formats.arguments import require_kind
from labkit.machine.device import DeviceReport

LAYOUTS = ("NN", "NT", "TN", "TT")
# formats that torch multiplies
MULTIPLIED = (FP64, FP32, TF32, BF16, FP16, E4M3, E5M2)


def stored_bytes(format: Format) -> int:
    """Return the bytes of one element in memory.

    >>> stored_bytes(TF32), stored_bytes(E4M3)
    (4, 1)
    """
    # an operand in TF32 is an FP32 number, of which a Tensor Core reads 19 bits
    if format == TF32:
        return 4
    return format.bits // 8


def output_format(format: Format) -> Format:
    """Return the storage format of a product whose operands have a format.

    >>> output_format(FP16).name, output_format(TF32).name, output_format(E4M3).name
    ('FP16', 'FP32', 'BF16')
    """
    if format == TF32:
        return FP32
    if format in (E4M3, E5M2):
        return BF16
    return format


def intensity(case: Case) -> float:
    """Return the arithmetic intensity of a case: FLOPs for each byte that must be moved.

    For a square product of size n in FP16 it is n / 3.

    >>> round(intensity(GemmCase(4096, 4096, 4096)))
    1365
    """
    return case.flops / case.bytes


def _require_valid(format: Format, **sizes: int) -> None:
    """Raise an error unless torch computes in a format, and sizes are whole numbers from 1 on."""
    for name, size in sizes.items():
        require_kind(size, int, name)
    require_kind(format, Format, "format", "Pass a format such as labkit.formats.FP16")
    if min(sizes.values()) < 1:
        listed = ", ".join(f"{name}={size}" for name, size in sizes.items())
        raise ValueError(f"expected sizes of 1 or more, got {listed}")
    if format not in MULTIPLIED:
        known = ", ".join(each.name for each in MULTIPLIED)
        raise ValueError(f"expected a format of {known}, got {format.name}")


@dataclass(frozen=True)
class GemmCase:
    """D[m,n] = A[m,k] @ B[k,n].

    Attributes:
        format: format of A and B.
        layout: two letters, for A and for B. N: the rows, as in the formula, are contiguous. T: the
            columns are.
        reduced: allow torch to accumulate in less than FP32. FP16: in FP16; BF16: in BF16 between
            the parts of a split k; FP8: fast accumulation. It has no effect on other formats, or on
            a CPU.
        about: use of the product, or "".
        kernel: "" for torch (cuBLAS on a GPU), else the name of a tile of the lab's Triton kernel
            (see TILES).

    Raises:
        TypeError: a size is not a whole number, or the format is not a Format.
        ValueError: a size is below 1, the layout is unknown, or torch does not multiply in this
            format, or FP8 in these shapes.

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
        _require_valid(self.format, m=self.m, n=self.n, k=self.k)
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
        """Bytes to move if A and B are read once, and D is written once."""
        read = self.inputs * stored_bytes(self.format)
        written = self.m * self.n * stored_bytes(output_format(self.format))
        return read + written

    @property
    def label(self) -> str:
        """For example "FP16 NT 64x32x16" (m, n, k)."""
        text = f"{self.format.name} {self.layout} {self.m}x{self.n}x{self.k}"
        if self.reduced:
            text += ", reduced accumulation"
        if self.kernel:
            text += f", Triton tiles {self.kernel}"
        if self.about:
            text += f" ({self.about})"
        return text


@dataclass(frozen=True)
class ConvCase:
    """A convolution with stride 1 that keeps height and width.

    Its input is [images, channels, height, width]. As a matrix product it has
    m = images * height * width, n = filters and k = channels * kernel^2.

    Raises:
        TypeError: a size is not a whole number, or the format is not a Format.
        ValueError: a size is below 1, the kernel is even, or torch does not convolve in this
            format.

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

    def __post_init__(self) -> None:
        _require_valid(
            self.format,
            images=self.images,
            channels=self.channels,
            height=self.height,
            width=self.width,
            filters=self.filters,
            kernel=self.kernel,
        )
        if self.format in (E4M3, E5M2):
            raise ValueError(
                f"expected a format of 16 bits or more for a convolution, got {self.format.name}"
            )
        if self.kernel % 2 == 0:
            raise ValueError(
                f"expected an odd kernel, which keeps height and width, got {self.kernel}"
            )

    @property
    def gemm(self) -> GemmCase:
        """The matrix product with the same FLOPs."""
        return GemmCase(
            m=self.images * self.height * self.width,
            n=self.filters,
            k=self.channels * self.kernel**2,
            format=self.format,
        )

    @property
    def flops(self) -> int:
        """FLOPs of the matrix product; the padded border counts in full."""
        return self.gemm.flops

    @property
    def bytes(self) -> int:
        """Bytes to move if images and filters are read once, and the result is written once.

        The matrix of the product is not stored.
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


# op -> number of tensors that its kernels read and write in all, and its FLOPs for each element
PASSES: dict[str, tuple[int, int]] = {
    # one kernel, which reads a tensor and writes one
    "copy": (2, 0),
    "hardswish": (2, 4),
    # four kernels: x + 3, clamp to 0..6, times x (which reads two tensors), over 6
    "hardswish by hand": (2 + 2 + 3 + 2, 4),
}


@dataclass(frozen=True)
class ElementwiseCase:
    """An element-wise operation: "copy", or an activation, fused or as four kernels.

    The activation is x * clamp(x + 3, 0, 6) / 6.

    Raises:
        TypeError: elements is not a whole number, or the format is not a Format.
        ValueError: the op is unknown, elements is below 1, or torch has no such numbers.

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
        _require_valid(self.format, elements=self.elements)

    @property
    def flops(self) -> int:
        """FLOPs of the op, a few for each element."""
        _, flops_per_element = PASSES[self.op]
        return flops_per_element * self.elements

    @property
    def bytes(self) -> int:
        """Bytes that all kernels of the op read and write."""
        tensors, _ = PASSES[self.op]
        return tensors * self.elements * stored_bytes(self.format)

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

    W is [outputs, inputs], as torch stores it, and X is [batch, inputs].

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
    """Cases that answer a question together.

    Attributes:
        name: name of the sweep.
        question: the question, for learners.
        cases: the cases, in the order of timing.
    """

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


# The batches include 1025: one row beyond a multiple of 128, the rows of a tile, takes another row
# of tiles.
GPU = Extent(
    sizes=(128, 256, 512, 1024, 2048, 4096, 8192, 16384),
    base=4096,
    batches=(*range(128, 4097, 128), 1, 8, 16, 32, 64, 1025, 1032, 2049, 2056),
    layers=((4096, 1024, 4096), (16, 1024, 4096), (64, 300, 10)),
    images=32,
    elements=2**27,
)
# takes three minutes and fits into 4 GiB
GPU_SHORT = replace(
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
    on_tensor_cores = [
        format for format in (TF32, BF16, FP16, E4M3) if format.name in report.tensor_cores
    ]
    # a card without Tensor Cores still multiplies in FP16
    if not on_tensor_cores:
        on_tensor_cores = [FP16]
    return FP64, FP32, *on_tensor_cores


def sweeps(report: DeviceReport, extent: Extent | None = None) -> dict[str, Sweep]:
    """Return every sweep for a device by its name, the most informative first.

    Args:
        report: the device.
        extent: sizes of the cases; None for the device's own.

    >>> list(sweeps(DeviceReport("cpu", "Some CPU", 0, 2)))
    ['ceilings', 'size', 'layers', 'bandwidth', 'alignment', 'batch', 'convolution']
    """
    if extent is None:
        extent = CPU if report.kind == "cpu" else GPU
    base = extent.base
    formats = formats_on(report)
    plain = [f for f in formats if f in (FP32, BF16, FP16)]
    narrow = [f for f in formats if f in (FP32, TF32, BF16, FP16)]
    ops = ("copy", "hardswish", "hardswish by hand")
    result = [
        Sweep(
            "ceilings",
            "How fast can this device multiply, and copy, at best?",
            ceilings(formats, extent),
        ),
        Sweep(
            "size",
            "How large must a product be?",
            tuple([square(n, f) for n in extent.sizes for f in formats]),
        ),
        Sweep(
            "layers",
            "What are the three products of a linear layer?",
            tuple(
                [
                    gemm
                    for layer in extent.layers
                    for f in narrow
                    for gemm in linear_gemms(*layer, f)
                ]
            ),
        ),
        Sweep(
            "bandwidth",
            "What does half the bytes gain where nothing is multiplied?",
            tuple([ElementwiseCase(op, extent.elements, f) for op in ops for f in plain]),
        ),
        Sweep(
            "alignment",
            "What does a size gain that is a multiple of 8?",
            _alignment_cases(base, narrow),
        ),
        Sweep(
            "batch",
            "What does one row more cost?",
            tuple([gemm(m, base, base, f) for f in plain for m in sorted(extent.batches)]),
        ),
        Sweep(
            "convolution",
            "Is a convolution as fast as the product that computes it?",
            _convolution_cases(extent, narrow),
        ),
    ]
    # On a CPU, torch has no other accumulator, and Triton does not compile.
    if report.kind == "cuda":
        result += [
            Sweep(
                "accumulation",
                "What does a narrower accumulator gain, and cost?",
                _accumulation_cases(base, formats),
            ),
            Sweep(
                "kernel",
                "How near to cuBLAS does a kernel come that a person can read?",
                _kernel_cases(extent),
            ),
        ]
    return {sweep.name: sweep for sweep in result}


def _alignment_cases(base: int, formats: Sequence[Format]) -> tuple[Case, ...]:
    """Return products whose k, and then whose n, is up to 7 below a multiple of 8."""
    below = range(base - 7, base)
    cases = [gemm(base, base, k, f) for f in formats for k in (*below, base)]
    cases += [gemm(base, n, base, f) for f in formats for n in below]
    return tuple(cases)


def _convolution_cases(extent: Extent, formats: Sequence[Format]) -> tuple[Case, ...]:
    """Return convolutions, each with the product that computes it.

    Their channels and sizes are those of three stages of a ResNet (arXiv:1512.03385, table 1).
    """
    channels_and_sides = [(64, 56), (256, 14), (512, 7)]
    if extent is QUICK:
        channels_and_sides = [(4, 8)]
    cases: list[Case] = []
    for channels, side in channels_and_sides:
        for format in formats:
            convolution = ConvCase(
                images=extent.images,
                channels=channels,
                height=side,
                width=side,
                filters=channels,
                format=format,
            )
            cases.append(convolution)
            cases.append(replace(convolution.gemm, about="as the convolution above"))
    return tuple(cases)


def _accumulation_cases(base: int, formats: Sequence[Format]) -> tuple[Case, ...]:
    """Return products with and without reduced accumulation, which loses most in a long k."""
    cases = []
    for format in formats:
        if format not in (FP16, BF16, E4M3):
            continue
        for k in (base, 4 * base):
            full = gemm(base, base, k, format)
            cases += [full, replace(full, reduced=True)]
    return tuple(cases)


def _kernel_cases(extent: Extent) -> tuple[Case, ...]:
    """Return large products by cuBLAS and by each tile of the Triton kernel."""
    large = [n for n in extent.sizes if n >= 1024]
    if not large:
        large = [extent.sizes[0]]
    cases = []
    for n in large:
        # larger ones take too long
        if n > 8192:
            continue
        by_cublas = square(n, FP16)
        cases.append(by_cublas)
        cases += [replace(by_cublas, kernel=tile.name) for tile in TILES]
    return tuple(cases)


def ceilings(formats: Sequence[Format], extent: Extent) -> tuple[Case, ...]:
    """Return the cases that set a device's ceilings: copies, and large products."""
    copies = [ElementwiseCase("copy", extent.elements, f) for f in formats if f in (FP32, FP16)]
    products = [square(n, f) for n in (extent.base, 2 * extent.base) for f in formats]
    return (*copies, *products)


def gemm(m: int, n: int, k: int, format: Format) -> GemmCase:
    """Return a product in the layout of Y = X W^T, the only one in which torch multiplies FP8."""
    return GemmCase(m, n, k, format, "NT")


def square(n: int, format: Format) -> GemmCase:
    return gemm(n, n, n, format)
