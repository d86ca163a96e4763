"""Groups of parameters with their own options, and one flat master tensor for each group.

Idea: a group is what torch.optim takes, a dict of parameters and options, named over the model's
own parameters; `Weights` replaces them by their masters. An elementwise optimizer does not care
where one parameter ends and the next begins. So a group's masters may lie one after another in one
flat tensor, each parameter is a view into it, and the optimizer's state is cut the same way when it
is written down.

Invariant: every parameter of the model is in exactly one group. A saved state does not
tell whether the master was flat; each form reads what the other wrote.

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
    """Return two groups: weights, which decay, and the other parameters, which do not.

    The others are norms, biases and all else of one dimension or none.

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
    decays = {p: p not in norms and p.dim() > 1 for p in model.parameters()}
    return [
        {"params": [p for p, does in decays.items() if does], "weight_decay": weight_decay},
        {"params": [p for p, does in decays.items() if not does], "weight_decay": 0.0},
    ]


State = dict[str, Any]  # as torch.optim.Optimizer.state_dict returns it


def flatten(
    weights: Sequence[nn.Parameter], dtype: torch.dtype, *, views: bool = True
) -> tuple[nn.Parameter, list[Tensor]]:
    """Return one tensor that holds the weights in `dtype`, and a view into it for each of them.

    With `views`, a weight that is in `dtype` already becomes such a view itself, so that it needs
    no copy back.

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
        RuntimeError: only some of the group have one, or one is sparse; the message says which.
    """
    gradients = [p.grad for p in weights if p.grad is not None]
    if not gradients:
        return None
    without = [names[p] for p in weights if p.grad is None]
    sparse = [names[p] for p in weights if p.grad is not None and p.grad.is_sparse]
    if without or sparse:
        what = "got no gradient, and momentum would move it" if without else "has a sparse gradient"
        raise RuntimeError(
            f"flat master: parameter {(without or sparse)[0]!r} {what} with the rest of its group. "
            "Freeze it before the weights are made, give it a group of its own, or take flat=False."
        )
    # FP16 beside FP32 becomes FP32: exact
    return torch.cat([g.reshape(-1) for g in gradients])


def cut(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Return views into a flat tensor, one for each of its tensors."""
    parts = flat.split([t.numel() for t in like])
    return [part.view(t.shape) for part, t in zip(parts, like, strict=True)]


def split_state(state: State, members: Sequence[Sequence[Tensor]]) -> State:
    """Convert an optimizer's state over flat tensors to one over their members, group by group."""
    split: State = {"state": {}, "param_groups": []}
    first = 0
    for group, weights in zip(state["param_groups"], members, strict=True):
        split["param_groups"].append({**group, "params": list(range(first, first + len(weights)))})
        total = sum(w.numel() for w in weights)
        for name, value in state["state"].get(next(iter(group["params"]), None), {}).items():
            whole = isinstance(value, Tensor) and name != "step" and value.shape == (total,)
            # What is counted for each parameter, such as the number of steps, is copied: shared, it
            # would count double.
            own = [value.clone() if isinstance(value, Tensor) else value for _ in weights]
            parts = cut(value, weights) if whole else own
            for i, part in enumerate(parts):
                split["state"].setdefault(first + i, {})[name] = part
        first += len(weights)
    return split


def join_state(state: State, members: Sequence[Sequence[Tensor]]) -> State:
    """Convert a state over single parameters to one over flat tensors.

    It is the inverse of `split_state`.
    """
    joined: State = {"state": {}, "param_groups": []}
    index = 0  # of the next flat tensor: a group of frozen parameters has none
    for group, weights in zip(state["param_groups"], members, strict=True):
        joined["param_groups"].append({**group, "params": [index] if weights else []})
        kept = [state["state"][i] for i in group["params"] if i in state["state"]]
        if kept and len(kept) != len(weights):
            raise ValueError(
                f"the optimizer's state knows {len(kept)} of a group's {len(weights)} parameters, "
                "and a flat master needs all or none. Load it with flat=False."
            )
        if kept:
            joined["state"][index] = {}
            # what all parameters share, such as the number of steps, is stored once
            for name in kept[0]:
                values = [s[name] for s in kept]
                shaped = all(
                    isinstance(v, Tensor) and v.shape == w.shape
                    for v, w in zip(values, weights, strict=True)
                )
                whole = (
                    torch.cat([v.reshape(-1) for v in values])
                    if shaped and name != "step"
                    else values[0]
                )
                joined["state"][index][name] = whole
        index += bool(weights)
    return joined
