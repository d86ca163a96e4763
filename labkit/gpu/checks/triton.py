"""Does our own Triton kernel multiply right on this GPU? Every tile, shapes that fit none, and BF16 in the first.

labkit gpu --only kernel
"""

from __future__ import annotations

from typing import Any

import torch

from labkit.bench.triton_gemm import TILES, Tile, matmul, why_unavailable

SHAPES = ((4096, 4096, 4096), (300, 500, 700), (129, 257, 65))  # each compiles anew: a second or two


def main(device: str = "cuda") -> dict[str, Any]:
    """Return for every tile, dtype and shape by how many elements of the result it is wrong; all should be 0."""
    reason = why_unavailable(device)
    if reason:
        return {"unavailable": reason, "wrong": {}, "refused": {}}
    wrong: dict[str, int] = {}
    refused: dict[str, str] = {}
    for tile in TILES:
        for dtype in (torch.float16, torch.bfloat16) if tile == TILES[0] else (torch.float16,):
            for shape in SHAPES:
                name = f"{tile.name} {dtype} {'x'.join(map(str, shape))}"
                try:
                    wrong[name] = _wrong(tile, dtype, *shape, device)
                except RuntimeError as error:  # a GPU with too little fast memory for this tile
                    refused[name] = str(error)
    return {"unavailable": "", "wrong": wrong, "refused": refused}


def _wrong(tile: Tile, dtype: torch.dtype, m: int, n: int, k: int, device: str) -> int:
    """Multiply small whole numbers, whose sums FP32 holds exactly: one rounding is left, and no tolerance is needed."""
    generator = torch.Generator(device).manual_seed(0)
    a = torch.randint(-3, 4, (m, k), generator=generator, device=device).to(dtype)
    b = torch.randint(-3, 4, (n, k), generator=generator, device=device).to(dtype).t()
    exact = (a.double() @ b.double()).to(dtype)
    return int((matmul(a, b, tile) != exact).sum())


def told(answers: dict[str, Any]) -> str:
    """Return what `main` found, for people."""
    if answers["unavailable"]:
        return f"our Triton kernel was not run: {answers['unavailable']}"
    bad = {name: count for name, count in answers["wrong"].items() if count}
    lines = [f"our Triton kernel: {len(answers['wrong'])} products, {len(bad)} of them wrong"]
    lines += [f"  {name}: {count} elements wrong" for name, count in bad.items()]
    return "\n".join(lines + [f"  {name}: {why}" for name, why in answers["refused"].items()])
