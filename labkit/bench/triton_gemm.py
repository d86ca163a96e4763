"""Readable Tensor Core GEMM in Triton.

Idea: D is cut into tiles, and each program computes one tile. It iterates over k and loads a panel
of A and a panel of B into the GPU's fast memory. Tensor Cores multiply them (`tl.dot`), and the sum
stays in registers in FP32. Each loaded element is used as many times as a tile is wide, which makes
a GEMM fast. Neighbouring programs compute tiles that share panels, so the cache serves most of the
loads.

Invariant: sums are in FP32 and rounded once, when D is stored; any m, n, k and strides are
supported.

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
except ModuleNotFoundError:  # reported by `matmul`
    triton = None
    tl = None


@dataclass(frozen=True)
class Tile:
    """Tiling of D: tiles of m x n, panels of depth k, warps for a tile, and panels loaded ahead.

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


# large tiles reuse more, small ones leave fewer multiprocessors idle; which is best is measured
TILES = (
    Tile(128, 256, 64, 8, 3),
    Tile(128, 256, 64, 8, 4),
    Tile(128, 128, 64, 4, 4),
    Tile(128, 128, 32, 4, 4),
    Tile(64, 128, 32, 4, 4),
)
# rows of tiles that are worked on together: their panels of B are used 8 times while in the cache
TOGETHER = 8


def tile_of_d(
    a: tl.tensor,
    b: tl.tensor,
    d: tl.tensor,  # where A[m,k], B[k,n] and D[m,n] begin
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
    # Which tile is mine? Programs count down a column of TOGETHER tiles, then the next column, ...
    tiles_down, tiles_across = tl.cdiv(m, TILE_M), tl.cdiv(n, TILE_N)
    program = tl.program_id(0)
    band = program // (TOGETHER * tiles_across)
    in_band = program % (TOGETHER * tiles_across)
    band_height = min(tiles_down - band * TOGETHER, TOGETHER)
    tile_row = band * TOGETHER + in_band % band_height
    tile_column = in_band // band_height

    rows = tile_row * TILE_M + tl.arange(0, TILE_M)
    columns = tile_column * TILE_N + tl.arange(0, TILE_N)
    depth = tl.arange(0, TILE_K)
    # Rows beyond the edge are read from the beginning again, so no load needs a mask; they are not
    # stored.
    at_a = a + (rows % m)[:, None] * a_row + depth[None, :] * a_column
    at_b = b + depth[:, None] * b_row + (columns % n)[None, :] * b_column

    total = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
    for done in range(0, k, TILE_K):
        if WHOLE_PANELS:
            panel_a, panel_b = tl.load(at_a), tl.load(at_b)
        else:  # the last panel is filled up with zeros
            panel_a = tl.load(at_a, mask=depth[None, :] < k - done, other=0.0)
            panel_b = tl.load(at_b, mask=depth[:, None] < k - done, other=0.0)
        total = tl.dot(panel_a, panel_b, total)
        at_a += TILE_K * a_column
        at_b += TILE_K * b_row

    at_d = d + rows[:, None] * d_row + columns[None, :] * d_column
    tl.store(at_d, total.to(d.dtype.element_ty), mask=(rows[:, None] < m) & (columns[None, :] < n))


@cache
def _kernel() -> Any:
    return triton.jit(tile_of_d)


def why_unavailable(device: torch.device | str) -> str:
    """Return why the kernel cannot run on a device; empty where it can."""
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


def matmul(a: Tensor, b: Tensor, tile: Tile = TILES[0], out: Tensor | None = None) -> Tensor:
    """Return D[m,n] = A[m,k] @ B[k,n] in the dtype of A, by the lab's Triton kernel.

    Raises:
        ValueError: the shapes or dtypes do not match, or are not those of a Tensor Core product.
        RuntimeError: Triton or a GPU is missing, or the GPU is too small for this tile.
    """
    fits = a.dim() == b.dim() == 2 and a.shape[1] == b.shape[0] and a.dtype == b.dtype
    if not fits or a.dtype not in (torch.float16, torch.bfloat16) or 0 in (*a.shape, *b.shape):
        raise ValueError(
            f"expected A[m,k] and B[k,n], both float16 or both bfloat16 and not empty, got "
            f"{a.dtype} {list(a.shape)} and {b.dtype} {list(b.shape)}"
        )
    reason = why_unavailable(a.device)
    if reason:
        raise RuntimeError(reason)
    (m, k) = a.shape
    n = b.shape[1]
    d = torch.empty(m, n, dtype=a.dtype, device=a.device) if out is None else out
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
        raise RuntimeError(
            f"Triton refused tiles of {tile.name} here: {str(error).splitlines()[0]}"
        ) from error
    return d
