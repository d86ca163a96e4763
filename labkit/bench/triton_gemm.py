"""Readable Tensor Core GEMM in Triton.

Idea: D is cut into tiles, and each program computes one tile. It iterates over k and loads a panel
of A and a panel of B into the GPU's fast memory. Tensor Cores multiply them (`tl.dot`), and the sum
stays in registers in FP32. Each loaded element is used as many times as a tile is wide, which makes
a GEMM fast. Neighbouring programs compute tiles that share panels, so the cache serves most of the
loads.

Invariant: sums are in FP32 and rounded once, when D is stored; any m, n, k and strides are
supported whose offsets from the first element fit into 32 bits.

Requires Triton, which comes with the CUDA builds of torch for Linux; no other part of the lab does.
Without a GPU the kernel runs in Triton's interpreter (TRITON_INTERPRET=1 before Python starts),
slowly: for small shapes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ModuleNotFoundError:
    # `why_unavailable` reports it
    triton = None
    tl = None


@dataclass(frozen=True)
class Tile:
    """Tiling of D.

    Attributes:
        m: rows of a tile.
        n: columns of a tile.
        k: depth of a panel of A or B.
        warps: warps that compute a tile.
        ahead: panels that are loaded before they are used.

    >>> TILES[0].name
    '128x256x64, 3 ahead'
    """

    m: int
    n: int
    k: int
    warps: int
    ahead: int

    @property
    def name(self) -> str:
        """Sizes, m x n x k, and panels loaded ahead."""
        return f"{self.m}x{self.n}x{self.k}, {self.ahead} ahead"


# Large tiles reuse more, and small ones leave fewer multiprocessors idle. The sweep "kernel" of
# labkit.bench measures which one is best.
TILES = (
    Tile(m=128, n=256, k=64, warps=8, ahead=3),
    Tile(m=128, n=256, k=64, warps=8, ahead=4),
    Tile(m=128, n=128, k=64, warps=4, ahead=4),
    Tile(m=128, n=128, k=32, warps=4, ahead=4),
    Tile(m=64, n=128, k=32, warps=4, ahead=4),
)
# rows of tiles in a band: a panel of B is used this many times while it is in the cache
TOGETHER = 8
# elements: the kernel computes offsets in signed integers of 32 bits, and this is beyond them
TOO_FAR = 2**31


def tile_of_d(
    # addresses of the first elements of A[m,k], B[k,n] and D[m,n]
    a: tl.tensor,
    b: tl.tensor,
    d: tl.tensor,
    m: tl.tensor,
    n: tl.tensor,
    k: tl.tensor,
    # strides: from one element to the next row's, and to the next column's
    a_row: tl.tensor,
    a_column: tl.tensor,
    b_row: tl.tensor,
    b_column: tl.tensor,
    d_row: tl.tensor,
    d_column: tl.tensor,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
    TOGETHER: tl.constexpr,
    WHOLE_PANELS: tl.constexpr,
) -> None:
    """Compute one tile of D = A @ B, as one program of the GPU."""
    # The tile of this program. The rows of tiles are cut into bands of TOGETHER rows. Consecutive
    # programs go down a column of a band, then down its next column, and then to the next band.
    tiles_down = tl.cdiv(m, TILE_M)
    tiles_across = tl.cdiv(n, TILE_N)
    program = tl.program_id(0)
    band = program // (TOGETHER * tiles_across)
    in_band = program % (TOGETHER * tiles_across)
    # the last band may have fewer rows
    band_height = min(tiles_down - band * TOGETHER, TOGETHER)
    tile_row = band * TOGETHER + in_band % band_height
    tile_column = in_band // band_height

    rows = tile_row * TILE_M + tl.arange(0, TILE_M)
    columns = tile_column * TILE_N + tl.arange(0, TILE_N)
    depth = tl.arange(0, TILE_K)
    # Rows and columns beyond the edge wrap around to the first ones, so that no load needs a mask
    # for them. Their results are not stored.
    at_a = a + (rows % m)[:, None] * a_row + depth[None, :] * a_column
    at_b = b + depth[:, None] * b_row + (columns % n)[None, :] * b_column

    total = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
    for done in range(0, k, TILE_K):
        if WHOLE_PANELS:
            panel_a = tl.load(at_a)
            panel_b = tl.load(at_b)
        else:
            # the last panel ends with zeros, which add nothing
            panel_a = tl.load(at_a, mask=depth[None, :] < k - done, other=0.0)
            panel_b = tl.load(at_b, mask=depth[:, None] < k - done, other=0.0)
        total = tl.dot(panel_a, panel_b, total)
        at_a += TILE_K * a_column
        at_b += TILE_K * b_row

    at_d = d + rows[:, None] * d_row + columns[None, :] * d_column
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(at_d, total.to(d.dtype.element_ty), mask=inside)


@cache
def _kernel() -> Any:
    """Return the compiled kernel; it is made at the first call, since Triton may be missing."""
    return triton.jit(tile_of_d)


def why_unavailable(device: torch.device | str) -> str:
    """Return why the kernel cannot run on a device, or "" if it can."""
    if triton is None:
        return (
            "Triton is not installed; it comes with the CUDA builds of torch for Linux (or: pip "
            "install triton)"
        )
    if torch.device(device).type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1":
        return ""
    return (
        "the lab's Triton kernel needs a GPU; to run it slowly on a CPU, start Python with "
        "TRITON_INTERPRET=1"
    )


def _require_in_reach(a: Tensor, b: Tensor, d: Tensor) -> None:
    """Raise a ValueError if the kernel, which checks nothing, would leave a matrix.

    Args:
        a: A[m,k].
        b: B[k,n].
        d: the tensor that is written.
    """
    shape = [len(a), b.shape[1]]
    if list(d.shape) != shape or d.dtype != a.dtype:
        raise ValueError(
            f"out: expected {a.dtype} {shape}, got {d.dtype} {list(d.shape)}; None makes a tensor"
        )
    if not a.device == b.device == d.device:
        raise ValueError(
            f"expected A, B and out on one device, got {a.device}, {b.device} and {d.device}"
        )
    for name, matrix in (("A", a), ("B", b), ("D", d)):
        steps = zip(matrix.shape, matrix.stride(), strict=True)
        if sum((size - 1) * stride for size, stride in steps) >= TOO_FAR:
            raise ValueError(
                f"expected matrices that extend over at most 2^31 elements, got {name} "
                f"{list(matrix.shape)} with strides {list(matrix.stride())}; multiply it in parts"
            )


def matmul(a: Tensor, b: Tensor, tile: Tile = TILES[0], out: Tensor | None = None) -> Tensor:
    """Return D[m,n] = A[m,k] @ B[k,n] in the dtype of A, computed by the lab's Triton kernel.

    Args:
        a: A[m,k] in FP16 or BF16, with any strides.
        b: B[k,n] in the same dtype.
        tile: the tiling of D.
        out: the tensor D to write into; None: a new tensor.

    Raises:
        ValueError: the shapes, dtypes or devices do not match, or are not those of a Tensor Core
            product; or a matrix extends over more than 2^31 elements.
        RuntimeError: Triton or a GPU is missing, or the GPU is too small for this tile.
    """
    shapes_match = a.dim() == b.dim() == 2 and a.shape[1] == b.shape[0]
    dtypes_match = a.dtype == b.dtype and a.dtype in (torch.float16, torch.bfloat16)
    is_empty = a.numel() == 0 or b.numel() == 0
    if not shapes_match or not dtypes_match or is_empty:
        raise ValueError(
            f"expected A[m,k] and B[k,n], both float16 or both bfloat16 and not empty, got "
            f"{a.dtype} {list(a.shape)} and {b.dtype} {list(b.shape)}"
        )
    m, k = a.shape
    n = b.shape[1]
    d = out
    if d is None:
        d = torch.empty(m, n, dtype=a.dtype, device=a.device)
    _require_in_reach(a, b, d)
    reason = why_unavailable(a.device)
    if reason:
        raise RuntimeError(reason)
    programs = triton.cdiv(m, tile.m) * triton.cdiv(n, tile.n)
    try:
        _kernel()[(programs,)](
            a,
            b,
            d,
            m,
            n,
            k,
            *a.stride(),
            *b.stride(),
            *d.stride(),
            TILE_M=tile.m,
            TILE_N=tile.n,
            TILE_K=tile.k,
            TOGETHER=TOGETHER,
            WHOLE_PANELS=k % tile.k == 0,
            num_warps=tile.warps,
            num_stages=tile.ahead,
        )
    except triton.TritonError as error:
        # too little fast memory, or the kernel does not compile
        reason = str(error).partition("\n")[0]
        raise RuntimeError(f"Triton refused tiles of {tile.name} here: {reason}") from error
    return d
