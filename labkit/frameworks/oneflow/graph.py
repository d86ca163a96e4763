"""What does a graph do that a training loop would have done?

Idea: `build` says how a batch becomes a loss, and calls its `backward`. The graph calls `build` under autocast, scales
the loss on its way into backward, and then does the rest itself: unscale, clip, step or skip, zero, step the schedule.

Invariant: a step is taken with the unscaled sum of all micro-batches' gradients, finite ones if the scaler is dynamic.

What it does not do: compile. `build` runs at each call, and operations are cast by torch's lists (`labkit.amp.POLICY`).

Source: oneflow.nn.graph, graph.py and graph_config.py; lazy_op_interpreter.cpp (one call is one batch, cut along
dimension 0 into as many micro-batches as gradients are accumulated over; their outputs are put together again).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from labkit.amp import RECIPES, ScalerConfig, ScalerState, decide, initial, static, unscale
from labkit.amp.scaling.clip import clip_
from labkit.frameworks.oneflow.amp import GradScaler, StaticGradScaler
from labkit.interop import format_of

_NO_SCALER = static(1.0, skip_on_inf=False)


class GraphConfig:
    """What a graph is told besides its computation."""

    def __init__(self) -> None:
        self.training = False
        self.amp_dtype: torch.dtype | None = None
        self.gradient_accumulation_steps = 1

    def enable_amp(self, mode: bool = True, *, dtype: torch.dtype = torch.float16) -> None:
        """Cast operations to FP16 or BF16, or stop it.

        Raises:
            TypeError: mode is no bool.
            ValueError: dtype is another one.
        """
        if type(mode) is not bool:
            raise TypeError(f"enable_amp(True) or enable_amp(False); it was given {mode!r}")
        if dtype not in (torch.float16, torch.bfloat16):
            raise ValueError(f"dtype is float16 or bfloat16; it was given {dtype}")
        self.amp_dtype = dtype if mode else None

    def set_gradient_accumulation_steps(self, value: int) -> None:
        """Cut each batch into micro-batches, whose gradients are added up.

        Raises:
            ValueError: value is no whole number from 1 on.
        """
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"a batch is cut into 1 micro-batch or more; it was given {value!r}")
        self.gradient_accumulation_steps = value

    def allow_fuse_model_update_ops(self, mode: bool = True) -> None:
        """Accept, and do nothing: these three change how fast a compiled graph is, not what it computes."""

    allow_fuse_add_to_output = allow_fuse_cast_scale = allow_fuse_model_update_ops


class Graph:
    """A computation with its training: subclass it, set modules in `__init__`, and override `build`.

    `super().__init__()` may be left out. Called without an optimizer, it predicts.

    >>> class Line(Graph):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.model = nn.Linear(2, 1)
    ...         self.config.enable_amp(True)
    ...         self.add_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))
    ...     def build(self, x):
    ...         loss = self.model(x).square().mean()
    ...         loss.backward()
    ...         return loss
    >>> line = Line()
    >>> bool(line(torch.ones(4, 2)) > line(torch.ones(4, 2)))
    True
    """

    config: GraphConfig

    def __new__(cls, *args: Any, **kwargs: Any) -> Graph:
        """Make what `__init__` would, for graphs whose own calls no other."""
        graph = super().__new__(cls)
        graph.config, graph._optimizers, graph._schedules = GraphConfig(), [], []
        graph._scaler, graph._state, graph._backwards, graph.is_compiled = _NO_SCALER, initial(_NO_SCALER), 0, False
        return graph

    _optimizers: list[torch.optim.Optimizer]
    _schedules: list[LRScheduler]
    _scaler: ScalerConfig
    _state: ScalerState
    _backwards: int
    is_compiled: bool

    def __init__(self, **options: Any) -> None: ...

    def build(self, *args: Any, **kwargs: Any) -> Any:
        """Compute, and call `backward()` of a loss if the graph trains: to be overridden."""
        raise NotImplementedError("nn.Graph.build() method must be overridden when subclassing the nn.Graph.")

    @property
    def training(self) -> bool:
        """Whether it has an optimizer."""
        return self.config.training

    def add_optimizer(
        self, optim: torch.optim.Optimizer, *, lr_sch: LRScheduler | None = None, is_sparse: bool = False
    ) -> None:
        """Let the graph step, clip (`clip_grad_max_norm` of a group) and zero; and step a schedule, skipped or not.

        Raises:
            TypeError: it is no optimizer, or lr_sch no schedule.
            ValueError: the schedule is another optimizer's.
        """
        if not isinstance(optim, torch.optim.Optimizer):
            raise TypeError(f"optimizer must be an instance of Optimizer, such as flow.optim.SGD; given: {optim!r}")
        if lr_sch is not None and not isinstance(lr_sch, LRScheduler):
            raise TypeError(f"lr_sch is one of flow.optim.lr_scheduler, over this optimizer; given: {lr_sch!r}")
        if lr_sch is not None and lr_sch.optimizer is not optim:
            raise ValueError("lr_scheduler's optimizer must be the same optimizer in add_optimizer.")
        self._optimizers.append(optim)
        self._schedules += [lr_sch] if lr_sch is not None else []
        self.config.training = True

    def set_grad_scaler(self, grad_scaler: GradScaler | StaticGradScaler | None = None) -> None:
        """Scale losses; without one they are not, and nobody looks for inf and NaN.

        Raises:
            TypeError: it is no scaler of `flow.amp`.
        """
        if not isinstance(grad_scaler, GradScaler | StaticGradScaler):
            raise TypeError(f"a graph takes flow.amp.GradScaler or StaticGradScaler; it was given {grad_scaler!r}")
        self._scaler, self._state = grad_scaler.config, initial(grad_scaler.config)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Train with a batch, or predict; return what `build` returns, for all micro-batches, without a gradient.

        Raises:
            RuntimeError: it is called inside another graph; there is an optimizer and no backward, or the other way.
            ValueError: a tensor's first dimension is no multiple of the number of micro-batches.
        """
        if any(isinstance(mode, _Backward) for mode in _get_current_function_mode_stack()):
            raise RuntimeError("nn.Graph cannot be nested: call the other graph's modules in build, not the graph.")
        self._backwards = 0
        self._zero_grad()  # of what came from elsewhere, nobody knows the scale
        parts = _cut((args, kwargs), self.config.gradient_accumulation_steps)
        outputs = [self._run(*part) for part in parts]
        if self.training:
            self._step()
            self._zero_grad()
        self.is_compiled = True
        return _together(outputs)

    def _zero_grad(self) -> None:
        for optimizer in self._optimizers:
            optimizer.zero_grad()

    def _run(self, args: Any, kwargs: Any) -> Any:
        device = next((t.device for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)), torch.device("cpu"))
        with torch.set_grad_enabled(self.training), self._casts(device), _Backward(self._scale):
            outputs = self.build(*args, **kwargs)
        return tree_map_only(Tensor, Tensor.detach, outputs)

    def _casts(self, device: torch.device) -> AbstractContextManager[None]:
        dtype = self.config.amp_dtype
        return replace(RECIPES["O1"], autocast=None if dtype is None else format_of(dtype)).forward(device)

    def _scale(self, loss: Tensor) -> Tensor:
        if not self.training:
            raise RuntimeError("backward() in a graph that steps nothing: call self.add_optimizer(optimizer) first.")
        if loss.dim() != 0:
            raise RuntimeError(f"only a scalar can call backward() in a graph; this is {tuple(loss.shape)}: mean() it.")
        self._backwards += 1
        return loss.float() * self._state.scale

    def _step(self) -> None:
        if not self._backwards:
            raise RuntimeError("the graph has an optimizer, and build() called no loss.backward(): nothing to learn.")
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        learnt = [p for group in groups for p in group["params"] if p.grad is not None]
        plain, found_inf = unscale([p.grad for p in learnt], self._state.scale, in_place=True)
        for p, gradient in zip(learnt, plain, strict=True):
            p.grad = gradient.to(p.dtype)
        decision = decide(self._state, found_inf, self._scaler)
        self._state = decision.after
        for group in groups if not decision.skip else ():
            if group.get("clip_grad_max_norm") is not None:
                gradients = [p.grad for p in group["params"] if p.grad is not None]
                clip_(gradients, group["clip_grad_max_norm"], group.get("clip_grad_norm_type", 2.0))
        for optimizer in self._optimizers if not decision.skip else ():
            optimizer.step()
        for schedule in self._schedules:
            schedule.optimizer._opt_called = True  # type: ignore[attr-defined]  # OneFlow counts calls, not steps
            schedule.step()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each module, under the name it has in the graph, of optimizers, schedules and scale."""
        modules = {name: value.state_dict() for name, value in vars(self).items() if isinstance(value, nn.Module)}
        steps: Iterable[Any] = (*self._optimizers, *self._schedules)
        return {**modules, "steps": [each.state_dict() for each in steps], "scale": tuple(vars(self._state).values())}

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> None:
        """Go on from a `state_dict`.

        Raises:
            RuntimeError: the graph was called already.
        """
        if self.is_compiled:
            raise RuntimeError("nn.Graph's state dict can only be loaded before the first call of a graph.")
        for name, value in vars(self).items():
            if isinstance(value, nn.Module):
                value.load_state_dict(state_dict[name], strict)
        steps: Iterable[Any] = (*self._optimizers, *self._schedules)
        for each, state in zip(steps, state_dict["steps"], strict=True):
            each.load_state_dict(state)
        self._state = ScalerState(*state_dict["scale"])

    def __repr__(self) -> str:
        modules = [f"(MODULE:{name}:{value!r})" for name, value in vars(self).items() if isinstance(value, nn.Module)]
        return (
            "\n  ".join([f"(GRAPH:{type(self).__name__}): (", f"(CONFIG:training={self.training})", *modules]) + "\n)"
        )


class _Backward(TorchFunctionMode):
    """Let a loss be changed on its way into `loss.backward()`."""

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.change = change

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.backward:
            args = (self.change(args[0]), *args[1:])
        return func(*args, **(kwargs or {}))


def _cut(values: Any, parts: int) -> Iterator[Any]:
    """Yield the same containers with the i-th part of each tensor, along dimension 0."""
    for tensor in tree_leaves(values):
        if parts > 1 and isinstance(tensor, Tensor) and (tensor.dim() == 0 or len(tensor) % parts):
            raise ValueError(
                f"{tuple(tensor.shape)} is not cut into {parts} micro-batches: take a multiple of {parts}."
            )
    for i in range(parts):
        yield tree_map_only(Tensor, lambda t: t.tensor_split(parts)[i], values) if parts > 1 else values  # noqa: B023


def _together(outputs: list[Any]) -> Any:
    """Return the outputs of all micro-batches as those of a batch; of scalars, a vector."""
    if len(outputs) == 1:
        return outputs[0]
    return tree_map(lambda *each: (torch.cat if each[0].dim() else torch.stack)(each), *outputs)
