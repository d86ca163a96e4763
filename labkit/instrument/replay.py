"""How is a step run again that is over?

Idea: the inputs that the model was seen to get, its random numbers and the gradient that arrived at its outputs are
kept until the step is over. So a copy of the model can run the step again: in FP32 (`against_fp32`), or as it was with
every operation looked at (`culprit`).

Invariant: the model, its buffers and every state of random numbers are afterwards what they were.
"""

from __future__ import annotations

import copy
import random
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from labkit.instrument.guard import Failed, guarded
from labkit.modes import LabMode, open_modes

NARROW = (torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
DEVICES = ("cpu", "cuda")
PLAIN = (bool, int, float, str)


class Unseen(Exception):
    """A step cannot be run again; the message says why."""


@dataclass
class Call:
    """A call of the model: what it was given, in which state, and the gradients that arrived at its outputs."""

    args: Any
    kwargs: Any
    versions: list[tuple[Tensor, int]]
    random: list[Tensor]
    autocast: list[tuple[str, bool, torch.dtype]]
    modes: tuple[LabMode, ...]
    attributes: list[tuple[nn.Module, dict[str, Any]]]  # of modules that count or are told something, as they stood
    seeds: dict[int, Tensor] = field(default_factory=dict)
    differentiated: bool = False  # its gradients were, too: create_graph

    def returned(self, outputs: list[Tensor], failed: Failed) -> None:
        """Listen for the gradients at what the model returned."""
        for number, output in enumerate(outputs):
            if output.requires_grad:
                output.register_hook(guarded(partial(self._arrived, number), failed))

    def _arrived(self, number: int, gradient: Tensor) -> None:
        self.seeds[number] = gradient
        self.differentiated |= torch.is_grad_enabled()


def note_call(modules: list[nn.Module], args: Any, kwargs: Any) -> Call:
    """Note what a call of a model is given, and in which state it and some of its modules are, before it runs."""
    cuda = [torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else []
    return Call(
        args,
        kwargs,
        [(t, t._version) for t in (*args, *kwargs.values()) if isinstance(t, Tensor) and not t.is_inference()],
        [torch.get_rng_state(), *cuda],
        [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in DEVICES[: 1 + bool(cuda)]],
        open_modes(),
        [(module, vars(module).copy()) for module in modules],
    )


def replayable(calls: list[Call]) -> list[Call]:
    """Return calls that can be run again.

    Raises:
        Unseen: one of them cannot.
    """
    if not calls:
        raise Unseen("the model was not called as a whole in it")
    for call in calls:
        if not call.seeds:
            raise Unseen("no gradient arrived at the model's outputs")
        if call.differentiated:
            raise Unseen("its gradients were differentiated in their turn (create_graph), as for a gradient penalty")
        if any(tensor._version != version for tensor, version in call.versions):
            raise Unseen("an input of the model was changed in place since")
    return calls


def copied_model(model: nn.Module, wide: bool) -> tuple[nn.Module, dict[int, Any]]:
    """Return a copy of a model without gradients or hooks of others than torch; in FP32 if `wide`; and a memo."""
    memo: dict[int, Any] = {}
    if any(hasattr(parameter, "to_local") for parameter in model.parameters()):
        raise Unseen("this rank holds parts of the weights")
    for parameter in model.parameters():
        dtype = torch.float32 if wide and parameter.dtype in NARROW else parameter.dtype
        memo[id(parameter)] = nn.Parameter(parameter.detach().to(dtype, copy=True), parameter.requires_grad)
    for module in model.modules():
        for hooks in (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks):
            kept = [(key, hook) for key, hook in hooks.items() if type(hook).__module__.startswith("torch.")]
            memo[id(hooks)] = OrderedDict(kept)
        for value in vars(module).values():
            if isinstance(value, Tensor) and not value.is_leaf:  # what a forward pass has left behind
                memo[id(value)] = value.detach()
    try:
        copied = copy.deepcopy(model, memo)
    except Exception as error:
        raise Unseen(f"the model cannot be copied ({error})") from error
    for module in copied.modules() if wide else ():
        for name, buffer in module._buffers.items():
            module._buffers[name] = wide_tree(buffer)
    return copied, memo


def wide_tree(tree: Any) -> Any:
    """Return containers with their narrow tensors in FP32."""
    return tree_map_only(Tensor, lambda t: t.float() if t.dtype in NARROW else t, tree)


@contextmanager
def as_it_was(call: Call, memo: dict[int, Any], wide: bool) -> Iterator[None]:
    """Put what modules count or are told, random numbers and autocast as they were; the last two for this block."""
    for module, attributes in call.attributes:
        vars(memo[id(module)]).update({name: value for name, value in attributes.items() if type(value) in PLAIN})
    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002  # what models draw from
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
    pairs = [(outputs[n], (seed / scale).to(outputs[n].dtype)) for n, seed in seeds.items() if outputs[n].requires_grad]
    torch.autograd.backward([output for output, _ in pairs], [seed for _, seed in pairs])
