"""Replay of a step: in FP32, or unchanged with an observer of every operation.

Idea: until a step is over, a watch keeps the model's inputs, the state of the random generators and
the gradients that arrived at the model's outputs. With these, a copy of the model repeats the step.
`against_fp32` compares the gradients of the step with those of FP32; `culprit` finds the source of
inf or NaN.

Invariant: a replay leaves the model, its buffers and the random state unchanged.
"""

from __future__ import annotations

import copy
import math
import random
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from labkit.instrument.guard import Failed, Unseen, guarded, in_short
from labkit.instrument.histogram import ExponentHistogram, merge
from labkit.instrument.operations import Modules, Operations, op_of_node
from labkit.instrument.records import AgainstFP32, NonFinite, trimmed
from labkit.instrument.sample import count, dense, floats, largest, non_finite, stored
from labkit.instrument.user_code import line_of_user
from labkit.modes import LabMode, open_modes, under

# a replay in FP32 widens tensors of these dtypes
NARROW = (torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
# types of attributes of modules that a replay restores, such as counters; a list or a generator of
# a module's own has its state after the step, so that the replay may take another path
PLAIN = (bool, int, float, str)
KINDS = ("activation gradients", "weight gradients")


@dataclass
class Call:
    """A call of the model: its arguments, the state before it, and the gradients of its outputs.

    Attributes:
        args: positional arguments.
        kwargs: keyword arguments.
        versions: the tensors in the arguments, with torch's counter of their changes in place.
        random: state of torch's generator of the CPU and, if CUDA is in use, that of the GPU.
        others: state of Python's and of NumPy's global generator; None: unknown.
        autocast: (device, enabled, dtype) of torch.autocast.
        modes: the lab's open modes.
        attributes: attributes of modules that may have counters or settings, before the call.
        numbers: layer -> number of its outputs in the step before the call.
        seeds: number of an output -> the gradient that arrived there.
        differentiated: these gradients were themselves differentiated (create_graph).
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    versions: list[tuple[Tensor, int]]
    random: list[Tensor]
    others: tuple[Any, Any] | None
    autocast: list[tuple[str, bool, torch.dtype]]
    modes: tuple[LabMode, ...]
    attributes: list[tuple[nn.Module, dict[str, Any]]]
    numbers: dict[str, int]
    seeds: dict[int, Tensor] = field(default_factory=dict)
    differentiated: bool = False

    def hook_outputs(self, outputs: list[Tensor], failed: Failed) -> None:
        """Record the gradients that arrive at the model's outputs."""
        for number, output in enumerate(outputs):
            if output.requires_grad:
                output.register_hook(guarded(partial(self._arrived, number), failed))

    def _arrived(self, number: int, gradient: Tensor) -> None:
        self.seeds[number] = gradient
        self.differentiated |= torch.is_grad_enabled()


def note_call(
    modules: list[nn.Module],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    numbers: Mapping[str, int] | None,
) -> Call:
    """Record the arguments of a call of a model, and the state before it.

    Args:
        modules: those of the model that may have counters or settings.
        args: positional arguments.
        kwargs: keyword arguments.
        numbers: layer -> number of its outputs so far in the step; None: the step is not sampled.
            Then the state of Python's and of NumPy's generators is left out: reading it takes
            longer than all else.
    """
    random_states = [torch.get_rng_state()]
    devices = ["cpu"]
    if torch.cuda.is_initialized():
        random_states.append(torch.cuda.get_rng_state())
        devices.append("cuda")
    # tensors of inference mode have no counter
    versions = [
        (each, each._version)
        for each in tree_leaves((args, kwargs))
        if isinstance(each, Tensor) and not each.is_inference()
    ]
    autocast = [
        (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
        for device in devices
    ]
    return Call(
        args=args,
        kwargs=kwargs,
        versions=versions,
        random=random_states,
        others=None if numbers is None else _other_generators(),
        autocast=autocast,
        modes=open_modes(),
        attributes=[(module, vars(module).copy()) for module in modules],
        numbers=dict(numbers or {}),
    )


def require_replayable(calls: list[Call]) -> None:
    """Raise an error if the calls of a step cannot be replayed.

    Raises:
        Unseen: the message has the reason.
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


def copied_model(model: nn.Module, wide: bool) -> tuple[nn.Module, dict[int, Any]]:
    """Return a copy of a model without gradients, and the memo of `copy.deepcopy`.

    The memo maps the id of each copied object to its copy. Of hooks, only torch's own are copied.

    Args:
        model: the model.
        wide: whether the copy has its narrow weights and buffers in FP32.

    Raises:
        Unseen: the model cannot be copied.
    """
    if any(hasattr(parameter, "to_local") for parameter in model.parameters()):
        raise Unseen("this rank holds parts of the weights")
    # deepcopy takes an object's copy from the memo, if it is there already
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        dtype = torch.float32 if wide and parameter.dtype in NARROW else parameter.dtype
        copied_weight = parameter.detach().to(dtype, copy=True)
        memo[id(parameter)] = nn.Parameter(copied_weight, parameter.requires_grad)
    for module in model.modules():
        for hooks in (
            module._forward_pre_hooks,
            module._forward_hooks,
            module._backward_pre_hooks,
            module._backward_hooks,
        ):
            torch_hooks = OrderedDict[int, Any]()
            for key, hook in hooks.items():
                if type(hook).__module__.startswith("torch."):
                    torch_hooks[key] = hook
            memo[id(hooks)] = torch_hooks
        for value in vars(module).values():
            # a result of the last forward pass, which deepcopy refuses while it has a graph
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
    """Return nested lists, tuples and dicts with their narrow tensors in FP32."""

    def widen(tensor: Tensor) -> Tensor:
        return tensor.float() if tensor.dtype in NARROW else tensor

    return tree_map_only(Tensor, widen, tree)


@contextmanager
def restored_state(call: Call, memo: dict[int, Any], wide: bool) -> Iterator[None]:
    """Restore the state before a call for a replay by a copy of the model.

    The attributes of the copy's modules stay restored; the state of the random generators and of
    autocast is restored in this block only.

    Args:
        call: the call.
        memo: the copy's memo, of `copied_model`.
        wide: whether autocast is off.
    """
    for module, attributes in call.attributes:
        copied_attributes = vars(memo[id(module)])
        for name, value in attributes.items():
            if type(value) in PLAIN:
                copied_attributes[name] = value
    others = _other_generators()
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices), ExitStack() as stack:
        torch.set_rng_state(call.random[0])
        if len(call.random) > 1:
            torch.cuda.set_rng_state(call.random[1])
        stack.callback(_set_other_generators, others)
        if call.others is not None:
            _set_other_generators(call.others)
        for device, enabled, dtype in call.autocast:
            stack.enter_context(torch.autocast(device, dtype, enabled=enabled and not wide))
        yield


def _other_generators() -> tuple[Any, Any]:
    """Return the state of Python's and of NumPy's global generator."""
    return random.getstate(), np.random.get_state()  # noqa: NPY002


def _set_other_generators(states: tuple[Any, Any]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002


def run_backward(outputs: list[Tensor], seeds: dict[int, Tensor], scale: float) -> None:
    """Run backward from the gradients that arrived at the outputs, divided by `scale`."""
    roots = []
    gradients = []
    for number, seed in seeds.items():
        output = outputs[number]
        if output.requires_grad:
            roots.append(output)
            gradients.append((seed / scale).to(output.dtype))
    torch.autograd.backward(roots, gradients)


class _Comparison:
    """Gradients of FP32, and how many of them are zero in the run.

    Attributes:
        exact: kind -> name -> histogram of the FP32 gradients.
        lost: kind -> name -> (number of elements that are zero in the run and not in FP32, number
            of elements that are not zero in FP32).
        numbers: layer -> number of its outputs so far in the step.
    """

    def __init__(self) -> None:
        self.numbers: dict[str, int] = defaultdict(int)
        self.exact: dict[str, dict[str, ExponentHistogram]] = {kind: {} for kind in KINDS}
        self.lost: dict[str, dict[str, tuple[int, int]]] = {kind: {} for kind in KINDS}

    def add(self, kind: str, name: str, reference: Tensor, here: Tensor | None) -> None:
        """Add a gradient of FP32 and that of the run, which is None if none was observed."""
        histogram = count(reference)
        if name in self.exact[kind]:
            histogram = merge([self.exact[kind][name], histogram])
        self.exact[kind][name] = trimmed(histogram)
        if here is None or here.shape != reference.shape:
            return
        if reference.is_sparse:
            reference = reference.to_dense()
        if here.is_sparse:
            here = here.to_dense()
        is_non_zero = reference != 0
        lost, non_zero = self.lost[kind].get(name, (0, 0))
        lost += int((is_non_zero & (here == 0)).sum())
        non_zero += int(is_non_zero.sum())
        self.lost[kind][name] = (lost, non_zero)

    def hook(
        self, model: nn.Module, own_name: str, observed: dict[tuple[str, int], Tensor]
    ) -> None:
        """Compare the gradients at the outputs of leaf layers with the observed ones.

        Args:
            model: the copy in FP32.
            own_name: the name of the model itself, if it is a leaf.
            observed: (layer, number of the output in the step) -> gradient in the run.
        """

        def after_forward(name: str, _: nn.Module, __: Any, output: Any) -> None:
            for tensor in floats(output):
                if tensor.requires_grad:
                    key = (name, self.numbers[name])
                    self.numbers[name] += 1
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
    """Replay the calls of a step in FP32, and compare gradients of layer outputs and parameters.

    Args:
        model: the model; a copy of it is replayed.
        calls: calls of the model in the step.
        scale: scale of the loss.
        step: number of the step.
        observed: (layer, number of the output in the step) -> gradient in the run.
        gradients: parameter -> gradient in the run.
        loss: the model's output -> the unscaled loss; None: the replay begins with the gradients
            that arrived at the model's outputs.

    Raises:
        Unseen: the calls cannot be replayed.
    """
    require_replayable(calls)
    copied, memo = copied_model(model, wide=True)
    comparison = _Comparison()
    comparison.hook(copied, type(model).__name__, observed)
    # earlier calls of the step, which are not replayed, had outputs, too
    comparison.numbers.update(calls[0].numbers)
    for call in calls:
        with restored_state(call, memo, wide=True), torch.enable_grad():
            output = copied(*wide_tree(call.args), **wide_tree(call.kwargs))
            if loss is not None:
                loss(output).backward()
            else:
                run_backward(floats(output), call.seeds, scale)
    for name, parameter in copied.named_parameters():
        if parameter.grad is not None:
            comparison.add("weight gradients", name, parameter.grad, gradients.get(name))
    seeds = [seed for call in calls for seed in call.seeds.values()]
    non_zero = sum(int(dense(seed).count_nonzero()) for seed in seeds)
    elements = sum(seed.numel() for seed in seeds)
    return AgainstFP32(
        step=step,
        lost=comparison.lost,
        histograms=comparison.exact,
        arrived=(non_zero, elements),
        begins_at="the loss" if loss is not None else "the model's outputs",
    )


def culprit(model: nn.Module, calls: list[Call], scale: float, step: int) -> NonFinite | None:
    """Replay the calls of a step unchanged, and return the source of inf or NaN.

    It is None if inf and NaN do not reappear.

    Raises:
        Unseen: the calls cannot be replayed.
    """
    # a source before the step: its weights, or its batch
    for name, weight in model.named_parameters():
        value = non_finite(weight)
        if value:
            return NonFinite(
                step, layer=name, op="", direction="weight", value=value, largest=largest([weight])
            )
    require_replayable(calls)
    for call in calls:
        for tensor in floats((call.args, call.kwargs)):
            value = non_finite(tensor)
            # an input with -inf, and without inf, is a mask
            if value == "NaN" or bool((stored(tensor) == math.inf).any()):
                return NonFinite(
                    step,
                    layer="",
                    op="a batch",
                    direction="input",
                    value=value,
                    largest=largest([tensor]),
                )
    # a source in the step
    first = _first_non_finite(model, calls, step, divisor=1.0, scale=scale)
    if first is None or first.direction != "backward" or scale == 1:
        return first
    unscaled = _first_non_finite(model, calls, step, divisor=scale, scale=scale)
    return replace(first, by_scale=unscaled is None)


def _first_non_finite(
    model: nn.Module, calls: list[Call], step: int, *, divisor: float, scale: float
) -> NonFinite | None:
    """Replay calls, and return the first operation with inf or NaN, or None.

    Args:
        model: the model; a copy of it is replayed.
        calls: calls of the model in the step.
        step: number of the step.
        divisor: the gradients at the model's outputs are divided by it.
        scale: scale of the loss in the run.
    """
    copied, memo = copied_model(model, wide=False)
    search = _Search(copied, step)
    for call in calls:
        with restored_state(call, memo, wide=False), torch.enable_grad(), Operations(search.look):
            output = floats(under(call.modes, copied, *call.args, **call.kwargs))
        search.label(output, "")
        if search.first is not None and any(non_finite(tensor) for tensor in output):
            return search.first
        # Inf and NaN that did not reach the output may be masked. They are the source only if the
        # backward pass shows no other one.
        in_forward = search.first
        search.first = None
        after_model = _non_finite_seed(list(call.seeds.values()), output, step, scale)
        if after_model is not None:
            return after_model
        run_backward(output, call.seeds, divisor)
        if search.first is not None:
            return search.first
        if in_forward is not None:
            return in_forward
    # every operation was finite, but a sum of gradients over several calls may overflow
    return _non_finite_sum(copied, step)


def _non_finite_seed(
    seeds: list[Tensor], outputs: list[Tensor], step: int, scale: float
) -> NonFinite | None:
    """Return inf or NaN in the gradients that arrived at the model's outputs, or None.

    Args:
        seeds: these gradients.
        outputs: the model's outputs.
        step: number of the step.
        scale: scale of the loss in the run.
    """
    for seed in seeds:
        value = non_finite(seed)
        if not value:
            continue
        # the scale exceeds the range of FP16 gradients only, so an FP32 one has another cause
        in_fp16 = all(each.dtype == torch.float16 for each in seeds)
        return NonFinite(
            step,
            layer="",
            op="between the model's outputs and the scaled loss",
            direction="after the model",
            value=value,
            largest=largest(outputs),
            by_scale=value == "inf" and scale != 1 and in_fp16,
        )
    return None


def _non_finite_sum(model: nn.Module, step: int) -> NonFinite | None:
    """Return the first parameter whose gradient, a sum over calls, holds inf or NaN, or None."""
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            continue
        value = non_finite(parameter.grad)
        if value:
            return NonFinite(
                step,
                layer=name,
                op="sum of gradients",
                direction="backward",
                value=value,
                largest=largest([parameter.grad]),
            )
    return None


class _Search:
    """Search for the first operation of a replay that results in inf or NaN, and its layer.

    Attributes:
        modules: the modules whose forward passes are running.
        step: number of the step.
        first: the first such operation so far, or None.
    """

    def __init__(self, model: nn.Module, step: int) -> None:
        self.modules = Modules()
        self.step = step
        self.first: NonFinite | None = None
        # nodes of the graph that are hooked
        self._labelled: set[Any] = set()
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
        """Hook all new nodes of the graph that lead to these tensors, as operations of `layer`."""
        pending = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
        while pending:
            node = pending.pop()
            if node in self._labelled:
                continue
            self._labelled.add(node)
            node.register_hook(partial(self._after_node, op_of_node(node.name()), layer))
            pending += [inner for inner, _ in node.next_functions if inner is not None]

    def _after_node(self, op: str, layer: str, grad_inputs: Any, grad_outputs: Any) -> None:
        """Judge a node of the backward pass; torch passes its results first."""
        self._judge(op, layer, "backward", floats(grad_outputs), floats(grad_inputs))

    def look(self, func: Any, args: Any, kwargs: Any) -> Callable[[Any], None] | None:
        """Return a function that judges the result of a forward operation, or None.

        An operation without tensors, or with inf as an argument, is intended to return what it
        returns; memory of `empty` holds anything.
        """
        inputs = floats((args, kwargs))
        op = func.overloadpacket.__name__
        written_inf = any(isinstance(arg, float) and not math.isfinite(arg) for arg in args)
        if not inputs or written_inf or "empty" in op or self.first is not None:
            return None
        # an operation in place overwrites its input
        if op.endswith("_"):
            inputs = [tensor.detach().clone() for tensor in inputs]
        layer = self.modules.innermost
        caller = sys._getframe(1)

        def judge_result(result: Any) -> None:
            self._judge(op.strip("_"), layer, "forward", inputs, floats(result), caller)

        return judge_result

    def _judge(
        self,
        op: str,
        layer: str,
        direction: str,
        inputs: list[Tensor],
        results: list[Tensor],
        caller: FrameType | None = None,
    ) -> None:
        """Record the first operation that makes inf or NaN from finite numbers, or NaN from inf."""
        if self.first is not None:
            return
        value = ""
        for result in results:
            value = non_finite(result)
            if value:
                break
        if not value:
            return
        input_values = {non_finite(tensor) for tensor in inputs}
        made_nan = value == "NaN" and "NaN" not in input_values
        all_finite = input_values <= {""}
        if not (made_nan or all_finite):
            return
        line = ""
        if caller is not None:
            line = line_of_user(caller) or ""
        self.first = NonFinite(
            self.step,
            layer=layer,
            op=op,
            direction=direction,
            value=value,
            largest=largest(inputs),
            line=line,
        )
