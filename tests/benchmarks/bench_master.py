"""Is a flat master faster than one tensor for each parameter? (claim C43)

Run by hand: .venv/bin/python tests/benchmarks/bench_master.py [--device cuda]

One thread. What is timed is all that comes after backward: gather the FP16 gradients, unscale them into FP32, step the
master, round it into the model. Both kinds take turns in one process, and the ratio of their medians is printed: above
1, flat is faster. With many small tensors the time is in the calls, most of which flat makes once; torch's foreach and
fused loops save part of them too. With megabytes the time is in the memory: flat gathers the gradients first, and an
optimizer of many passes runs each over the whole, where one tensor after the other would have stayed in the cache.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from labkit.amp import Weights, to_model_format, unscale
from labkit.formats import FP16

OPTIMIZERS = {
    "SGD, one by one": partial(torch.optim.SGD, lr=0.1, momentum=0.9, foreach=False),
    "SGD, foreach": partial(torch.optim.SGD, lr=0.1, momentum=0.9, foreach=True),
    "Adam, one by one": partial(torch.optim.Adam, lr=1e-3, foreach=False, fused=False),
    "Adam, foreach": partial(torch.optim.Adam, lr=1e-3, foreach=True),
    "Adam, fused": partial(torch.optim.Adam, lr=1e-3, fused=True),
}
TENSORS = (10, 100, 500)
ELEMENTS = (256, 16_384)
SCALE = 1024.0


def weights_of(
    tensors: int, elements: int, optimizer: Callable[..., torch.optim.Optimizer], flat: bool, device: str
) -> Weights:
    generator = torch.Generator().manual_seed(0)
    model = nn.ParameterList([nn.Parameter(torch.randn(elements, generator=generator)) for _ in range(tensors)])
    weights = Weights(to_model_format(model.to(device), FP16), optimizer, flat=flat)
    for p in weights.model_weights:
        p.grad = torch.full_like(p, SCALE * 1e-3)
    return weights


def step(weights: Weights) -> None:
    gradients, found_inf = unscale([g for g in weights.scaled_gradients() if g is not None], SCALE)
    if not found_inf:
        weights.step(gradients)


def turns(works: list[Callable[[], None]], device: str, seconds: float = 0.6) -> list[float]:
    """Return the median seconds of each, taking turns until the time is up."""
    clock = time.perf_counter if device == "cuda" else time.process_time  # a busy machine does not count
    taken: list[list[float]] = [[] for _ in works]
    for work in works:
        work()
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(taken[0]) < 5:
        for work, times in zip(works, taken, strict=True):
            start = clock()
            work()
            if device == "cuda":
                torch.cuda.synchronize()
            times.append(clock() - start)
    return [statistics.median(times) for times in taken]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    device = arguments.parse_args().device
    torch.set_num_threads(1)
    where = torch.cuda.get_device_name() if device == "cuda" else "CPU, one thread"
    print(f"flat against per-parameter master, torch {torch.__version__}, {where}: how many times faster flat is")
    print(f"{'optimizer':18}" + "".join(f"{f'{n} x {size}':>14}" for size in ELEMENTS for n in TENSORS))
    for name, optimizer in OPTIMIZERS.items():
        cells = []
        for elements in ELEMENTS:
            for tensors in TENSORS:
                both = [weights_of(tensors, elements, optimizer, flat, device) for flat in (False, True)]
                many, one = turns([partial(step, weights) for weights in both], device)
                cells.append(f"{many / one:8.2f}x{one * 1e3:5.1f}")
        print(f"{name:18}" + "".join(f"{cell:>14}" for cell in cells), flush=True)
    print("each cell: the ratio, and flat's own milliseconds")


if __name__ == "__main__":
    main()
