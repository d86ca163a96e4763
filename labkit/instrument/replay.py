"""Replay of a step: in FP32, or unchanged with an observer of every operation.

Idea: a watch keeps the model's inputs, the state of the random generators and the gradients at its
outputs until the step is over. With them, a copy of the model repeats the step. `against_fp32`
compares its gradients with those of FP32; `culprit` finds the source of its inf or NaN.

Invariant: a replay leaves the model, its buffers and the random state unchanged.
"""

from __future__ import annotations

import copy
import math
import random
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from labkit.instrument.guard import Failed, Unseen, guarded, in_short
from labkit.instrument.histogram import ExponentHistogram, merge
from labkit.instrument.operations import Modules, Operations, op_of_node
from labkit.instrument.records import AgainstFP32, NonFinite, trimmed
from labkit.instrument.sample import count, dense, floats, largest, non_finite
from labkit.instrument.user_code import line_of_user
from labkit.modes import LabMode, open_modes, under

NARROW = (torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
DEVICES = ("cpu", "cuda")
PLAIN = (bool, int, float, str)


@dataclass
class Call:
    """A call of the model: its arguments, the state before it, and the gradients of its outputs."""

    args: Any
    kwargs: Any
    versions: list[tuple[Tensor, int]]
    random: list[Tensor]
    autocast: list[tuple[str, bool, torch.dtype]]
    modes: tuple[LabMode, ...]
    # of modules with counters or settings, before the call
    attributes: list[tuple[nn.Module, dict[str, Any]]]
    seeds: dict[int, Tensor] = field(default_factory=dict)
    differentiated: bool = False  # its gradients were, too: create_graph

    def hook_outputs(self, outputs: list[Tensor], failed: Failed) -> None:
        """Record the gradients that arrive at the model's outputs."""
        for number, output in enumerate(outputs):
            if output.requires_grad:
                output.register_hook(guarded(partial(self._arrived, number), failed))

    def _arrived(self, number: int, gradient: Tensor) -> None:
        self.seeds[number] = gradient
        self.differentiated |= torch.is_grad_enabled()


def note_call(modules: list[nn.Module], args: Any, kwargs: Any) -> Call:
    """Record the arguments of a call of a model, and the state before it."""
    cuda = [torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else []
    return Call(
        args,
        kwargs,
        [
            (t, t._version)
            for t in (*args, *kwargs.values())
            if isinstance(t, Tensor) and not t.is_inference()
        ],
        [torch.get_rng_state(), *cuda],
        [
            (d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d))
            for d in DEVICES[: 1 + bool(cuda)]
        ],
        open_modes(),
        [(module, vars(module).copy()) for module in modules],
    )


def replayable(calls: list[Call]) -> list[Call]:
    """Return the calls, if a replay is possible.

    Raises:
        Unseen: a call cannot be replayed.
    """
    if not calls:
        raise Unseen("the model was not called as a whole in it")
    for call in calls:
        if not call.seeds:
            raise Unseen("no gradient arrived at the model's outputs")
        if call.differentiated:
            raise Unseen(
                "its gradients were differentiated (create_graph), as for a gradient penalty"
            )
        if any(tensor._version != version for tensor, version in call.versions):
            raise Unseen("an input of the model was changed in place after the call")
    return calls


def copied_model(model: nn.Module, wide: bool) -> tuple[nn.Module, dict[int, Any]]:
    """Return a copy of a model without gradients, in FP32 if `wide`, and the copy's memo.

    Only torch's own hooks are copied.
    """
    memo: dict[int, Any] = {}
    if any(hasattr(parameter, "to_local") for parameter in model.parameters()):
        raise Unseen("this rank holds parts of the weights")
    for parameter in model.parameters():
        dtype = torch.float32 if wide and parameter.dtype in NARROW else parameter.dtype
        memo[id(parameter)] = nn.Parameter(
            parameter.detach().to(dtype, copy=True), parameter.requires_grad
        )
    for module in model.modules():
        for hooks in (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks):
            kept = [
                (key, hook)
                for key, hook in hooks.items()
                if type(hook).__module__.startswith("torch.")
            ]
            memo[id(hooks)] = OrderedDict(kept)
        for value in vars(module).values():
            # a result of the last forward pass
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach()
    try:
        copied = copy.deepcopy(model, memo)
    except Exception as error:
        raise Unseen(f"the model cannot be copied ({in_short(error)})") from error
    if wide:
        for module in copied.modules():
            for name, buffer in module._buffers.items():
                module._buffers[name] = wide_tree(buffer)
    return copied, memo


def wide_tree(tree: Any) -> Any:
    """Return a tree with its narrow tensors in FP32."""
    return tree_map_only(Tensor, lambda t: t.float() if t.dtype in NARROW else t, tree)


@contextmanager
def restored_state(call: Call, memo: dict[int, Any], wide: bool) -> Iterator[None]:
    """Restore the attributes of modules; and for this block, the random state and autocast."""
    for module, attributes in call.attributes:
        vars(memo[id(module)]).update(
            {name: value for name, value in attributes.items() if type(value) in PLAIN}
        )
    # models may draw from either
    python = random.getstate()
    legacy = np.random.get_state()  # noqa: NPY002
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices), ExitStack() as stack:
        torch.set_rng_state(call.random[0])
        if call.random[1:]:
            torch.cuda.set_rng_state(call.random[1])
        for device, enabled, dtype in call.autocast:
            stack.enter_context(torch.autocast(device, dtype, enabled=enabled and not wide))
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(legacy)  # noqa: NPY002


def run_backward(outputs: list[Tensor], seeds: dict[int, Tensor], scale: float) -> None:
    """Run backward from the gradients that arrived at the outputs, divided by `scale`."""
    pairs = [
        (outputs[n], (seed / scale).to(outputs[n].dtype))
        for n, seed in seeds.items()
        if outputs[n].requires_grad
    ]
    torch.autograd.backward([output for output, _ in pairs], [seed for _, seed in pairs])


class _Compared:
    """Gradients of FP32, and which of them are zero in the run: counts by kind and name."""

    def __init__(self) -> None:
        self.exact: dict[str, dict[str, ExponentHistogram]] = {
            "activation gradients": {},
            "weight gradients": {},
        }
        self.lost: dict[str, dict[str, tuple[int, int]]] = {
            "activation gradients": {},
            "weight gradients": {},
        }

    def add(self, kind: str, name: str, reference: Tensor, here: Tensor | None) -> None:
        parts = [self.exact[kind][name]] if name in self.exact[kind] else []
        self.exact[kind][name] = trimmed(merge([*parts, count(reference)]))
        if here is None or here.shape != reference.shape:
            return
        reference, here = (t.to_dense() if t.is_sparse else t for t in (reference, here))
        non_zero = reference != 0
        zeros, alive = self.lost[kind].get(name, (0, 0))
        self.lost[kind][name] = (
            zeros + int((non_zero & (here == 0)).sum()),
            alive + int(non_zero.sum()),
        )

    def hook(
        self, model: nn.Module, own_name: str, observed: dict[tuple[str, int], Tensor]
    ) -> None:
        """Compare gradients at leaf layers' outputs with the observed ones, call by call."""
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
    """Replay the calls of a step in FP32 and compare gradients of layer outputs and parameters.

    Raises:
        Unseen: they cannot be replayed.
    """
    (copied, memo) = copied_model(model, wide=True)
    compared = _Compared()
    compared.hook(copied, type(model).__name__, observed)
    for call in replayable(calls):
        with restored_state(call, memo, wide=True), torch.enable_grad():
            output = copied(*wide_tree(call.args), **wide_tree(call.kwargs))
            if loss is not None:
                loss(output).backward()
            else:
                run_backward(floats(output), call.seeds, scale)
    for name, parameter in copied.named_parameters():
        if parameter.grad is not None:
            compared.add("weight gradients", name, parameter.grad, gradients.get(name))
    outputs = [gradient for call in calls for gradient in call.seeds.values()]
    arrived = (
        sum(int(dense(gradient).count_nonzero()) for gradient in outputs),
        sum(g.numel() for g in outputs),
    )
    begins_at = "the loss" if loss is not None else "the model's outputs"
    return AgainstFP32(step, compared.lost, compared.exact, arrived, begins_at)


def culprit(model: nn.Module, calls: list[Call], scale: float, step: int) -> NonFinite | None:
    """Replay the calls of a step unchanged, and return the source of inf or NaN.

    It is None if inf and NaN do not reappear.

    Raises:
        Unseen: they cannot be replayed.
    """
    for name, weight in model.named_parameters():
        if bad := non_finite(weight):
            return NonFinite(step, name, "", "weight", bad, largest([weight]))
    for call in replayable(calls):
        for tensor in floats((call.args, call.kwargs)):
            bad = non_finite(tensor)
            # one of -inf is a mask
            if bad == "NaN" or bool((dense(tensor) == math.inf).any()):
                return NonFinite(step, "", "a batch", "input", bad, largest([tensor]))
    first = _first_non_finite(model, calls, step, 1.0, scale)
    if first is not None and first.direction == "backward" and scale != 1:
        return replace(first, by_scale=_first_non_finite(model, calls, step, scale, scale) is None)
    return first


def _first_non_finite(
    model: nn.Module, calls: list[Call], step: int, scale: float, scale_of_run: float
) -> NonFinite | None:
    """Replay calls with output gradients divided by `scale`.

    Returns:
        The first operation with inf or NaN.
    """
    copied, memo = copied_model(model, wide=False)
    layers = _Layers(copied, step)
    for call in calls:
        with restored_state(call, memo, wide=False), torch.enable_grad(), Operations(layers.look):
            output = floats(under(call.modes, copied, *call.args, **call.kwargs))
        layers.label(output, "")
        if any(non_finite(t) for t in output) and layers.first:
            return layers.first
        forward = layers.first
        layers.first = None
        seeds = [call.seeds[n] for n in call.seeds]
        bad = next((what for seed in seeds if (what := non_finite(seed))), "")
        if bad:
            where = "between the model's outputs and the scaled loss"
            narrow = (
                bad == "inf"
                and scale_of_run != 1
                and all(seed.dtype == torch.float16 for seed in seeds)
            )
            return NonFinite(
                step, "", where, "after the model", bad, largest(output), by_scale=narrow
            )
        run_backward(output, call.seeds, scale)
        if layers.first or forward:
            return layers.first or forward
    for name, parameter in copied.named_parameters():
        if parameter.grad is not None and (bad := non_finite(parameter.grad)):
            return NonFinite(
                step, name, "sum of gradients", "backward", bad, largest([parameter.grad])
            )
    return None


class _Layers:
    """The layer of each operation and graph node, and the first one that gave inf or NaN."""

    def __init__(self, model: nn.Module, step: int) -> None:
        self.modules = Modules()
        self.step = step
        self.first: NonFinite | None = None
        self._known: dict[Any, str] = {}
        self.modules.add_names(model, unnamed="")
        for module in model.modules():
            module.register_forward_pre_hook(self._enter, with_kwargs=True)
            module.register_forward_hook(self._leave)

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self.label(floats((args, kwargs)), self.modules.innermost)
        self.modules.enter(module)

    def _leave(self, _: nn.Module, __: Any, output: Any) -> None:
        self.label(floats(output), self.modules.leave())

    def label(self, tensors: Iterable[Tensor], layer: str) -> None:
        """Assign the layer to all unassigned nodes that lead to these tensors, and observe each."""
        ahead = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
        while ahead:
            node = ahead.pop()
            if node in self._known:
                continue
            self._known[node] = layer
            node.register_hook(partial(self._after_node, op_of_node(node.name()), layer))
            ahead += [other for other, _ in node.next_functions if other is not None]

    def _after_node(self, op: str, layer: str, results: Any, given: Any) -> None:
        self.judge(op, layer, "backward", floats(given), floats(results))

    def look(self, func: Any, args: Any, kwargs: Any) -> Callable[[Any], None] | None:
        """Look at what an operation of a forward pass is given and returns."""
        given = floats((args, kwargs))
        op = func.overloadpacket.__name__
        written_inf = any(isinstance(a, float) and not math.isfinite(a) for a in args)
        if not given or written_inf or "empty" in op or self.first is not None:
            return None
        before = [t.detach().clone() for t in given] if op.endswith("_") else given
        layer = self.modules.innermost
        caller = sys._getframe(1)
        return lambda result: self.judge(
            op.strip("_"), layer, "forward", before, floats(result), caller
        )

    def judge(
        self,
        op: str,
        layer: str,
        direction: str,
        given: list[Tensor],
        results: list[Tensor],
        caller: Any = None,
    ) -> None:
        """Record the first operation that makes inf or NaN from finite numbers, or NaN from inf."""
        if self.first is None and (bad := next(filter(None, map(non_finite, results)), "")):
            before = {non_finite(t) for t in given}
            if (bad == "NaN" and "NaN" not in before) or before <= {""}:
                line = line_of_user(caller) or "" if caller is not None else ""
                self.first = NonFinite(
                    self.step, layer, op, direction, bad, largest(given), line=line
                )
