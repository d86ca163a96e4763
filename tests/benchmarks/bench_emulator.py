"""Cost of emulating a Tensor Core, with numba and with numpy, and of training on one.

    .venv/bin/python -m tests.benchmarks.bench_emulator [--sizes 32 256 1024]

Every row of `SPECS` at 256 x 256 x 256 (aim: under 50 ms each on 2 cores), products as `digits_cnn`
makes them, and squares of several sizes: the cost of one product should not grow with them. Then
the plain accumulators, and a training step of digits_cnn on each, next to the usual FP32
accumulation.
"""

import os
from dataclasses import replace
from functools import partial

import torch

from labkit.amp import RECIPES
from labkit.gemm import ACCUMULATORS, SPECS, accumulate, emulate, emulator
from labkit.gemm.blocks import VARIABLE
from labkit.train import TASKS, TrainingRun
from tests.benchmarks.measuring import medians, options, print_ratios

SHAPES = {"convolution, forward": (32, 144, 1024), "its weights": (32, 1024, 144)}


def operands(m: int, k: int, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(m, k).half(), torch.randn(k, n).half()


def by(name: str, *given: object) -> None:
    """Emulate with numba or with numpy."""
    os.environ[VARIABLE] = name
    emulate(*given)


def main() -> None:
    chosen = options(__doc__, sizes=["32", "64", "128", "256", "512"])
    available = emulator().partition(" ")[0]
    a, b = operands(256, 256, 256)
    print_ratios(
        "256 x 256 x 256",
        medians({name: partial(emulate, a, b, None, s) for name, s in SPECS.items()}),
    )
    accumulators = {
        name: partial(accumulate, a, b, None, accumulator)
        for name, accumulator in ACCUMULATORS.items()
    }
    print_ratios("other accumulators", medians(accumulators))
    for gpu in ("V100", "H100"):
        for title, shape in (SHAPES | {size: (int(size),) * 3 for size in chosen.sizes}).items():
            given = *operands(*shape), None, SPECS[gpu]
            took = medians(
                {name: partial(by, name, *given) for name in dict.fromkeys([available, "numpy"])},
                fewest=3,
            )
            each = took[available] / (shape[0] * shape[1] * shape[2])
            print_ratios(f"{gpu}, {title}, {each * 1e9:.2f} ns/product", took)
    os.environ.pop(VARIABLE)
    steps = {}
    for accumulator in (None, SPECS["V100"], SPECS["H100"], *ACCUMULATORS.values()):
        recipe = replace(RECIPES["FP16 dynamic"], name="bench", accumulator=accumulator)
        name = accumulator.name if accumulator else "FP32"
        steps[name] = TrainingRun(TASKS["digits_cnn"], recipe, seed=0, measure_every=0).take_step
    print_ratios("a step of digits_cnn", medians(steps, seconds=10.0, fewest=3))


if __name__ == "__main__":
    main()
