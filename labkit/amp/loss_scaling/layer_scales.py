"""Gradient scales of single layers, on top of the loss scale.

Idea: the loss scale shifts all gradients alike. A layer can have a shift of its own. In the
backward pass, gradients are multiplied by 2^k where they enter it, and by 2^-k where they leave it,
to the layers before and to its weights.

Invariant: a power of two moves exponents only, so where nothing underflows or overflows, every
gradient outside is the same to the bit.

Source: arXiv:1910.12385 (adaptive loss scaling by layer; there the scale is chosen by statistics,
here by hand).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from labkit.formats.arguments import require_kind

_HOLDS_ANY_SCALE = (torch.float32, torch.float64)
# FP32 holds 2^126 and 2^-126 as normal numbers
_LARGEST_LOG2 = 126
# a layer's inputs in its current call, each with its version at the time
_Inputs = list[tuple[Tensor, int]]


@contextmanager
def layer_scales(model: nn.Module, log2_scales: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Scale the gradients inside some layers by powers of two, for a `with` block.

    The gradients of FP16 and BF16 weights stay scaled, because they would underflow if they were
    unscaled in their dtype. The block gets a dict of these scales, parameter name -> log2: multiply
    the gradients by 2^-log2 in FP32, after `unscale`.

    Args:
        model: the model of the layers.
        log2_scales: layer name, as in `model.named_modules()` -> k; a layer with two names may have
            either. A layer inside another has both scales.

    Raises:
        ValueError: the model has no such layer, k is not a whole number from -126 to 126, or a
            weight of the layer is used outside of it as well, so that its gradient would be a sum
            of scaled and unscaled parts.
        RuntimeError: in the forward pass, if a layer changes its input in place, since autograd
            then drops the hook that unscales the gradient of the input.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    >>> with layer_scales(model, {"0": 10}) as remaining:
    ...     model(torch.ones(1, 2)).sum().backward()
    >>> remaining
    {}
    """
    require_kind(model, nn.Module, "model")
    require_kind(log2_scales, Mapping, "log2_scales", "Pass layer name -> k")
    remaining: dict[str, int] = {}
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    with ExitStack() as hooks:
        for layer_name, exponent in log2_scales.items():
            layer = _layer(model, layer_name, exponent)
            # the caller's dict gets no number of numpy
            log2 = int(exponent)
            enter = partial(torch.mul, other=2.0**log2)
            leave = partial(torch.mul, other=2.0**-log2)
            inputs: _Inputs = []
            at_inputs = partial(_at_inputs, leave, inputs)
            at_output = partial(_at_output, enter, inputs, layer_name)
            hooks.callback(layer.register_forward_pre_hook(at_inputs, with_kwargs=True).remove)
            hooks.callback(layer.register_forward_hook(at_output).remove)
            for parameter in layer.parameters():
                if parameter.requires_grad and parameter.dtype in _HOLDS_ANY_SCALE:
                    hooks.callback(parameter.register_hook(leave).remove)
                elif parameter.requires_grad:
                    # a layer inside another has both scales
                    name = names[id(parameter)]
                    remaining[name] = remaining.get(name, 0) + log2
        yield remaining


def _layer(model: nn.Module, name: str, log2: int) -> nn.Module:
    layers: dict[str, nn.Module] = dict(model.named_modules(remove_duplicate=False))
    if name not in layers:
        raise ValueError(f"the model has no layer {name!r}; it has {', '.join(map(repr, layers))}")
    whole = isinstance(log2, Integral) and not isinstance(log2, bool)
    if not whole or abs(log2) > _LARGEST_LOG2:
        raise ValueError(
            "expected a whole number from -126 to 126 as log2 scale, whose power FP32 holds with "
            f"its reciprocal; got {log2!r}"
        )
    inside = set(layers[name].modules())
    outside = {
        id(p)
        for module in layers.values()
        if module not in inside
        for p in module.parameters(recurse=False)
    }
    tied = [p_name for p_name, p in layers[name].named_parameters() if id(p) in outside]
    if tied:
        raise ValueError(
            f"{', '.join(tied)} of layer {name!r} is used outside of it as well: scale a layer "
            "with both"
        )
    return layers[name]


def _at_inputs(
    hook: Callable[[Tensor], Tensor], inputs: _Inputs, _layer: nn.Module, args: Any, kwargs: Any
) -> Any:
    """Pass views of the inputs to the layer, so that the hook gets this layer's gradients only."""
    inputs.clear()

    def with_hook(tensor: Tensor) -> Tensor:
        if not tensor.requires_grad:
            return tensor
        view = tensor.view_as(tensor)
        view.register_hook(hook)
        inputs.append((view, view._version))
        return view

    return tree_map_only(Tensor, with_hook, (args, kwargs))


def _at_output(
    hook: Callable[[Tensor], Tensor],
    inputs: _Inputs,
    name: str,
    _layer: nn.Module,
    _args: Any,
    output: Any,
) -> None:
    """Register the hook that scales on the outputs, unless the layer has changed its input."""
    if any(view._version != version for view, version in inputs):
        raise RuntimeError(
            f"layer {name!r} changes its input in place, so its gradients cannot be scaled "
            "separately. Construct it with inplace=False, or scale a layer around it that leaves "
            "its input unchanged."
        )
    for leaf in tree_leaves(output):
        if isinstance(leaf, Tensor) and leaf.requires_grad:
            leaf.register_hook(hook)
