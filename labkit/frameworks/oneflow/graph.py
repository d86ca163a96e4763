"""OneFlow's nn.Graph: a computation with its own loss scaling, steps and zero_grad.

Idea: `build` computes a loss from a batch, and calls its `backward`. Under AMP, `labkit.amp.graph`
decides all casts in it once. The graph does the rest after `build` has returned: scale the losses,
run backward, unscale, clip, step or skip, zero, step the schedule.

Invariant: a step uses the unscaled sum of all micro-batches' gradients, finite if the scaler is
dynamic. Results are equal to those of eager autocast, bit for bit. If the casts cannot be decided
once, the graph uses eager autocast, with a warning that says why.

Limits: it does not compile. Operations are cast by torch's lists (`labkit.amp.POLICY`). Under AMP,
Python code in `build`, for instance a print, runs in the first calls only, as in OneFlow.

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
from labkit.formats.arguments import require_kind
from labkit.frameworks.oneflow.amp import GradScaler, StaticGradScaler
from labkit.frameworks.steps import LossScale, Steps
from labkit.interop import format_of

# keys of a state dict beside those of modules and parameters
_STEPS = "steps"
_SCALE = "scale"


class GraphConfig:
    """The configuration of a graph."""

    def __init__(self) -> None:
        self.training = False
        self.amp_dtype: torch.dtype | None = None
        self.gradient_accumulation_steps = 1

    def enable_amp(self, mode: bool = True, *, dtype: torch.dtype = torch.float16) -> None:
        """Enable or disable casts of operations to a low precision.

        Args:
            mode: whether operations are cast.
            dtype: torch.float16 or torch.bfloat16.

        Raises:
            TypeError: mode is not a bool.
            ValueError: dtype is neither of them.
        """
        if type(mode) is not bool:
            raise TypeError(f"expected enable_amp(True) or enable_amp(False), got {mode!r}")
        if dtype not in (torch.float16, torch.bfloat16):
            raise ValueError(f"expected dtype float16 or bfloat16, got {dtype}")
        self.amp_dtype = dtype if mode else None

    def set_gradient_accumulation_steps(self, value: int) -> None:
        """Split each batch into micro-batches, whose gradients are added up.

        Raises:
            TypeError: value is not a whole number.
            ValueError: value is less than 1.
        """
        require_kind(value, int, "value", "Pass the number of micro-batches")
        if value < 1:
            raise ValueError(f"expected 1 micro-batch or more, got {value!r}")
        self.gradient_accumulation_steps = int(value)

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

    Subclass it, set modules in `__init__`, and override `build`. The call of `super().__init__()`
    is optional. A graph without an optimizer only predicts.

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
    # whether the graph was called
    is_compiled: bool
    _steps: list[Steps]
    _schedules: list[LRScheduler]
    _scale: LossScale
    # the dtype and the modules that `_built` saw last, and the callable that it made of them
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

    @property
    def training(self) -> bool:
        """Whether it has an optimizer."""
        return self.config.training

    @property
    def _optimizers(self) -> list[Any]:
        return [each.optimizer for each in self._steps]

    def add_optimizer(
        self,
        optim: torch.optim.Optimizer,
        *,
        lr_sch: LRScheduler | None = None,
        is_sparse: bool = False,
    ) -> None:
        """Add an optimizer, which the graph steps, and whose gradients it clips and clears.

        Gradients are clipped if a group of the optimizer has `clip_grad_max_norm`.

        Args:
            optim: the optimizer.
            lr_sch: its schedule, which advances at each call of the graph, even if the step is
                skipped.
            is_sparse: unused.

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
            self._schedules.append(lr_sch)
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
            RuntimeError: it is called inside another graph; or `build` calls backward and the graph
                has no optimizer, or the other way round.
            ValueError: a tensor's first dimension is not a multiple of the number of micro-batches.
        """
        if _in_build():
            raise RuntimeError(
                "nn.Graph cannot be nested: call the other graph's modules in build, not the graph."
            )
        self.is_compiled = True
        # gradients of backward passes outside of the graph are not scaled
        self._zero_grad()
        for each in self._steps:
            each.before_backward()
        outputs = []
        losses = 0
        for part in _cut((args, kwargs), self.config.gradient_accumulation_steps):
            output, count = self._run(*part)
            outputs.append(output)
            losses += count
        if self.training:
            if losses == 0:
                raise RuntimeError(
                    "expected loss.backward() in build(), since the graph has an optimizer; got "
                    "none"
                )
            self._step()
        return _concatenate(outputs)

    def _run(self, args: Any, kwargs: Any) -> tuple[Any, int]:
        """Run `build` and the backward passes of its losses.

        Returns:
            The outputs and the number of losses.
        """
        device = torch.device("cpu")
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, Tensor):
                device = leaf.device
                break
        dtype = self.config.amp_dtype
        recipe = replace(RECIPES["O1"], autocast=format_of(dtype) if dtype else None)
        with torch.set_grad_enabled(self.training):
            with recipe.forward(device):
                outputs, losses = self._built()(*args, **kwargs)
            # several losses may share a part of the graph, which the last one frees
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
                    max_norm = group.get("clip_grad_max_norm")
                    if max_norm is not None:
                        gradients = [p.grad for p in group["params"] if p.grad is not None]
                        clip_(gradients, max_norm, group.get("clip_grad_norm_type", 2.0))
                optimizer.step()
        for schedule in self._schedules:
            # A schedule of OneFlow counts calls of the graph, not steps. torch's would warn of a
            # skipped step; the mark says that the optimizer has stepped.
            schedule.optimizer._opt_called = True  # type: ignore[attr-defined]
            schedule.step()
        self._zero_grad()

    def _zero_grad(self) -> None:
        for optimizer in self._optimizers:
            optimizer.zero_grad()

    def _built(self) -> Callable[..., Any]:
        """Return the callable that runs `build`: under AMP a graph of decided casts.

        It is made again if the dtype, a module or a parameter of the graph was replaced.
        """
        dtype = self.config.amp_dtype
        network = _Built(self)
        parts = [*network.children(), *network.parameters(recurse=False)]
        key = (dtype, [id(part) for part in parts])
        if self._decided is None or self._decided[0] != key:
            built = CastGraph(network, format_of(dtype)) if dtype else network
            self._decided = (key, built)
        return self._decided[1]

    def state_dict(self) -> dict[str, Any]:
        """Return the state of modules (by name in the graph), optimizers, schedules and scale."""
        steps = [each.state_dict() for each in (*self._optimizers, *self._schedules)]
        return {
            **_Built(self).state_dict(),
            _STEPS: steps,
            _SCALE: tuple(vars(self._scale.state).values()),
        }

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> None:
        """Load a `state_dict`.

        Raises:
            RuntimeError: the graph was called already; the states of its optimizers and schedules
                are missing; or (if it is strict) names differ.
        """
        if self.is_compiled:
            raise RuntimeError(
                "nn.Graph's state dict can only be loaded before the first call of a graph."
            )
        stateful = (*self._optimizers, *self._schedules)
        steps = state_dict.get(_STEPS)
        if steps is None or len(steps) != len(stateful):
            got = "none" if steps is None else f"those of {len(steps)}"
            raise RuntimeError(
                f"expected the states of this graph's {len(stateful)} optimizers and schedules, "
                f"got {got}: pass the state_dict() of a graph with the same ones. A module's state "
                "is loaded by the module."
            )
        modules = {k: v for k, v in state_dict.items() if k not in (_STEPS, _SCALE)}
        _Built(self).load_state_dict(modules, strict)
        for each, state in zip(stateful, steps, strict=True):
            each.load_state_dict(state)
        self._scale.state = ScalerState(*state_dict[_SCALE])

    def __repr__(self) -> str:
        modules = [f"(MODULE:{name}:{module!r})" for name, module in _Built(self).named_children()]
        lines = [f"(CONFIG:training={self.training})", *modules]
        return "\n  ".join([f"(GRAPH:{type(self).__name__}): (", *lines]) + "\n)"


class _Built(nn.Module):
    """A graph's `build` as a network that returns its result and the losses of `backward` calls.

    It has the modules and parameters that the graph holds, in lists and dicts too.

    Raises:
        ValueError: a parameter has the name of another entry of the graph's state dict.
    """

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph
        for name, value in vars(graph).items():
            # it may hold an earlier network, which has the same modules
            if name == "_decided":
                continue
            leaves, _ = tree_flatten_with_path(value)
            for path, leaf in leaves:
                # not by add_module, which refuses a name with a dot
                if isinstance(leaf, nn.Module):
                    self._modules[name + keystr(path)] = leaf
                elif isinstance(leaf, nn.Parameter):
                    if name in (_STEPS, _SCALE) and not path:
                        raise ValueError(
                            f"expected another name than {name!r} for a parameter of a graph, "
                            f"since {name!r} is a key of its state_dict(); rename it, for "
                            f"instance to {name}_weight"
                        )
                    self._parameters[name + keystr(path)] = leaf

    @property
    def training(self) -> Any:
        """The modes of all modules.

        CastGraph makes one graph for each value, so that dropout and batch norm are traced in each
        of their modes.
        """
        return tuple(module.training for module in self.modules() if module is not self)

    @training.setter
    def training(self, mode: bool) -> None:
        """Ignore the mode that nn.Module sets: the modules have their own."""

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Any, list[Tensor]]:
        with _Losses(self.graph.training) as losses:
            return self.graph.build(*args, **kwargs), losses


class _Losses(TorchFunctionMode):
    """Mode that records each loss whose `backward` is called, instead of running backward.

    Raises:
        RuntimeError: the graph has no optimizer; a loss is not a scalar; or `backward` gets a
            gradient, inputs or create_graph, which a graph does not take.
    """

    def __init__(self, training: bool) -> None:
        super().__init__()
        self.training = training
        self.losses: list[Tensor] = []

    def __enter__(self) -> list[Tensor]:
        super().__enter__()  # type: ignore[no-untyped-call]
        return self.losses

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not Tensor.backward:
            return func(*args, **(kwargs or {}))
        if not self.training:
            raise RuntimeError(
                "backward() in a graph without an optimizer: call self.add_optimizer(optimizer) "
                "first."
            )
        if args[0].dim() != 0:
            shape = tuple(args[0].shape)
            raise RuntimeError(
                f"only a scalar can call backward() in a graph; this is {shape}: mean() it."
            )
        options = kwargs or {}
        for name in ("gradient", "inputs", "create_graph"):
            if options.get(name) is not None and options[name] is not False:
                raise RuntimeError(
                    f"expected backward() without {name} in a graph; multiply the loss by a "
                    "factor, or freeze the other parameters, instead"
                )
        self.losses.append(args[0])
        return None


def _in_build() -> bool:
    return any(isinstance(mode, _Losses) for mode in _get_current_function_mode_stack())


def _refuse_in_build(*_: Any) -> None:
    if _in_build():
        raise RuntimeError(
            "the graph itself steps its optimizers after build() has returned: remove step() from "
            "build()."
        )


def _cut(values: Any, parts: int) -> Iterator[Any]:
    """Yield the same containers with the i-th part of each tensor, along dimension 0."""
    if parts == 1:
        yield values
        return
    for tensor in tree_leaves(values):
        if isinstance(tensor, Tensor) and (tensor.dim() == 0 or len(tensor) % parts):
            raise ValueError(
                f"expected a first dimension that is a multiple of {parts}, the number of "
                f"micro-batches, got shape {tuple(tensor.shape)}"
            )
    for index in range(parts):
        yield tree_map_only(Tensor, partial(_part, index=index, parts=parts), values)


def _part(tensor: Tensor, index: int, parts: int) -> Tensor:
    return tensor.tensor_split(parts)[index]


def _concatenate(outputs: list[Any]) -> Any:
    """Join the outputs of all micro-batches.

    Tensors are concatenated, and scalars become a vector. Other objects are those of the last one.
    """
    if len(outputs) == 1:
        return outputs[0]

    def join(*each: Any) -> Any:
        if not isinstance(each[0], Tensor):
            return each[-1]
        if each[0].dim() == 0:
            return torch.stack(each)
        return torch.cat(each)

    return tree_map(join, *outputs)
