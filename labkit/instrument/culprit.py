"""Where did a step's inf or NaN come from?"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.instrument.records import NonFinite
from labkit.instrument.replay import Call, as_it_was, copied_model, replayable, run_backward
from labkit.instrument.sample import dense, floats
from labkit.modes import under


def culprit(model: nn.Module, calls: list[Call], scale: float, step: int) -> NonFinite | None:
    """Run a step's calls again as they were, and return where inf or NaN came from; None if it did not come again.

    Raises:
        Unseen: they cannot be run again.
    """
    for name, weight in model.named_parameters():
        if bad := _what(weight):
            return NonFinite(step, name, "", "weight", bad, _largest([weight]))
    for call in replayable(calls):
        for tensor in floats((call.args, call.kwargs)):
            bad = _what(tensor)
            if bad == "NaN" or bool((dense(tensor) == math.inf).any()):  # one of -inf is a mask
                return NonFinite(step, "", "a batch", "input", bad, _largest([tensor]))
    first = _trace(model, calls, step, 1.0, scale)
    if first is not None and first.direction == "backward" and scale != 1:
        return replace(first, by_scale=_trace(model, calls, step, scale, scale) is None)
    return first


def _trace(model: nn.Module, calls: list[Call], step: int, scale: float, scale_of_run: float) -> NonFinite | None:
    """Run calls with the gradients at their outputs divided by `scale`, and look at every operation."""
    copied, memo = copied_model(model, wide=False)
    layers = _Layers(copied, step)
    for call in calls:
        with as_it_was(call, memo, wide=False), torch.enable_grad(), _Operations(layers):
            output = floats(under(call.modes, copied, *call.args, **call.kwargs))
        layers.label(output, "")
        if any(_what(t) for t in output) and layers.first:
            return layers.first
        forward, layers.first = layers.first, None
        seeds = [call.seeds[n] for n in call.seeds]
        bad = next((what for seed in seeds if (what := _what(seed))), "")
        if bad:
            where = "between the model's outputs and the scaled loss"
            narrow = bad == "inf" and scale_of_run != 1 and all(seed.dtype == torch.float16 for seed in seeds)
            return NonFinite(step, "", where, "after the model", bad, _largest(output), by_scale=narrow)
        run_backward(output, call.seeds, scale)
        if layers.first or forward:
            return layers.first or forward
    for name, parameter in copied.named_parameters():
        if parameter.grad is not None and (bad := _what(parameter.grad)):
            return NonFinite(step, name, "sum of gradients", "backward", bad, _largest([parameter.grad]))
    return None


class _Layers:
    """Which layer each operation and each node of the graph belongs to, and the first that gave inf or NaN."""

    def __init__(self, model: nn.Module, step: int) -> None:
        self.path, self.step = [""], step
        self.first: NonFinite | None = None
        self._known: dict[Any, str] = {}
        for name, module in model.named_modules():
            module.register_forward_pre_hook(partial(self._enter, name), with_kwargs=True)
            module.register_forward_hook(self._leave)

    def _enter(self, name: str, _: nn.Module, args: Any, kwargs: Any) -> None:
        self.label(floats((args, kwargs)), self.path[-1])
        self.path.append(name)

    def _leave(self, _: nn.Module, __: Any, output: Any) -> None:
        self.label(floats(output), self.path.pop())

    def label(self, tensors: Iterable[Tensor], layer: str) -> None:
        """Note the layer of all nodes that lead to these tensors and have none, and listen to each."""
        ahead = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
        while ahead:
            node = ahead.pop()
            if node in self._known:
                continue
            self._known[node] = layer
            node.register_hook(partial(self._after_node, _op(node.name()), layer))
            ahead += [other for other, _ in node.next_functions if other is not None]

    def _after_node(self, op: str, layer: str, results: Any, given: Any) -> None:
        self.judge(op, layer, "backward", floats(given), floats(results))

    def judge(self, op: str, layer: str, direction: str, given: list[Tensor], results: list[Tensor]) -> None:
        """Note an operation that is the first to give inf or NaN of finite numbers, or NaN of none."""
        if self.first is None and (bad := next(filter(None, map(_what, results)), "")):
            before = {_what(t) for t in given}
            if (bad == "NaN" and "NaN" not in before) or before <= {""}:
                self.first = NonFinite(self.step, layer, op, direction, bad, _largest(given))


class _Operations(TorchDispatchMode):
    """Looks at what each operation of a forward pass is given and returns."""

    def __init__(self, layers: _Layers) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._layers = layers

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given, op = floats((args, kwargs)), func.overloadpacket.__name__
        written_inf = any(isinstance(a, float) and not math.isfinite(a) for a in args)
        look = bool(given) and not written_inf and "empty" not in op and self._layers.first is None
        before = [t.detach().clone() for t in given] if look and op.endswith("_") else given
        result = func(*args, **(kwargs or {}))
        if look:
            self._layers.judge(op.strip("_"), self._layers.path[-1], "forward", before, floats(result))
        return result


def _op(name: str) -> str:
    """Return an operation's name from that of its node: "LogSoftmaxBackward0" is "log_softmax"."""
    bare = re.sub(r"Backward\d*$", "", name)
    return bare if name.endswith("Backward") else re.sub(r"(?<=[a-z])(?=[A-Z])", "_", bare).lower()


def _what(tensor: Tensor) -> str:
    numbers = dense(tensor)
    if bool(torch.isfinite(numbers).all()):
        return ""
    return "NaN" if bool(numbers.isnan().any()) else "inf"


def _largest(tensors: Iterable[Tensor]) -> float:
    sizes = [dense(t).abs().float() for t in tensors]
    kept = [s[s.isfinite()].max().item() for s in sizes if bool(s.isfinite().any())]
    return max(kept, default=0.0)
