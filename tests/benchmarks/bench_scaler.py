"""Cost of a step's loss scaling, next to torch.amp.GradScaler.

Run by hand: .venv/bin/python tests/benchmarks/bench_scaler.py [--device cuda]

Unscale, check and advance: ours (`unscale(..., in_place=True)`, `advance`) against theirs (`unscale_`, the check that
`step` makes, `update`), on the same FP32 gradients; FP16 gradients, which torch refuses, against a copy to FP32 and
theirs. Then ways to look for inf and NaN.
"""

from collections.abc import Callable
from functools import partial

import torch
from measuring import Call, medians, options, print_ratios
from torch import Tensor

from labkit.amp import DYNAMIC, advance, initial, unscale

SCALE = 2.0**10


class Theirs:
    """torch.amp's part of a step, on parameters of its own."""

    def __init__(self, gradients: list[Tensor]) -> None:
        self.parameters = [torch.nn.Parameter(torch.zeros_like(g, dtype=torch.float32)) for g in gradients]
        self.optimizer = torch.optim.SGD(self.parameters, lr=0.0)
        device = gradients[0].device
        self.scaler = torch.amp.GradScaler(device.type, init_scale=1.0)
        self.scaler.scale(torch.zeros((), device=device))
        self.copy(gradients)

    def copy(self, gradients: list[Tensor]) -> None:
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient.float()

    def step(self, gradients: list[Tensor] | None = None) -> None:
        if gradients is not None:
            self.copy(gradients)
        self.scaler.unscale_(self.optimizer)
        found = self.scaler._per_optimizer_states[id(self.optimizer)]["found_inf_per_device"]
        sum(flag.item() for flag in found.values())
        self.scaler.update()


def ours(gradients: list[Tensor], names: list[str] | None = None) -> None:
    """Scale a step's gradients; a scale of 1 keeps the values where they are."""
    _, found_inf, *_ = unscale(gradients, 1.0, *([names] if names else []), in_place=True)
    advance(initial(DYNAMIC), found_inf, DYNAMIC)


def ours_half(gradients: list[Tensor]) -> None:
    _, found_inf = unscale(gradients, SCALE)
    advance(initial(DYNAMIC), found_inf, DYNAMIC)


def looks(gradients: list[Tensor]) -> dict[str, Call]:
    """Return ways to learn whether any gradient holds inf or NaN."""

    def any_of(test: Callable[[Tensor], Tensor]) -> Call:
        return lambda: any(bool(test(gradient)) for gradient in gradients)

    return {
        "isinf().any(), which misses NaN": any_of(lambda g: g.isinf().any()),
        "isinf or isnan": any_of(lambda g: g.isinf().any() | g.isnan().any()),
        "isfinite().all()": any_of(lambda g: ~g.isfinite().all()),
        "float().sum()": any_of(lambda g: ~g.float().sum().isfinite()),
        "sum(), which may overflow itself": any_of(lambda g: ~g.sum().isfinite()),
        "labkit's unscale, which divides as well": lambda: unscale(gradients, 1.0, in_place=True)[1],
    }


def main() -> None:
    device = options(__doc__, device="cpu").device
    for count, elements in ((1, 1000), (100, 1000), (1000, 1000), (100, 100_000)):
        gradients = [torch.randn(elements, device=device) for _ in range(count)]
        half, names = [g.half() for g in gradients], [str(index) for index in range(count)]
        theirs = Theirs(gradients)
        calls = {"torch.amp": theirs.step, "ours": partial(ours, gradients), "named": partial(ours, gradients, names)}
        print_ratios(f"{count} x {elements}, FP32", medians(calls, device=device))
        calls = {"torch.amp": partial(theirs.step, half), "ours": partial(ours_half, half)}
        print_ratios(f"{count} x {elements}, FP16", medians(calls, device=device))
    for dtype in (torch.float32, torch.float16):
        gradients = [torch.randn(100_000, device=device).to(dtype) for _ in range(10)]
        print_ratios(f"is any of 10 gradients inf? {dtype}", medians(looks(gradients), device=device))


if __name__ == "__main__":
    main()
