"""Groups of parameters with their own options, and one flat master tensor for each group.

Idea: a group is what torch.optim takes, a dict of parameters and options, named over the model's
own parameters; `Weights` replaces them by their masters. An elementwise optimizer treats each
number alone. So the masters of a group may lie one after another in one flat tensor, into which
each parameter is a view. The optimizer's state is split in the same way when it is saved.

Invariant: a trainable parameter is in at most one group. A saved state is the same with flat
masters and without, so either can be loaded by the other.

Source: arXiv:1812.01187, section 3.1 (no bias decay); apex.fp16_utils.prep_param_lists (the flat
master).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from labkit.amp.masters.convert import NORM_LAYERS
from labkit.formats.arguments import require_kind


def no_decay_on_norms_and_biases(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return two groups: weights, which decay, and other parameters, which do not.

    The others are those of normalisation layers, and all with fewer than two dimensions.

    Args:
        model: the model.
        weight_decay: the weight decay of the first group.

    >>> model = nn.Sequential(nn.Linear(2, 4), nn.LayerNorm(4))
    >>> [(g["weight_decay"], len(g["params"])) for g in no_decay_on_norms_and_biases(model, 0.01)]
    [(0.01, 1), (0.0, 3)]
    """
    require_kind(model, nn.Module, "model")
    require_kind(weight_decay, float, "weight_decay")
    norms = {
        p
        for module in model.modules()
        if isinstance(module, NORM_LAYERS)
        for p in module.parameters()
    }
    decaying: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for p in model.parameters():
        if p not in norms and p.dim() > 1:
            decaying.append(p)
        else:
            others.append(p)
    return [
        {"params": decaying, "weight_decay": weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]


# The dict that torch.optim.Optimizer.state_dict returns.
State = dict[str, Any]


def flatten(
    weights: Sequence[nn.Parameter], dtype: torch.dtype, *, views: bool = True
) -> tuple[nn.Parameter, list[Tensor]]:
    """Return one tensor that holds the weights in `dtype`, and a view into it for each of them.

    Args:
        weights: parameters of any dtypes.
        dtype: the dtype of the flat tensor.
        views: whether a weight that is already in `dtype` becomes a view into the flat tensor, so
            that it needs no copy back.

    >>> parameters = [nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.zeros(2))]
    >>> flat, (weight, bias) = flatten(parameters, torch.float32)
    >>> flat.shape, weight.shape, bias.shape
    (torch.Size([8]), torch.Size([2, 3]), torch.Size([2]))
    """
    flat = nn.Parameter(torch.cat([w.detach().to(dtype).reshape(-1) for w in weights]))
    masters = cut(flat.detach(), weights)
    for weight, view in zip(weights, masters, strict=True):
        if weight.dtype == dtype and views:
            weight.data = view
    return flat, masters


def flat_gradient(
    weights: Sequence[nn.Parameter], names: Mapping[nn.Parameter, str]
) -> Tensor | None:
    """Return the gradients of one group's parameters as one tensor, or None without any.

    Raises:
        RuntimeError: only some of the parameters have a gradient, or a gradient is sparse; the
            message names a parameter.
    """
    gradients = [p.grad for p in weights if p.grad is not None]
    if not gradients:
        return None
    without = [names[p] for p in weights if p.grad is None]
    sparse = [names[p] for p in weights if p.grad is not None and p.grad.is_sparse]
    if without:
        raise RuntimeError(
            f"flat master: parameter {without[0]!r} got no gradient, and momentum would move it "
            "with the rest of its group. Freeze it before the weights are made, give it a group of "
            "its own, or take flat=False."
        )
    if sparse:
        raise RuntimeError(
            f"flat master: parameter {sparse[0]!r} has a sparse gradient, which cannot be flat. "
            "Take flat=False, or a layer with sparse=False."
        )
    # torch.cat promotes FP16 beside FP32 to FP32, which is exact.
    return torch.cat([g.reshape(-1) for g in gradients])


def cut(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Return consecutive views into a flat tensor, with the shapes of the tensors in `like`."""
    parts = flat.split([t.numel() for t in like])
    return [part.view(t.shape) for part, t in zip(parts, like, strict=True)]


def split_state(state: State, members: Sequence[Sequence[Tensor]]) -> State:
    """Convert an optimizer's state over flat tensors to one over their members, group by group."""
    split: State = {"state": {}, "param_groups": []}
    # The index of the group's first parameter.
    first = 0
    for group, weights in zip(state["param_groups"], members, strict=True):
        split["param_groups"].append({**group, "params": list(range(first, first + len(weights)))})
        total = sum(w.numel() for w in weights)
        # A group has one flat tensor, or none if all its parameters are frozen. A tensor that was
        # never stepped has no state.
        fields: State = {}
        for flat_index in group["params"]:
            fields = state["state"].get(flat_index, {})
        for name, value in fields.items():
            if isinstance(value, Tensor) and name != "step" and value.shape == (total,):
                parts = cut(value, weights)
            else:
                # Each parameter gets a copy: optimizers increment "step" in place, and a shared one
                # would be incremented once for each parameter.
                parts = [value.clone() if isinstance(value, Tensor) else value for _ in weights]
            for i, part in enumerate(parts):
                split["state"].setdefault(first + i, {})[name] = part
        first += len(weights)
    return split


def join_state(state: State, members: Sequence[Sequence[Tensor]]) -> State:
    """Convert a state over single parameters to one over flat tensors: undo `split_state`.

    Raises:
        ValueError: the state has another number of groups, or of parameters in a group, or only
            some of a group's parameters have a state.
    """
    _require_same_groups(state["param_groups"], members)
    joined: State = {"state": {}, "param_groups": []}
    # The index of the next flat tensor.
    index = 0
    for group, weights in zip(state["param_groups"], members, strict=True):
        # A group of frozen parameters has no flat tensor.
        if not weights:
            joined["param_groups"].append({**group, "params": []})
            continue
        joined["param_groups"].append({**group, "params": [index]})
        states = [state["state"][i] for i in group["params"] if i in state["state"]]
        if states and len(states) != len(weights):
            raise ValueError(
                f"the optimizer's state has {len(states)} of a group's {len(weights)} parameters, "
                "and a flat master needs all or none. Load it with flat=False."
            )
        if states:
            joined["state"][index] = {
                name: _joined([fields[name] for fields in states], weights, name)
                for name in states[0]
            }
        index += 1
    return joined


def _require_same_groups(
    groups: Sequence[Mapping[str, Any]], members: Sequence[Sequence[Tensor]]
) -> None:
    """Raise a ValueError if groups of a state have other sizes than those of the optimizer."""
    sizes = [len(weights) for weights in members]
    saved = [len(group["params"]) for group in groups]
    if saved != sizes:
        raise ValueError(
            f"expected the state of an optimizer with {sizes} parameters in its groups, got one "
            f"with {saved}. Make the same groups before you load it."
        )


def _joined(values: Sequence[Any], weights: Sequence[Tensor], name: str) -> Any:
    """Return one field of all parameters' states as a flat tensor, or as the shared value."""
    elementwise = all(
        isinstance(value, Tensor) and value.shape == weight.shape
        for value, weight in zip(values, weights, strict=True)
    )
    if elementwise and name != "step":
        return torch.cat([value.reshape(-1) for value in values])
    # The number of steps, for instance, is the same for all.
    return values[0]
