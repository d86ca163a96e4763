"""Exactness of our own Triton kernel on this GPU: every tile, shapes that fit none, and BF16 in the first.

labkit gpu --only kernel
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from labkit.bench.triton_gemm import TILES, Tile, matmul, why_unavailable
from labkit.gpu.checks.measure import Answers, each, left_out_lines

SHAPES = ((4096, 4096, 4096), (300, 500, 700), (129, 257, 65))  # each compiles anew: a second or two
BF16_FROM = (8, 0)  # the compute capability: before, Triton's compiler may end the process at a product of BF16


def has_bf16(device: str) -> bool:
    """Return whether a device's Tensor Cores multiply BF16."""
    return device != "cuda" or torch.cuda.get_device_capability() >= BF16_FROM


def main(device: str = "cuda", *, seconds: float = float("inf")) -> Iterator[Answers]:
    """Find for every tile, dtype and shape by how many elements of the result it is wrong; all should be 0.

    What is left out has its reason: a GPU with too little fast memory for a tile, or one without BF16.
    """
    answers: Answers = {"unavailable": why_unavailable(device), "wrong": {}, "left_out": {}}
    if answers["unavailable"]:
        yield answers
        return

    def run(name: str, tile: Tile, dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
        answers["wrong"][name] = wrong(tile, dtype, *shape, device)

    items = []
    for tile in TILES:
        for dtype in (torch.float16, torch.bfloat16) if tile == TILES[0] else (torch.float16,):
            if dtype == torch.bfloat16 and not has_bf16(device):
                answers["left_out"][f"{tile.name} {dtype}"] = "BF16 needs compute capability 8.0 or higher"
                continue
            for shape in SHAPES:
                name = f"{tile.name} {dtype} {'x'.join(map(str, shape))}"
                items.append((name, partial(run, name, tile, dtype, shape)))
    yield from each(items, answers, seconds)


def wrong(tile: Tile, dtype: torch.dtype, m: int, n: int, k: int, device: str) -> int:
    """Multiply small whole numbers, whose sums FP32 holds exactly: one rounding is left, and no tolerance is needed.

    Return how many elements of the product are wrong.
    """
    generator = torch.Generator(device).manual_seed(0)
    a = torch.randint(-3, 4, (m, k), generator=generator, device=device).to(dtype)
    b = torch.randint(-3, 4, (n, k), generator=generator, device=device).to(dtype).t()
    exact = (a.double() @ b.double()).to(dtype)
    return int((matmul(a, b, tile) != exact).sum())


def told(answers: Answers) -> str:
    """Return what `main` found, for people."""
    if answers["unavailable"]:
        return f"our Triton kernel was not run: {answers['unavailable']}"
    bad = {name: count for name, count in answers["wrong"].items() if count}
    lines = [f"our Triton kernel: {len(answers['wrong'])} products, {len(bad)} of them wrong"]
    lines += [f"  {name}: {count} elements wrong" for name, count in bad.items()]
    return "\n".join([*lines, *left_out_lines(answers)])
