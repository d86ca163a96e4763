"""Which cases answer a question together? Sweeps: everything at rest, one thing moving.

Idea: a sweep is a name, the question it answers, and cases; how large they are follows from the device. What one
machine is asked in two minutes, another would not finish in an hour.

Invariant: `sweeps` of the same device and extent are the same cases in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from labkit.bench.cases import Case, ConvCase, ElementwiseCase, GemmCase, linear_gemms
from labkit.bench.triton_gemm import TILES
from labkit.formats import BF16, E4M3, FP16, FP32, FP64, TF32, Format
from labkit.machine.device import DeviceReport


@dataclass(frozen=True)
class Sweep:
    """Cases that are read together, and the question they answer."""

    name: str
    question: str
    cases: tuple[Case, ...]


@dataclass(frozen=True)
class Extent:
    """How large the cases are.

    sizes       of square products
    base        size of the product in which one side moves, and of the one that sets the ceiling
    batches     rows of the activations, in the batch sweep
    layers      (batch, inputs, outputs) of linear layers
    images      of each convolution
    elements    of element-wise work: larger than any cache
    """

    sizes: tuple[int, ...]
    base: int
    batches: tuple[int, ...]
    layers: tuple[tuple[int, int, int], ...]
    images: int
    elements: int


# Around a multiple of 128, the rows of a tile, one row more is one row of tiles more; that is why 1025 is there.
GPU = Extent(
    sizes=(128, 256, 512, 1024, 2048, 4096, 8192, 16384),
    base=4096,
    batches=(*range(128, 4097, 128), 1, 8, 16, 32, 64, 1025, 1032, 2049, 2056),
    layers=((4096, 1024, 4096), (16, 1024, 4096), (64, 300, 10)),
    images=32,
    elements=2**27,
)
GPU_SHORT = Extent(  # what a card says of itself in three minutes; small enough for one of 4 GiB
    sizes=(256, 512, 1024, 2048, 4096, 8192),
    base=2048,
    batches=(1, 8, 16, 32, 64, 128, 256, 512, 1024, 1025, 1032, 2048),
    layers=((4096, 1024, 4096), (16, 1024, 4096), (64, 300, 10)),
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
QUICK = Extent(sizes=(16, 32), base=32, batches=(1, 8), layers=((16, 8, 8),), images=1, elements=2**12)


def formats_on(report: DeviceReport) -> tuple[Format, ...]:
    """Return the operand formats that are worth timing on a device, widest first.

    >>> [format.name for format in formats_on(DeviceReport("cpu", "Some CPU", 0, 2))]
    ['FP64', 'FP32', 'BF16', 'FP16']
    """
    if report.kind == "cpu":
        return FP64, FP32, BF16, FP16
    special = tuple(format for format in (TF32, BF16, FP16, E4M3) if format.name in report.tensor_cores)
    return FP64, FP32, *(special or (FP16,))


def sweeps(report: DeviceReport, extent: Extent | None = None) -> dict[str, Sweep]:
    """Return every sweep for a device by its name, the most telling ones first.

    >>> list(sweeps(DeviceReport("cpu", "Some CPU", 0, 2)))
    ['ceilings', 'size', 'layers', 'bandwidth', 'alignment', 'batch', 'convolution']
    """
    size = extent or (CPU if report.kind == "cpu" else GPU)
    formats = formats_on(report)
    rows = (
        Sweep("ceilings", "How fast can this device multiply, and copy, at best?", ceilings(formats, size)),
        Sweep("size", "How large must a product be?", tuple(_square(n, f) for n in size.sizes for f in formats)),
        Sweep("layers", "What are the three products of a linear layer?", _layers(formats, size)),
        Sweep("bandwidth", "What does half the bytes gain where nothing is multiplied?", _bandwidth(formats, size)),
        Sweep("alignment", "What does a size gain that is a multiple of 8?", _alignment(formats, size.base)),
        Sweep("batch", "What does one row more cost?", _batch(formats, size)),
        Sweep("convolution", "Is a convolution as fast as the product it stands for?", _convolution(formats, size)),
    )
    on_gpus = (  # where torch offers another accumulator, and Triton compiles
        Sweep("accumulation", "What does a narrower accumulator gain, and cost?", _accumulation(formats, size)),
        Sweep("kernel", "How near to cuBLAS does a kernel come that a person can read?", _kernel(size)),
    )
    return {row.name: row for row in (*rows, *(on_gpus if report.kind == "cuda" else ()))}


def ceilings(formats: Sequence[Format], extent: Extent) -> tuple[Case, ...]:
    """Return the cases that set a device's ceilings: copies, and large products."""
    copies = [ElementwiseCase("copy", extent.elements, f) for f in formats if f in (FP32, FP16)]
    products = [_square(n, f) for n in (extent.base, 2 * extent.base) for f in formats]
    return (*copies, *products)


def _square(n: int, format: Format) -> GemmCase:
    return GemmCase(n, n, n, format, "NT")  # NT: the layout of Y = X W^T, and the only one that FP8 has


def _layers(formats: Sequence[Format], extent: Extent) -> tuple[Case, ...]:
    narrow = [f for f in formats if f in (FP32, TF32, BF16, FP16)]
    return tuple(case for layer in extent.layers for f in narrow for case in linear_gemms(*layer, f))


def _bandwidth(formats: Sequence[Format], extent: Extent) -> tuple[Case, ...]:
    plain = [f for f in formats if f in (FP32, BF16, FP16)]
    ops = ("copy", "hardswish", "hardswish by hand")
    return tuple(ElementwiseCase(op, extent.elements, f) for op in ops for f in plain)


def _accumulation(formats: Sequence[Format], extent: Extent) -> tuple[Case, ...]:
    """Return products with a long k, where an accumulator has most to lose, with and without reduced accumulation."""
    n = extent.base
    full = [GemmCase(n, n, k, f, "NT") for f in formats if f in (FP16, BF16, E4M3) for k in (n, 4 * n)]
    return tuple(case for row in full for case in (row, replace(row, reduced=True)))


def _alignment(formats: Sequence[Format], base: int) -> tuple[Case, ...]:
    chosen = [f for f in formats if f in (FP32, TF32, BF16, FP16)]
    by_k = [GemmCase(base, base, k, f, "NT") for f in chosen for k in range(base - 7, base + 1)]
    by_n = [GemmCase(base, n, base, f, "NT") for f in chosen for n in range(base - 7, base)]
    return (*by_k, *by_n)


def _batch(formats: Sequence[Format], extent: Extent) -> tuple[Case, ...]:
    chosen = [f for f in formats if f in (FP32, BF16, FP16)]
    return tuple(GemmCase(m, extent.base, extent.base, f, "NT") for f in chosen for m in sorted(extent.batches))


def _kernel(extent: Extent) -> tuple[Case, ...]:
    sizes = [n for n in extent.sizes if n >= 1024] or extent.sizes[:1]
    torch_s = [GemmCase(n, n, n, FP16, "NT") for n in sizes if n <= 8192]
    return tuple(replace(case, kernel=kernel) for case in torch_s for kernel in ("", *(tile.name for tile in TILES)))


def _convolution(formats: Sequence[Format], extent: Extent) -> tuple[Case, ...]:
    chosen = [f for f in formats if f in (FP32, TF32, BF16, FP16)]
    shapes = ((64, 56), (256, 14), (512, 7)) if extent is not QUICK else ((4, 8),)
    pairs = [(ConvCase(extent.images, c, s, s, c, 3, f)) for c, s in shapes for f in chosen]
    return tuple(case for conv in pairs for case in (conv, replace(conv.gemm, about="as the convolution above")))
