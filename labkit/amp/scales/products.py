"""How does a model train whose matrix products take 8- or 4-bit numbers?

Idea: a mode sees each layer's call, linear or convolution, and carries it out as products of scaled, rounded operands
(`Layer`). What the scales have to remember is kept by the weight's name (`ScaleMemory`).

Invariant: looking, a pass without gradients, changes no state.

What it does not do: products of two activations (attention) and embeddings stay FP32. A recurrent layer's inputs,
weights and the gradient of its outputs are written, but what happens between its steps is FP32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from labkit.amp.scales.layer import Layer
from labkit.amp.scales.memory import ScaleMemory
from labkit.amp.scales.product_format import ProductFormat
from labkit.gemm.accumulated import run
from labkit.gemm.recurrent import RECURRENT
from labkit.modes import LabMode, body_of, break_graph, is_composite

LAYERS = frozenset(f"conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3)) | {"linear"}


class Products(LabMode):
    """The mode of one engine, and what its scales remember.

    Args:
        format: how operands are written.
        model: whose last layer, as its modules are declared, may stay FP32; embeddings look up and multiply nothing.
        names: the model's parameters by name: what a layer's state is kept under.
        seed: of stochastic rounding.
        recipe: the name that a refusal says.
    """

    def __init__(
        self, format: ProductFormat, model: nn.Module, names: Mapping[nn.Parameter, str], seed: int, recipe: str
    ) -> None:
        super().__init__()
        self.format, self.names, self.recipe = format, names, recipe
        device = next((p.device for p in names), torch.device("cpu"))
        self.memory = ScaleMemory(format.history, device if format.stochastic_gradients else "cpu", seed)
        layers = [part for part in model.modules() if not isinstance(part, nn.Embedding | nn.EmbeddingBag)]
        weights = [p for part in layers for p in part.parameters(recurse=False) if p.dim() > 1]
        self._last = [names[p] for p in weights[-1:]] if format.last_in_fp32 else []

    def begun(self) -> Products:
        """Return the mode, for the region of another forward pass to open."""
        self.memory.end_step()
        return self

    def _layer(self, key: str, weight: Tensor, op: str) -> Layer:
        return Layer(self.format, self.memory, key, weight, op, self.recipe)

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        break_graph()
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if name in RECURRENT:
            return self._recurrent(func, args, kwargs)
        if name not in LAYERS:
            if not is_composite(func):
                return func(*args, **kwargs)
            with self:
                return body_of(func)(*args, **kwargs)
        given, weight = (args[i] if len(args) > i else kwargs[key] for i, key in enumerate(("input", "weight")))
        key = self._key(weight, name)
        if key in self._last or weight.dim() < 2 or not given.dtype == weight.dtype == torch.float32:
            return func(*args, **kwargs)
        return run(func, args, kwargs, self._layer(key, weight, name))

    def _key(self, weight: Tensor, op: str) -> str:
        """Return what a weight's state is kept under; one that was computed has no name, so its shape has to do."""
        name = self.names.get(weight) if isinstance(weight, nn.Parameter) else None
        return name or f"{op} {tuple(weight.shape)}"

    def _recurrent(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        """Call a recurrent layer on written inputs and weights; its outputs' gradient is written on the way back."""
        weights = next(a for a in args if isinstance(a, list | tuple) and any(isinstance(t, nn.Parameter) for t in a))
        if any(t.dtype != torch.float32 for t in (args[0], *weights)):
            return func(*args, **kwargs)
        layers = [self._layer(self._key(w, "recurrent"), w, "recurrent") if w.dim() > 1 else None for w in weights]
        first = next(layer for layer in layers if layer is not None)
        written = [w if at is None else at.rewrite(w, "weight") for at, w in zip(layers, weights, strict=True)]
        given = [written if a is weights else a for a in args[1:]]
        out, *states = func(first.rewrite(args[0], "input"), *given, **kwargs)
        return (first.rewrite(out, "gradient"), *states)
