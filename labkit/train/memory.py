"""How much memory does a run keep between two steps, and for what?

Idea: nothing is estimated. Every tensor that a step leaves behind is counted once, by its storage, under the name of
what it is for. Activations live inside a step only and are not among them.

Invariant: the categories do not overlap; their sum is what the weights, their copies and their statistics take.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from labkit.amp import Engine, WeightRounding

CATEGORIES = ("weights", "master weights", "gradients", "optimizer state")


def bytes_held(engine: Engine) -> dict[str, int]:
    """Return bytes by category, as an engine holds them after a step.

    What Kahan's compensation remembers counts among the masters, whose work it does: one more number for each weight.
    A gradient is counted in the model's format, in which the backward pass leaves it: one for each trainable weight.

    >>> import torch
    >>> from labkit.amp import RECIPES
    >>> engine = Engine(torch.nn.Linear(4, 1), torch.optim.SGD, RECIPES["O2"])  # 4 weights and a bias
    >>> bytes_held(engine)
    {'weights': 10, 'master weights': 20, 'gradients': 10, 'optimizer state': 0}
    """
    weights = engine.weights
    model, seen = list(engine.model.parameters()), set[int]()
    own = _count(model, seen)
    masters = _count(weights.master_weights, seen) if weights.master else 0
    if weights.rounding is WeightRounding.KAHAN and not weights.master:
        masters = sum(p.numel() * p.element_size() for p in weights.model_weights if p.element_size() == 2)
    gradients = sum(p.numel() * p.element_size() for p in weights.model_weights)
    moments = [v for state in engine.optimizer.state.values() for v in state.values() if isinstance(v, Tensor)]
    return dict(zip(CATEGORIES, (own, masters, gradients, _count(moments, seen)), strict=True))


def _count(tensors: Iterable[Tensor], seen: set[int]) -> int:
    total = 0
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            total += storage.nbytes()
    return total
