"""Speed of a flat master next to one tensor for each parameter (claim C43).

Run by hand: .venv/bin/python tests/benchmarks/bench_master.py [--device cuda]

What is timed is all that comes after backward: gather the FP16 gradients, unscale them into FP32, step the master,
round it into the model. With many small tensors the time is in the calls, most of which flat makes once; torch's
foreach and fused loops save part of them too. With megabytes the time is in the memory: flat gathers the gradients
first, and an optimizer of many passes runs each over the whole, where one tensor after the other would have stayed in
the cache.
"""

from functools import partial
from itertools import product

import torch
from measuring import medians, options, print_ratios
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
SCALE = 1024.0


def weights_of(tensors: int, elements: int, optimizer: object, flat: bool, device: str) -> Weights:
    model = nn.ParameterList([nn.Parameter(torch.randn(elements)) for _ in range(tensors)])
    weights = Weights(to_model_format(model.to(device), FP16), optimizer, flat=flat)
    for p in weights.model_weights:
        p.grad = torch.full_like(p, SCALE * 1e-3)
    return weights


def step(weights: Weights) -> None:
    gradients, found_inf = unscale([g for g in weights.scaled_gradients() if g is not None], SCALE)
    if not found_inf:
        weights.step(gradients)


def main() -> None:
    device = options(__doc__, device="cpu").device
    for (name, optimizer), elements, tensors in product(OPTIMIZERS.items(), (256, 16_384), (10, 100, 500)):
        kinds = {"flat": True, "one by one": False}
        calls = {kind: partial(step, weights_of(tensors, elements, optimizer, flat, device))
                 for kind, flat in kinds.items()}  # fmt: skip
        print_ratios(f"{name}, {tensors} x {elements}", medians(calls, seconds=0.6, device=device))


if __name__ == "__main__":
    main()
