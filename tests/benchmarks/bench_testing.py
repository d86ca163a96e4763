"""Cost of the bound of a product, and of a whole verdict, as multiples of the FP64 product.

    .venv/bin/python -m tests.benchmarks.bench_testing [--sizes 256 1024]

The aim: the bound, with the exact result that it needs, within 3 times the FP64 product of the same
operands.
"""

from functools import partial

import torch

from labkit.testing import arithmetic, compare, matmul
from labkit.testing.bound import Arithmetic, Floats
from tests.benchmarks.measuring import medians, options, print_ratios


def bound(a: torch.Tensor, b: torch.Tensor, how: Arithmetic) -> Floats:
    return matmul(a, b).error(how)


def main() -> None:
    chosen = options(__doc__, sizes=["256", "512", "1024"])
    for size in map(int, chosen.sizes):
        a = torch.randn(size, size).half()
        b = torch.randn(size, size).half()
        wide = a.double()
        tall = b.double()
        got = (a.float() @ b.float()).half()
        calls = {"FP64 product": partial(torch.matmul, wide, tall)}
        for name in ("FP32", "H100"):
            how = arithmetic(name, matmul(a[:1], b[:, :1]).formats)
            calls[f"bound, {name}"] = partial(bound, a, b, how)
        calls["verdict, FP32"] = partial(compare, got, matmul(a, b))
        print_ratios(f"{size} x {size} x {size}, FP16", medians(calls, seconds=8.0, fewest=3))


if __name__ == "__main__":
    main()
