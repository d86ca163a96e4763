"""What would this step have been in FP32?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from labkit.instrument.histogram import ExponentHistogram, merge
from labkit.instrument.records import AgainstFP32, trimmed
from labkit.instrument.replay import Call, as_it_was, copied_model, replayable, run_backward, wide_tree
from labkit.instrument.sample import count, dense, floats


class _Compared:
    """What FP32 gives, and which of it is zero here: counted as it comes, kind by kind and name by name."""

    def __init__(self) -> None:
        self.exact: dict[str, dict[str, ExponentHistogram]] = {"activation gradients": {}, "weight gradients": {}}
        self.lost: dict[str, dict[str, tuple[int, int]]] = {"activation gradients": {}, "weight gradients": {}}

    def add(self, kind: str, name: str, reference: Tensor, here: Tensor | None) -> None:
        parts = [self.exact[kind][name]] if name in self.exact[kind] else []
        self.exact[kind][name] = trimmed(merge([*parts, count(reference)]))
        if here is None or here.shape != reference.shape:
            return
        reference, here = (t.to_dense() if t.is_sparse else t for t in (reference, here))
        there = reference != 0
        zeros, alive = self.lost[kind].get(name, (0, 0))
        self.lost[kind][name] = (zeros + int((there & (here == 0)).sum()), alive + int(there.sum()))

    def listen(self, model: nn.Module, own_name: str, observed: dict[tuple[str, int], Tensor]) -> None:
        """Compare the gradients of all leaf layers' outputs with those that were observed, in the order of calls."""
        numbers: dict[str, int] = defaultdict(int)

        def after_forward(name: str, _: nn.Module, __: Any, output: Any) -> None:
            for tensor in floats(output):
                if tensor.requires_grad:
                    key = (name, numbers[name])
                    numbers[name] += 1
                    tensor.register_hook(partial(arrived, key))

        def arrived(key: tuple[str, int], gradient: Tensor) -> None:
            self.add("activation gradients", key[0], gradient.detach(), observed.get(key))

        for name, module in model.named_modules():
            if next(module.children(), None) is None:
                module.register_forward_hook(partial(after_forward, name or own_name))


def against_fp32(
    model: nn.Module,
    calls: list[Call],
    scale: float,
    step: int,
    observed: dict[tuple[str, int], Tensor],
    gradients: dict[str, Tensor | None],
    loss: Callable[[Any], Tensor] | None,
) -> AgainstFP32:
    """Run a step's calls again in FP32, and compare the gradients of layers' outputs and of parameters.

    Raises:
        Unseen: they cannot be run again.
    """
    (copied, memo), compared = copied_model(model, wide=True), _Compared()
    compared.listen(copied, type(model).__name__, observed)
    for call in replayable(calls):
        with as_it_was(call, memo, wide=True), torch.enable_grad():
            output = copied(*wide_tree(call.args), **wide_tree(call.kwargs))
            if loss is not None:
                loss(output).backward()
            else:
                run_backward(floats(output), call.seeds, scale)
    for name, parameter in copied.named_parameters():
        if parameter.grad is not None:
            compared.add("weight gradients", name, parameter.grad, gradients.get(name))
    outputs = [gradient for call in calls for gradient in call.seeds.values()]
    arrived = sum(int(dense(gradient).count_nonzero()) for gradient in outputs), sum(g.numel() for g in outputs)
    begins_at = "the loss" if loss is not None else "the model's outputs"
    return AgainstFP32(step, compared.lost, compared.exact, arrived, begins_at)
