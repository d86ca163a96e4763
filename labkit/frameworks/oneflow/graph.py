"""OneFlow's nn.Graph: a computation with its own loss scaling, steps and zero_grad.

Idea: `build` computes a loss from a batch, and calls its `backward`. Under AMP, `labkit.amp.graph`
decides all casts in it once. The graph does the rest after `build` has returned: scale the losses,
run backward, unscale, clip, step or skip, zero, step the schedule.

Invariant: a step uses the unscaled sum of all micro-batches' gradients, finite if the scaler is
dynamic. All bits are those of eager autocast, which is the fallback, with a warning that says why,
if the casts cannot be decided once.

Limits: it does not compile. Operations are cast by torch's lists (`labkit.amp.POLICY`). Python code
in `build`, for instance a print, runs in the first calls only, as in OneFlow.

Source: oneflow.nn.graph, graph.py and graph_config.py (add_optimizer, set_grad_scaler,
clip_grad_max_norm of a group); lazy_op_interpreter.cpp. One call is one batch, split along
dimension 0 into as many micro-batches as gradients are accumulated over; their outputs are
concatenated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_leaves, tree_map, tree_map_only

from labkit.amp import RECIPES, CastGraph, ScalerState, static
from labkit.amp.loss_scaling.clip import clip_
from labkit.amp.masters.weights import require_fitting
from labkit.frameworks.oneflow.amp import GradScaler, StaticGradScaler
from labkit.frameworks.steps import LossScale, Steps
from labkit.interop import format_of


class GraphConfig:
    """The configuration of a graph."""

    def __init__(self) -> None:
        self.training = False
        self.amp_dtype: torch.dtype | None = None
        self.gradient_accumulation_steps = 1

    def enable_amp(self, mode: bool = True, *, dtype: torch.dtype = torch.float16) -> None:
        """Cast operations to FP16 or BF16, or stop it.

        Raises:
            TypeError: mode is not a bool.
            ValueError: dtype is another one.
        """
        if type(mode) is not bool:
            raise TypeError(f"expected enable_amp(True) or enable_amp(False), got {mode!r}")
        if dtype not in (torch.float16, torch.bfloat16):
            raise ValueError(f"expected dtype float16 or bfloat16, got {dtype}")
        self.amp_dtype = dtype if mode else None

    def set_gradient_accumulation_steps(self, value: int) -> None:
        """Split each batch into micro-batches, whose gradients are added up.

        Raises:
            ValueError: value is not a whole number, or less than 1.
        """
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"expected 1 micro-batch or more, got {value!r}")
        self.gradient_accumulation_steps = value

    def allow_fuse_model_update_ops(self, mode: bool = True) -> None:
        """Do nothing: these three options affect the speed of a compiled graph, not its results."""

    allow_fuse_add_to_output = allow_fuse_model_update_ops
    allow_fuse_cast_scale = allow_fuse_model_update_ops

    def enable_zero(self, mode: bool = True, **_: Any) -> None:
        """Raise an error for an option that requires several devices.

        Raises:
            NotImplementedError: mode is True.
        """
        if mode:
            raise NotImplementedError(
                "ZeRO shards an optimizer's state over devices. A graph here has one: drop it."
            )


class Graph:
    """A computation with its training.

    Subclass it, set modules in `__init__`, and override `build`. `super().__init__()` may be left
    out. Called without an optimizer, the graph predicts.

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
    >>> _ = torch.manual_seed(0)
    >>> line = Line()
    >>> bool(line(torch.ones(4, 2)) > line(torch.ones(4, 2)))
    True
    """

    config: GraphConfig
    is_compiled: bool  # whether it was called
    _steps: list[Steps]
    _schedules: list[LRScheduler]
    _scale: LossScale
    # dtype and modules, and what was made of them
    _decided: tuple[Any, Callable[..., Any]] | None

    def __new__(cls, *args: Any, **kwargs: Any) -> Graph:
        """Initialise the graph's state if a subclass's `__init__` did not call that of Graph."""
        graph = super().__new__(cls)
        graph.config = GraphConfig()
        graph.is_compiled = False
        graph._decided = None
        graph._steps = []
        graph._schedules = []
        graph._scale = LossScale(static(1.0, skip_on_inf=False))
        return graph

    def __init__(self, **options: Any) -> None: ...

    def build(self, *args: Any, **kwargs: Any) -> Any:
        """Compute, and call `backward()` of a loss if the graph trains; override this method."""
        raise NotImplementedError(
            "nn.Graph.build() method must be overridden when subclassing the nn.Graph."
        )

    training = property(lambda self: self.config.training, doc="Whether it has an optimizer.")
    _optimizers = property(lambda self: [each.optimizer for each in self._steps])

    def add_optimizer(
        self,
        optim: torch.optim.Optimizer,
        *,
        lr_sch: LRScheduler | None = None,
        is_sparse: bool = False,
    ) -> None:
        """Let the graph step, clip (`clip_grad_max_norm` of a group) and zero.

        It also steps a schedule, even if a step is skipped.

        Raises:
            TypeError: it is not an optimizer, or lr_sch is not a schedule.
            ValueError: the schedule is another optimizer's, or a step needs a closure.
        """
        if not isinstance(optim, torch.optim.Optimizer):
            raise TypeError(
                f"optimizer must be an instance of Optimizer, such as flow.optim.SGD; got {optim!r}"
            )
        if lr_sch is not None and not isinstance(lr_sch, LRScheduler):
            raise TypeError(
                f"expected lr_sch from flow.optim.lr_scheduler, of this optimizer, got {lr_sch!r}"
            )
        if lr_sch is not None and lr_sch.optimizer is not optim:
            raise ValueError(
                "lr_scheduler's optimizer must be the same optimizer in add_optimizer."
            )
        require_fitting(optim, flat=False)
        self._steps.append(Steps(optim))
        if lr_sch is not None:
            self._schedules += [lr_sch]
        optim.register_step_pre_hook(_refuse_in_build)
        self.config.training = True

    def set_grad_scaler(self, grad_scaler: GradScaler | StaticGradScaler | None = None) -> None:
        """Set the scaler of losses.

        Without one, losses are not scaled and gradients are not checked for inf and NaN.

        Raises:
            TypeError: it is not a scaler of `flow.amp`.
        """
        if not isinstance(grad_scaler, GradScaler | StaticGradScaler):
            raise TypeError(
                f"expected flow.amp.GradScaler or StaticGradScaler, got {grad_scaler!r}"
            )
        self._scale = LossScale(grad_scaler.config)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Train with a batch, or predict.

        Returns:
            The results of `build` for all micro-batches, without a gradient.

        Raises:
            RuntimeError: it is called inside another graph; there is an optimizer and no backward,
                or the other way.
            ValueError: a tensor's first dimension is not a multiple of the number of micro-batches.
        """
        if _in_build():
            raise RuntimeError(
                "nn.Graph cannot be nested: call the other graph's modules in build, not the graph."
            )
        self.is_compiled = True
        # gradients of other backward passes have another scale
        self._zero_grad()
        for each in self._steps:
            each.before_backward()
        ran = [
            self._run(*part)
            for part in _cut((args, kwargs), self.config.gradient_accumulation_steps)
        ]
        if self.training:
            if not any(losses for _, losses in ran):
                raise RuntimeError(
                    "expected loss.backward() in build(), since the graph has an optimizer; got "
                    "none"
                )
            self._step()
        return _concatenate([outputs for outputs, _ in ran])

    def _run(self, args: Any, kwargs: Any) -> tuple[Any, int]:
        """Run `build` and the backward passes of its losses.

        Returns:
            The outputs and the number of losses.
        """
        device = next(
            (t.device for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)),
            torch.device("cpu"),
        )
        dtype = self.config.amp_dtype
        recipe = replace(RECIPES["O1"], autocast=format_of(dtype) if dtype else None)
        with torch.set_grad_enabled(self.training):
            with recipe.forward(device):
                outputs, losses = self._built()(*args, **kwargs)
            for left, loss in zip(reversed(range(len(losses))), losses, strict=True):
                (loss.float() * self._scale.state.scale).backward(retain_graph=left > 0)
        return tree_map_only(Tensor, Tensor.detach, outputs), len(losses)

    def _step(self) -> None:
        """Unscale, clip, step or skip; update the scale and the schedules."""
        found = [each.unscale(self._scale.state.scale) for each in self._steps]
        skip = self._scale.must_skip(any(found))
        if not skip:
            for optimizer in self._optimizers:
                for group in optimizer.param_groups:
                    if group.get("clip_grad_max_norm") is not None:
                        gradients = [p.grad for p in group["params"] if p.grad is not None]
                        clip_(
                            gradients,
                            group["clip_grad_max_norm"],
                            group.get("clip_grad_norm_type", 2.0),
                        )
                optimizer.step()
        for schedule in self._schedules:
            # OneFlow counts calls, not steps
            schedule.optimizer._opt_called = True  # type: ignore[attr-defined]
            schedule.step()
        self._zero_grad()

    def _zero_grad(self) -> None:
        for optimizer in self._optimizers:
            optimizer.zero_grad()

    def _built(self) -> Callable[..., Any]:
        """Return the callable that runs `build`.

        Under AMP it is the cast graph, as long as the modules are the same.
        """
        dtype = self.config.amp_dtype
        network = _Built(self)
        known = (dtype, [*map(id, (*network.children(), *network.parameters(recurse=False)))])
        if self._decided is None or self._decided[0] != known:
            self._decided = known, CastGraph(network, format_of(dtype)) if dtype else network
        return self._decided[1]

    def state_dict(self) -> dict[str, Any]:
        """Return the state of modules (by name in the graph), optimizers, schedules and scale."""
        steps = [each.state_dict() for each in (*self._optimizers, *self._schedules)]
        return {
            **_Built(self).state_dict(),
            "steps": steps,
            "scale": tuple(vars(self._scale.state).values()),
        }

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> None:
        """Load a `state_dict`.

        Raises:
            RuntimeError: the graph was called already, or (if it is strict) names differ.
        """
        if self.is_compiled:
            raise RuntimeError(
                "nn.Graph's state dict can only be loaded before the first call of a graph."
            )
        _Built(self).load_state_dict(
            {k: v for k, v in state_dict.items() if k not in ("steps", "scale")}, strict
        )
        for each, state in zip(
            (*self._optimizers, *self._schedules), state_dict["steps"], strict=True
        ):
            each.load_state_dict(state)
        self._scale.state = ScalerState(*state_dict["scale"])

    def __repr__(self) -> str:
        modules = [f"(MODULE:{name}:{module!r})" for name, module in _Built(self).named_children()]
        lines = [f"(CONFIG:training={self.training})", *modules]
        return "\n  ".join([f"(GRAPH:{type(self).__name__}): (", *lines]) + "\n)"


class _Built(nn.Module):
    """A graph's `build` as a network that returns its result and the losses of `backward` calls.

    It has the modules and parameters that the graph holds, in lists and dicts too.
    """

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph
        for name, value in vars(graph).items():
            if name != "_decided":
                for path, leaf in tree_flatten_with_path(value)[0]:
                    if isinstance(leaf, nn.Module | nn.Parameter):
                        known: dict[str, Any] = (
                            self._modules if isinstance(leaf, nn.Module) else self._parameters
                        )
                        known[name + keystr(path)] = leaf

    # a graph is built for each combination of the modules' modes
    training = property(
        lambda self: tuple(module.training for module in self.modules() if module is not self),
        lambda *_: None,
    )

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Any, list[Tensor]]:
        with _Losses(self.graph.training) as losses:
            return self.graph.build(*args, **kwargs), losses


class _Losses(TorchFunctionMode):
    """Note each loss whose `backward` is called, for later.

    Raises:
        RuntimeError: nothing is stepped; or a loss is not a scalar.
    """

    def __init__(self, training: bool) -> None:
        super().__init__()
        self.training = training
        self.losses = list[Tensor]()

    def __enter__(self) -> list[Tensor]:
        super().__enter__()  # type: ignore[no-untyped-call]
        return self.losses

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not Tensor.backward:
            return func(*args, **(kwargs or {}))
        if not self.training:
            raise RuntimeError(
                "backward() in a graph that steps nothing: call self.add_optimizer(optimizer) "
                "first."
            )
        if args[0].dim() != 0:
            shape = tuple(args[0].shape)
            raise RuntimeError(
                f"only a scalar can call backward() in a graph; this is {shape}: mean() it."
            )
        self.losses.append(args[0])
        return None


def _in_build() -> bool:
    return any(isinstance(mode, _Losses) for mode in _get_current_function_mode_stack())


def _refuse_in_build(*_: Any) -> None:
    if _in_build():
        raise RuntimeError(
            "the graph steps its optimizers itself, when build() has returned: leave step() out of "
            "it."
        )


def _cut(values: Any, parts: int) -> Iterator[Any]:
    """Yield the same containers with the i-th part of each tensor, along dimension 0."""
    for tensor in tree_leaves(values):
        if parts > 1 and isinstance(tensor, Tensor) and (tensor.dim() == 0 or len(tensor) % parts):
            raise ValueError(
                f"{tuple(tensor.shape)} is not cut into {parts} micro-batches: take a multiple of "
                f"{parts}."
            )
    if parts == 1:
        yield values
        return
    for index in range(parts):
        yield tree_map_only(Tensor, partial(_part, index=index, parts=parts), values)


def _part(tensor: Tensor, index: int, parts: int) -> Tensor:
    return tensor.tensor_split(parts)[index]


def _concatenate(outputs: list[Any]) -> Any:
    """Join the outputs of all micro-batches: scalars as a vector, of other objects the last."""
    if len(outputs) == 1:
        return outputs[0]

    def one(*each: Any) -> Any:
        return (
            each[-1]
            if not isinstance(each[0], Tensor)
            else (torch.cat if each[0].dim() else torch.stack)(each)
        )

    return tree_map(one, *outputs)
