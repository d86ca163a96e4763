"""Events of a training, each a type: what happened, and the objects that it happened to.

Idea: torch's hooks, scalers and engines report to one stream (`labkit.instrument.stream`), each
moment as a small object. A listener subscribes to types of events, so the type checker finds an
instrument that relies on an event which no longer exists.

Invariant: an event holds references to tensors and modules. A listener does not keep it after its
handler has returned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler


class Event:
    """What a stream sends to listeners."""

    __slots__ = ()


class ModelHolder(Protocol):
    """An object that trains a module, such as an engine or a run."""

    @property
    def model(self) -> nn.Module:
        """The module."""


class OptimizerLike(Protocol):
    """An optimizer, or a wrapper of one, as far as an instrument needs it."""

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of parameters with their options, as torch.optim.Optimizer has them."""


class StatefulOptimizer(OptimizerLike, Protocol):
    """An optimizer with the state of torch.optim.Optimizer."""

    @property
    def state(self) -> Mapping[Any, Mapping[str, Any]]:
        """Parameter -> name -> state, such as `exp_avg`; a tensor or a number."""


class GradScalerLike(Protocol):
    """A loss scaler with the methods of torch.amp.GradScaler that an instrument calls.

    Its methods `scale`, `unscale_` and `step` are observed as well.
    """

    def is_enabled(self) -> bool:
        """Return whether losses are scaled."""

    def get_scale(self) -> float:
        """Return the scale of the next backward pass."""


@dataclass(frozen=True, slots=True)
class ModuleBegins(Event):
    """The forward pass of a module begins."""

    module: nn.Module
    args: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class ModuleEnded(Event):
    """The forward pass of a module has ended.

    `output` is what the module returned, of any type; after an exception it is None.
    """

    module: nn.Module
    args: tuple[Any, ...]
    output: Any


@dataclass(frozen=True, slots=True)
class ParameterRegistered(Event):
    """A parameter, or None, is assigned to an attribute of a module."""

    module: nn.Module
    name: str
    parameter: Tensor | None


@dataclass(frozen=True, slots=True)
class BackwardBegins(Event):
    """`torch.autograd.backward` begins, which a tensor's own `backward` calls.

    `roots` is its first argument.
    """

    roots: Tensor | Sequence[Tensor]


@dataclass(frozen=True, slots=True)
class BackwardEnded(Event):
    """`torch.autograd.backward` has ended, maybe with an exception."""


@dataclass(frozen=True, slots=True)
class GradBegins(Event):
    """`torch.autograd.grad` begins; `outputs` is its first argument."""

    outputs: Tensor | Sequence[Tensor]


@dataclass(frozen=True, slots=True)
class GradEnded(Event):
    """`torch.autograd.grad` has ended; after an exception `gradients` is empty."""

    gradients: tuple[Tensor | None, ...]
    create_graph: bool


@dataclass(frozen=True, slots=True)
class ClipBegins(Event):
    """`clip_grad_norm_` or `clip_grad_value_` of torch.nn.utils is about to clip gradients."""


@dataclass(frozen=True, slots=True)
class ScheduleSteps(Event):
    """A schedule of the learning rate is about to step, by the method of LRScheduler.

    A schedule with a method of its own, such as ReduceLROnPlateau, is not observed.
    """

    schedule: LRScheduler


@dataclass(frozen=True, slots=True)
class AutocastBegins(Event):
    """A region of torch.autocast opens."""

    region: torch.autocast


@dataclass(frozen=True, slots=True)
class AutocastEnds(Event):
    """A region of torch.autocast closes."""

    region: torch.autocast


@dataclass(frozen=True, slots=True)
class CastBegins(Event):
    """The lab's autocast casts a tensor."""


@dataclass(frozen=True, slots=True)
class CastEnded(Event):
    """The lab's autocast has cast a tensor."""


@dataclass(frozen=True, slots=True)
class LossScaled(Event):
    """A loss is multiplied by the scale, which `scale()` returns; that may wait for a device."""

    scale: Callable[[], float]


@dataclass(frozen=True, slots=True)
class UnscaleBegins(Event):
    """A scaler is about to unscale the gradients of an optimizer."""

    optimizer: OptimizerLike


@dataclass(frozen=True, slots=True)
class ScalerStepBegins(Event):
    """A scaler decides on a step.

    If it skips the step, the optimizer is not called before `ScalerStepEnded`.
    """

    optimizer: OptimizerLike
    scale: Callable[[], float]


@dataclass(frozen=True, slots=True)
class ScalerStepEnded(Event):
    """A scaler has decided on a step, or the step raised an exception."""

    optimizer: OptimizerLike
    raised: bool = False


@dataclass(frozen=True, slots=True)
class StandInStepped(Event):
    """A scaler has stepped an object that represents an optimizer.

    The optimizer itself steps afterwards.
    """

    stand_in: OptimizerLike


@dataclass(frozen=True, slots=True)
class OptimizerBegins(Event):
    """An optimizer is about to step."""

    optimizer: OptimizerLike


@dataclass(frozen=True, slots=True)
class OptimizerEnded(Event):
    """An optimizer has stepped."""

    optimizer: OptimizerLike


class SteppingEngine(Protocol):
    """An engine, as far as an instrument needs it."""

    model: nn.Module

    @property
    def optimizer(self) -> OptimizerLike:
        """The optimizer that steps the masters."""

    def masters(self) -> dict[str, Tensor]:
        """Return parameter name -> the tensor that the optimizer steps for it."""

    @property
    def rounds_stochastically(self) -> bool:
        """Whether a step rounds weights up or down at random, so that small updates count."""


class Outcome(Protocol):
    """The result of an engine's step, as far as an instrument needs it."""

    @property
    def stepped(self) -> bool:
        """Whether the weights were stepped."""

    @property
    def why(self) -> str:
        """The reason, as a sentence."""


class Moment(Enum):
    """The moments of an engine's step."""

    FORWARD = "the loss is computed"
    SCALED = (
        "backward has left gradients in the model, multiplied by the scale, in the model's format"
    )
    UNSCALED = (
        "the gradients of all losses are one unscaled FP32 sum, which the step is about to use or "
        "skip"
    )
    STEPPED = "the weights have been updated, or the step was skipped"


OutcomeT = TypeVar("OutcomeT", bound=Outcome, covariant=True)


@dataclass(frozen=True, slots=True)
class EngineStepBegins(Event):
    """An engine's step begins.

    Until it has ended, the events of its optimizer are about the engine's master weights.
    """

    engine: SteppingEngine


@dataclass(frozen=True, slots=True)
class EngineStepEnded(Event):
    """An engine's step has ended, or it raised an exception."""

    engine: SteppingEngine
    raised: bool = False


@dataclass(frozen=True)
class StepEvent(Event, Generic[OutcomeT]):
    """A moment of an engine's step.

    Attributes:
        loss: the unscaled loss of the last backward pass: a scalar in FP32.
        scale: the loss scale.
        gradients: parameter name -> gradient. At FORWARD the mapping is empty; at SCALED it holds
            the model's gradients as they are; from UNSCALED on, unscaled gradients in FP32.
        report: the result of the step; None before STEPPED.
    """

    moment: Moment
    loss: Tensor
    scale: float
    gradients: Mapping[str, Tensor]
    report: OutcomeT | None
    engine: SteppingEngine
