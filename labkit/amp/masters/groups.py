"""Which parameters want other options than the rest? Norms and biases, which weight decay does no good.

Idea: a group is what torch.optim takes, a dict of parameters and options, named over the model's own parameters;
`Weights` replaces them by their masters.

Invariant: every parameter of the model stands in exactly one group.

Source: arXiv:1812.01187, section 3.1 (no bias decay).
"""

from __future__ import annotations

from typing import Any

from torch import nn

from labkit.amp.masters.convert import NORM_LAYERS


def no_decay_on_norms_and_biases(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return two groups: weights that decay; norms, biases and all else of one dimension or none, which do not.

    >>> model = nn.Sequential(nn.Linear(2, 4), nn.LayerNorm(4))
    >>> [(g["weight_decay"], len(g["params"])) for g in no_decay_on_norms_and_biases(model, 0.01)]
    [(0.01, 1), (0.0, 3)]
    """
    norms = {p for module in model.modules() if isinstance(module, NORM_LAYERS) for p in module.parameters()}
    decays = {p: p not in norms and p.dim() > 1 for p in model.parameters()}
    return [
        {"params": [p for p, does in decays.items() if does], "weight_decay": weight_decay},
        {"params": [p for p, does in decays.items() if not does], "weight_decay": 0.0},
    ]
