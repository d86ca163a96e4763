"""Observer of a model in any training loop.

Idea: a few steps out of many are sampled. A watch subscribes to the stream of events, and handles
those of its model: forward passes of modules, optimizer steps, scales and skipped steps. In a
sampled step, gradients are hooked, and weights are compared before and after the step. A step with
inf or NaN is replayed to find their source. The hooks of modules are torch's global ones, so the
model itself carries none, and can be copied and pickled.

Invariant: the run is the same as without the watch, bit for bit and random draw for random draw.
When the block ends, also by an exception, no hook and no reference remains.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import get_ident
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from labkit.formats import BF16, FORMATS, FP16, Format, FormatLike, as_format
from labkit.formats.arguments import describe_value, require_kind
from labkit.instrument.causes import causes_first
from labkit.instrument.events import (
    BackwardBegins,
    ClipBegins,
    EngineStepBegins,
    EngineStepEnded,
    GradBegins,
    GradEnded,
    GradScalerLike,
    ModelHolder,
    ModuleBegins,
    ModuleEnded,
    Moment,
    OptimizerBegins,
    OptimizerEnded,
    OptimizerLike,
    Outcome,
    ScalerStepBegins,
    ScalerStepEnded,
    StandInStepped,
    StepEvent,
    UnscaleBegins,
)
from labkit.instrument.guard import Unseen, guarded, guarded_context, reporting
from labkit.instrument.log import Log, dominating_epsilon, state_faults
from labkit.instrument.operations import in_backward
from labkit.instrument.ranks import Ranks, after_backward, group_of, single_rank_warning
from labkit.instrument.recorder import Recorder, SketchedStep
from labkit.instrument.records import Skip
from labkit.instrument.replay import Call, against_fp32, culprit, note_call
from labkit.instrument.report import Report
from labkit.instrument.sample import (
    CLIPPED,
    TRANSFORMED,
    Sample,
    compiled,
    finite,
    floats,
    in_transform,
    length,
)
from labkit.instrument.sources import sources_of
from labkit.instrument.stream import STREAM, Gradients, Listener, StepObserver, no_scale
from labkit.instrument.symptoms import Kind, finding
from labkit.instrument.taps import tap
from labkit.instrument.user_code import line_of_user

# methods of a scaler that a watch observes or calls
SCALER_METHODS = ("scale", "unscale_", "step", "is_enabled", "get_scale")
# calls of the model in one step whose inputs are kept until the step is over
MAX_CALLS = 8
# steps with inf or NaN: a scaler that starts too high skips many, for the same reason
MOST_REPLAYED = 20
# sampled steps in which an optimizer's eps is compared with the root that it is added to
EPSILON_SAMPLES = 5
# elements of a gradient that is cheap to check in each step
SMALL = 4096
# names of parameters in a sentence
MOST_NAMES = 3
# without against_fp32_every, a step is replayed in FP32 after about this many steps
FP32_EVERY = 500


def watch(
    model: nn.Module | ModelHolder,
    every: int = 50,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    scaler: GradScalerLike | None = None,
    formats: Sequence[FormatLike] = (FP16, BF16),
    loss: Callable[[Any], Tensor] | None = None,
    against_fp32_every: int | None = None,
    group: dist.ProcessGroup | None = None,
) -> Watch:
    """Watch a model being trained, by any loop, until the `with` block ends.

    Args:
        model: a module, or an object with one as `.model`: an engine, a run.
        every: sample steps 0, every, 2 every ... In a step, an optimizer of the model steps or is
            skipped; with several optimizers, a new step begins with the next forward pass.
        optimizer: watch the steps of this optimizer only.
        scaler: a scaler that has the methods of torch.amp.GradScaler and is not derived from it.
            torch's own scaler is observed without this argument.
        formats: formats whose losses the report shows.
        loss: the model's output -> the loss, unscaled. Without it, the replay in FP32 begins with
            the gradient that arrived at the model's outputs, and misses underflow between the loss
            and the outputs.
        against_fp32_every: replay the steps 0, against_fp32_every, ... in FP32 as well. It is a
            multiple of `every`; 0 for none, None for the smallest multiple that is at least 500.
        group: the ranks that train the model together. Those of DDP, of FSDP2 and of a distributed
            engine are known without this argument. Each rank opens a watch; after its end, `report`
            on any rank covers all of them.

    Raises:
        TypeError: `model` neither is a module nor has one, or another argument has another type.
        ValueError: the module has no parameter; `every` is not positive; `against_fp32_every` is
            not a multiple of `every`; or `formats` is empty, or has a format without sign or zero,
            or one that is not in `labkit.formats.FORMATS`.

    >>> model = nn.Linear(3, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with watch(model, every=1) as w:
    ...     model(torch.ones(4, 3)).sum().backward()
    ...     optimizer.step()
    >>> w.report().histograms("weight gradients")["bias"].count(2, 2)  # 2^2 <= 4 < 2^3
    1
    """
    require_kind(every, int, "every")
    require_kind(against_fp32_every, (int, type(None)), "against_fp32_every")
    module = model if isinstance(model, nn.Module) else getattr(model, "model", None)
    if not isinstance(module, nn.Module):
        raise TypeError(
            "model: expected a torch.nn.Module, or an object with one as .model; got "
            f"{type(model).__name__}"
        )
    if next(module.parameters(), None) is None:
        raise ValueError(f"{type(module).__name__} has no parameter, so there is nothing to watch")
    if every <= 0:
        raise ValueError(f"every: expected a positive integer, got {every}")
    if against_fp32_every is None:
        against_fp32_every = math.ceil(FP32_EVERY / every) * every
    elif against_fp32_every < 0 or against_fp32_every % every:
        raise ValueError(
            f"against_fp32_every: expected 0 or a multiple of every={every}, got "
            f"{against_fp32_every}"
        )
    _require_observable(optimizer, scaler, loss)
    known_formats = _known_formats(formats)
    module, known_group = group_of(model, module)
    return Watch(
        module,
        int(every),
        optimizer,
        scaler,
        known_formats,
        loss,
        int(against_fp32_every),
        group or known_group,
    )


def _require_observable(optimizer: object, scaler: object, loss: object) -> None:
    """Raise a TypeError if one of these arguments lacks what a watch needs of it."""
    if optimizer is not None and not hasattr(optimizer, "param_groups"):
        raise TypeError(
            f"optimizer: expected a torch.optim.Optimizer, got {describe_value(optimizer)}"
        )
    if scaler is not None:
        missing = [name for name in SCALER_METHODS if not callable(getattr(scaler, name, None))]
        if missing:
            raise TypeError(
                "scaler: expected the methods of torch.amp.GradScaler, got "
                f"{describe_value(scaler)} without {', '.join(missing)}"
            )
    if loss is not None and not callable(loss):
        raise TypeError(
            "loss: expected a function of the model's output that returns the unscaled loss, got "
            f"{describe_value(loss)}"
        )


def _known_formats(formats: Sequence[FormatLike]) -> tuple[Format, ...]:
    """Return the formats of a report, of which there is at least one."""
    # the letters of a name are iterable, too
    if isinstance(formats, str):
        raise TypeError(
            f"formats: expected a list of formats, got {formats!r}; write [{formats!r}]"
        )
    require_kind(formats, Iterable, "formats", "Pass a list of formats")
    known = tuple([as_format(format, "formats") for format in formats])
    if not known:
        raise ValueError('formats: expected at least one format, got none; pass ["FP16"]')
    for format in known:
        if not (format.signed and format.has_zero):
            raise ValueError(
                f"formats: expected formats with a sign and a zero, got {format.name}; gradients "
                "have both"
            )
        # a report holds the names of its formats only
        if FORMATS.get(format.name) != format:
            raise ValueError(
                f"formats: expected formats of labkit.formats.FORMATS, got another one, {format!r}"
            )
    return known


class Watch(StepObserver):
    """A watch on one model: a context manager with a `report` of the steps so far.

    Attributes:
        model: the module, inside DDP if it was wrapped; None after the watch has ended.
        every: one step in so many is sampled.
        first: the first step that the watch sees from its beginning; it is sampled, too.
    """

    def __init__(
        self,
        model: nn.Module,
        every: int,
        optimizer: torch.optim.Optimizer | None,
        scaler: GradScalerLike | None,
        formats: tuple[Format, ...],
        loss: Callable[[Any], Tensor] | None,
        fp32_every: int,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.every = every
        self.first = 0
        # settings
        self._group = group
        self._only = optimizer
        self._scaler = scaler
        self._loss = loss
        self._fp32_every = fp32_every
        # while the watch is open
        self._stack: ExitStack | None = None
        self._ranks: Ranks | None = None
        self._log = Log(type(model).__name__, tuple(formats))
        self._recorder: Recorder | None = None
        # of the current step
        self._sample: Sample | None = None
        self._sketches: SketchedStep | None = None
        self._calls: list[Call] = []
        self._calls_in_step = 0
        self._known_scale: float | None = None
        # number of the thread in which the model is running, else 0
        self._running = 0
        # number of calls of torch.autograd.grad that are running
        self._grads = 0
        self.on(GradBegins, self.before_grad)
        self.on(GradEnded, self.after_grad)
        self.on(UnscaleBegins, self.before_unscale)
        self.on(ScalerStepBegins, self.scaler_begins)
        self.on(ScalerStepEnded, self.scaler_ended)
        self.on(StandInStepped, self.stand_in_stepped)
        self.on(OptimizerBegins, self.before_optimizer)
        self.on(OptimizerEnded, self.after_optimizer)
        self.on(EngineStepBegins, self.engine_begins)
        self.on(EngineStepEnded, self.engine_ended)
        self.on(StepEvent, self.engine_steps)

    def record(self, path: Path | str) -> Watch:
        """Record the training to a file, which is written when the watch ends; return the watch.

        `labkit diff` and `labkit.testing.compare_trainings` compare two recordings. Of several
        ranks, the first one records.

        Raises:
            RuntimeError: the watch is open already.

        >>> import tempfile
        >>> from labkit.instrument import Recording
        >>> model = nn.Linear(3, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> path = Path(tempfile.mkdtemp()) / "healthy.labkit"
        >>> with watch(model, every=1).record(path):
        ...     model(torch.ones(4, 3)).sum().backward()
        ...     optimizer.step()
        >>> Recording.load(path).steps
        1
        """
        if self._stack is not None:
            raise RuntimeError(
                "expected record(path) before the watch is opened; write "
                "`with watch(model).record(path):`"
            )
        require_kind(path, (str, Path), "path", "Pass the name of a file")
        self._recorder = Recorder(Path(path), self.every)
        return self

    @property
    def recorded(self) -> Path | None:
        """The file that the recording was written to; None before the watch has ended."""
        return None if self._recorder is None else self._recorder.written

    def open_during_step(self, *, in_closure: bool = False) -> Watch:
        """Open the watch after the model was called in this step, and sample the next step too.

        Args:
            in_closure: whether an optimizer is stepping, whose closure called the model.
        """
        self.first = 1
        self.__enter__()
        # the events of this optimizer's step came before; it may move the weights to their end
        if in_closure:
            self._log.record_checksums(self._parameters)
        if self._sample is not None:
            # gradients have arrived before, so a comparison with FP32 would miss them
            self._sample.kept = None
        return self

    def __enter__(self) -> Watch:
        if self._stack is not None:
            raise RuntimeError("this watch was opened before; create another one with watch(model)")
        self._read_names()
        if self._group is not None:
            self._ranks = Ranks(self._log.name, self._parameters, self._group)
        else:
            warning = single_rank_warning()
            if warning:
                self._log.add_unseen(warning)
        if self._recorder is not None:
            with reporting(self.failed, "beginning to record"):
                self._begin_recording(self._recorder)
        # an engine's step is running, which the engine reports itself
        self._by_engine = False
        # the model was called as a whole
        self._called = False
        # id of an optimizer -> the optimizer, its number of parameters, those of the model by name
        self._held: dict[int, tuple[OptimizerLike, int, dict[str, Tensor]]] = {}
        # everything that is open is closed if something here fails; else `__exit__` closes it
        with ExitStack() as stack:
            self._stack = stack
            self._open_sources(stack)
            with reporting(self.failed, "beginning the first step"):
                self._begin()
            self._stack = stack.pop_all()
        return self

    def _read_names(self) -> None:
        """Record the names of the model's parameters and modules, and whether it can be hooked."""
        self._parameters = {
            name.removeprefix("_orig_mod."): parameter
            for name, parameter in self.model.named_parameters()
        }
        self._weight_names = {id(weight): name for name, weight in self._parameters.items()}
        self._names = {
            id(module): name or type(module).__name__ for name, module in self.model.named_modules()
        }
        # why the layers cannot be hooked; "" if they can
        self._blind = compiled(self.model)
        if self._blind:
            self._log.add_unseen(f"activations and their gradients: {self._blind}")
        # modules of the user, which may have counters or settings; those of torch.nn have none
        self._modules = [
            module
            for module in self.model.modules()
            if not type(module).__module__.startswith("torch.nn.")
        ]

    def _open_sources(self, stack: ExitStack) -> None:
        """Subscribe to the events of the training until a stack closes."""
        self._sample_stack = stack.enter_context(ExitStack())
        if not self._blind:
            stack.enter_context(tap(type(self.model), "__call__", self._around_call, self.failed))
        stack.enter_context(STREAM.subscribed(self, *sources_of(self._scaler)))
        if self._blind:
            # the forward passes of a compiled model are not observed: a backward pass begins a step
            steps = Listener(self.failed).on(BackwardBegins, self._backward_begins)
            stack.enter_context(STREAM.subscribed(steps))

    def __exit__(self, *_: object) -> None:
        """Remove all hooks, and release the model."""
        try:
            with reporting(self.failed, "finishing the last step"):
                self._finish()
        finally:
            assert self._stack is not None
            self._stack.close()
            with reporting(self.failed, "writing the recording"):
                self._write_recording()
            self.model = None  # type: ignore[assignment]
            self._only = None
            self._scaler = None
            self._loss = None
            self._parameters = {}
            self._weight_names = {}
            self._names = {}
            self._scale = no_scale
            self._sample = None
            self._calls = []
            self._modules = []
            self._held = {}
            if self._ranks is not None:
                with reporting(self.failed, "publishing the report for other ranks"):
                    self._ranks.publish(self._own_report())

    def _begin_recording(self, recorder: Recorder) -> None:
        # of several ranks, the first one records
        if self._group is not None and dist.get_rank(self._group) != 0:
            self._recorder = None
            return
        layers = {self._names[id(module)]: type(module).__name__ for module in self.model.modules()}
        recorder.observe_model(layers, next(self.model.parameters()))
        if self._group is not None:
            recorder.settings["ranks"] = str(dist.get_world_size(self._group))

    def _write_recording(self) -> None:
        recorder = self._recorder
        if recorder is None:
            return
        own = self._own_report()
        lines = own.watched[-1].lines if own.watched else {}
        recording = recorder.recording(own.model, own.steps, len(own.skips), lines, own.unseen)
        recorder.written = recording.save(recorder.path)

    def failed(self, where: str, error: Exception) -> None:
        """Record what cannot be observed, or a failure of the watch itself."""
        if isinstance(error, Unseen):
            self._log.add_unseen(str(error))
        else:
            super().failed(where, error)

    def report(self) -> Report:
        """Return the report so far, also while the watch is open.

        After the end of the watch, it is the report of all ranks of the group.
        """
        own = self._own_report()
        own = replace(own, findings=tuple(causes_first(own.findings)))
        if self._ranks is None:
            return own
        return self._ranks.merged(own)

    def every_finding(self) -> Report:
        """Return the report of this rank with all findings, also those that follow from others."""
        return self._own_report()

    def _own_report(self) -> Report:
        steps = self.step
        running = None
        # the current step counts once an optimizer has stepped or was skipped in it
        if self.stepped:
            steps += 1
            if self._sample is not None:
                running = self._sample.done()
        return self._log.report(steps, running, self)

    # Steps, one after another

    def _begin(self) -> None:
        step = self.step
        self._log.step = step
        self.stepped = set()
        self._calls = []
        self._calls_in_step = 0
        self._sample = None
        self._known_scale = None
        # all losses of the step so far
        self._losses_are_zero = True
        self._sample_stack.close()
        if not self._called and not self._blind:
            # until the model is called as a whole, a call of a layer begins a step
            layers = Listener(self.failed).on(ModuleBegins, self._layer_begins)
            self._sample_stack.enter_context(STREAM.subscribed(layers))
        if step % self.every and step != self.first:
            return
        keep = False
        if self._fp32_every:
            keep = step % self._fp32_every == 0 or step == self.first
        self._sketches = None if self._recorder is None else self._recorder.begin(step)
        self._sample = Sample(step, self._names, self._scale_now, self.failed, keep, self._sketches)
        sampling = Listener(self.failed)
        if not self._blind:
            sampling.on(ModuleEnded, self._sample.after_module)
            sampling.on(BackwardBegins, self._backward_begins)
        sampling.on(ClipBegins, self._clip_begins)
        self._sample_stack.enter_context(STREAM.subscribed(sampling))
        if self._group is not None:
            # the ranks sum the gradients at the end of backward; `_reduced` counts them then
            return
        for name, parameter in self._parameters.items():
            # a lazy module's parameter takes no hook before the first call
            if parameter.requires_grad and parameter.is_leaf and not is_lazy(parameter):
                hook = guarded(partial(self._accumulated, name), self.failed)
                handle = parameter.register_post_accumulate_grad_hook(hook)
                self._sample_stack.callback(handle.remove)

    def _finish(self) -> None:
        """Record the sampled step that is over."""
        if self._sample is not None and (self.stepped or self._sample.counts):
            if self.stepped and not self._sample.norms and self.step >= self.first:
                self._log.add_unseen("gradients: no gradient had arrived at any parameter")
            self._log.watched.append(self._sample.done())
            if self._recorder is not None and self._sketches is not None:
                done = self._log.watched[-1]
                self._recorder.end(self._sketches, done.scale, done.histograms)
        self._sketches = None
        self._sample_stack.close()

    def next_step(self) -> None:
        """Record the step that is over, and begin the next."""
        self._finish()
        self.step += 1
        self._begin()

    # Forward and backward

    def _layer_begins(self, event: ModuleBegins) -> None:
        """Begin a step with a layer's forward pass, if the model is never called as a whole."""
        if id(event.module) in self._names:
            self.forward_begins()

    def _around_call(self, call: Any, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Record the model's inputs and hook its outputs; count tensors in a sampled step."""
        if module is not self.model or not torch.is_grad_enabled() or in_backward():
            return call(module, *args, **kwargs)
        self.forward_begins()
        # the model calls itself, or is called in several threads: the outermost call counts
        if self._running:
            if self._running != get_ident():
                self._log.add_unseen(
                    "calls of the model in a second thread, while it ran in a first"
                )
            return call(module, *args, **kwargs)
        self._called = True
        self._running = get_ident()
        recorded_call: Call | None = None
        try:
            with reporting(self.failed, "recording a call"):
                if in_transform():
                    raise Unseen(TRANSFORMED)
                numbers = None if self._sample is None else self._sample.numbers
                recorded_call = note_call(self._modules, args, kwargs, numbers)
                self._calls_in_step += 1
                # the latest calls, MAX_CALLS at most
                self._calls = [*self._calls[1 - MAX_CALLS :], recorded_call]
            if self._sketches is not None:
                with reporting(self.failed, "recording a batch"):
                    self._sketches.called(args, kwargs)
                self._sketches.running = True
            if self._sample is None or in_transform():
                output = call(module, *args, **kwargs)
            else:
                inside = self._sample.inside(self.model.parameters)
                with guarded_context(inside, self.failed, "observing a call"):
                    output = call(module, *args, **kwargs)
        finally:
            self._running = 0
            if self._sketches is not None:
                self._sketches.running = False
        if recorded_call is not None:
            recorded_call.hook_outputs(floats(output), self.failed)
        if self._group is not None and self._sample is not None:
            after_backward(floats(output), self._reduced, self.failed)
        return output

    def before_grad(self, event: GradBegins) -> None:
        """Mark gradients of other backward passes, such as that of a gradient penalty."""
        self._grads += 1
        if self._sample is not None:
            self._sample.inner = True

    def after_grad(self, event: GradEnded) -> None:
        """End the mark, unless another call of torch.autograd.grad is still running."""
        self._grads -= 1
        if self._sample is not None:
            self._sample.inner = self._grads > 0

    def _note_line(self, what: str) -> None:
        """Record the line of the user's code that runs a part of a sampled step."""
        if self._sample is None:
            return
        line = line_of_user(sys._getframe(1))
        if line:
            self._sample.lines[what] = line

    def _clip_begins(self, event: ClipBegins) -> None:
        self._note_line("clip")

    def _backward_begins(self, event: BackwardBegins) -> None:
        """Record the line, and whether the loss is 0: then no gradient was lost.

        The forward passes of a compiled model are not seen; its steps begin here.
        """
        if self._blind and self.stepped and not (self.stepping or in_backward()):
            self.next_step()
        if self._sample is None:
            return
        self._note_line("backward")
        of_replay = line_of_user(sys._getframe(1)) is None
        if of_replay or in_backward():
            return
        roots = [event.roots] if isinstance(event.roots, Tensor) else list(event.roots)
        if not all(isinstance(root, Tensor) for root in roots):
            # of a backward pass from an edge of the graph, the loss is unknown
            self._losses_are_zero = False
            return
        if any(bool(root.detach().any()) for root in roots):
            self._losses_are_zero = False
        if self._sketches is not None:
            total = sum(float(root.detach().double().sum()) for root in roots)
            self._sketches.losses.append(total / self._scale_now())

    def _reduced(self) -> None:
        """Count gradients after a backward pass that has summed them over the ranks."""
        for name, parameter in self._parameters.items():
            self._accumulated(name, parameter)

    def _accumulated(self, name: str, parameter: Tensor) -> None:
        if self._sample is not None and parameter.grad is not None:
            self._sample.gradient(name, parameter.grad, self._scale_now())

    # Scales and optimizers: events of `labkit.instrument.stream`

    def _scale_now(self) -> float:
        """Return the scale of this step; reading it from the scaler may wait for a GPU, once."""
        if self._known_scale is None:
            self._known_scale = float(self._scale())
        return self._known_scale

    def observes_model(self, model: nn.Module) -> bool:
        return model is self.model

    def scaled_by(self, scale: Callable[[], float]) -> None:
        super().scaled_by(scale)
        # once gradients of this step are counted, they were unscaled by the known scale
        if self._sample is None or not self._sample.norms:
            self._known_scale = None

    def observes_optimizer(self, optimizer: OptimizerLike) -> bool:
        """Return whether an optimizer steps parameters of the model, and is not excluded."""
        if self._only is not None and optimizer is not self._only:
            return False
        return bool(self._held_by(optimizer))

    def _held_by(self, optimizer: OptimizerLike) -> dict[str, Tensor]:
        """Return the model's parameters that an optimizer steps, by name.

        They are cached while the number of the optimizer's parameters is unchanged.
        """
        total = sum(len(group["params"]) for group in optimizer.param_groups)
        if id(optimizer) in self._held:
            _, known_total, known = self._held[id(optimizer)]
            if known_total == total:
                return known
        held = {}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                name = self._weight_names.get(id(parameter))
                if name is not None:
                    held[name] = parameter
        if held:
            # the cache keeps the optimizer alive, so that no other object gets its id
            self._held[id(optimizer)] = (optimizer, total, held)
        return held

    def before_optimizer(self, event: OptimizerBegins) -> None:
        """Observe an optimizer before its step.

        In a step that is not sampled, a scaler finds inf and NaN. Without one, one gradient is
        checked.
        """
        optimizer = event.optimizer
        if self._by_engine or not self.observes_optimizer(optimizer):
            return
        self.stepping = True
        held = self._held_by(optimizer)
        self.step_begins(optimizer)
        if self._sample is None and (self.scaled or _looks_finite(held)):
            return
        self.before_step(optimizer, held, _unscaled_gradients(optimizer, held))

    def after_optimizer(self, event: OptimizerEnded) -> None:
        """Observe an optimizer after its step."""
        optimizer = event.optimizer
        if self._by_engine or not self.observes_optimizer(optimizer):
            return
        # of a fused optimizer, which skips a step by itself
        skipped = getattr(optimizer, "found_inf", None)
        held = {}
        if self._sample is not None or skipped:
            held = self._held_by(optimizer)
        gradients = {name: parameter.grad for name, parameter in held.items()}
        if skipped:
            self.skipped(optimizer, gradients)
        else:
            self.after_step(optimizer, held, gradients)

    def scaler_begins(self, event: ScalerStepBegins) -> None:
        """Begin a scaler's decision on a step of the model."""
        if self.observes_optimizer(event.optimizer):
            self.scaled_by(event.scale)
            self.step_begins(event.optimizer)

    def scaler_ended(self, event: ScalerStepEnded) -> None:
        """Record a step as skipped if the scaler has not called the optimizer."""
        optimizer = event.optimizer
        if event.raised or id(optimizer) in self.stepped or not self.observes_optimizer(optimizer):
            return
        held = self._held_by(optimizer)
        self.skipped(optimizer, {name: parameter.grad for name, parameter in held.items()})

    def stand_in_stepped(self, event: StandInStepped) -> None:
        """Record that a step was taken, which the optimizer itself takes later."""
        if self.observes_optimizer(event.stand_in):
            self.after_step(event.stand_in, {}, {})

    def engine_begins(self, event: EngineStepBegins) -> None:
        """Begin a step of the model's engine, which reports the step itself.

        Events of optimizers are ignored meanwhile.
        """
        if self.observes_model(event.engine.model):
            self._by_engine = True

    def engine_ended(self, event: EngineStepEnded) -> None:
        """End a step of the model's engine."""
        if self.observes_model(event.engine.model):
            self._by_engine = False

    def engine_steps(self, event: StepEvent[Outcome]) -> None:
        """Observe the masters and the unscaled gradients of the model's engine."""
        engine = event.engine
        if not (self._by_engine and self.observes_model(engine.model)):
            return
        gradients: Gradients = dict(event.gradients)
        if event.moment is Moment.UNSCALED:
            self.before_step(engine.optimizer, engine.masters(), gradients)
            return
        if event.report is None:
            return
        if event.report.stepped:
            self.after_step(
                engine.optimizer,
                engine.masters(),
                gradients,
                stochastic=engine.rounds_stochastically,
            )
        else:
            self.skipped(engine.optimizer, gradients, event.report.why)

    def before_unscale(self, event: UnscaleBegins) -> None:
        """Compare gradients that are still scaled with those of the backward pass."""
        optimizer = event.optimizer
        if not self.observes_optimizer(optimizer):
            return
        if self._sample is None or id(optimizer) in self.stepped:
            return
        scale = self._scale_now()
        norms = self._sample.norms
        gradients = {}
        for name, parameter in self._held_by(optimizer).items():
            if parameter.grad is not None and name in norms:
                gradients[name] = parameter.grad
        norm_after_backward = math.hypot(*(norms[name] for name in gradients)) * scale
        norm = length(gradients.values())
        was_clipped = norm < CLIPPED * norm_after_backward
        if scale != 1 and math.isfinite(norm_after_backward) and was_clipped:
            sentence = (
                f"while {scale:g} times too large, they were shortened from "
                f"{norm_after_backward:.3g} to {norm:.3g}; unscale_ first"
            )
            self._note_line("step")
            line = self._sample.lines.get("clip", self._sample.lines.get("step", ""))
            self._log.add_finding(finding(Kind.CLIPPED_WHILE_SCALED, "", self.step, sentence, line))

    def before_step(
        self, optimizer: OptimizerLike, weights: dict[str, Tensor], gradients: Gradients
    ) -> None:
        """Observe a step that is about to be taken.

        Args:
            optimizer: the optimizer.
            weights: parameter -> the weights that the optimizer steps, maybe masters.
            gradients: parameter -> its unscaled gradient, or None.
        """
        self.step_begins(optimizer)
        # Without a scaler, nothing skips a step with inf or NaN. In a step that is not sampled,
        # this function is called only if there are some.
        non_finite = True
        if self._sample is not None:
            self._note_line("step")
            if self._by_engine:
                self._sample.forget_gradients()
            self._compare_with_fp32(self._sample, gradients)
            self._sample.before_step_sample(self._parameters, weights, gradients)
            self._log.record_checksums(weights)
            counts = self._sample.counts["weight gradients"].values()
            non_finite = any(histogram.non_finite for histogram in counts)
        if non_finite and not self.scaled:
            self._find_source(gradients)

    def _compare_with_fp32(self, sample: Sample, gradients: Gradients) -> None:
        """Compare the gradients of a step with those of a replay in FP32, if they were kept."""
        if sample.kept is None:
            return
        # released here: a step with several optimizers is compared once
        observed = sample.kept
        sample.kept = None
        with self._log.replaying("comparison with FP32"):
            compared = against_fp32(
                self.model,
                self._calls,
                self._scale_now(),
                self.step,
                observed,
                gradients,
                self._loss,
            )
            # gradients of a loss of 0 are 0 in any format, and did not underflow
            if self._losses_are_zero:
                compared = replace(compared, arrived=(0, 0))
            self._log.against_fp32.append(compared)
            if self._calls_in_step > MAX_CALLS:
                self._log.add_unseen(
                    f"comparison with FP32: only the last {MAX_CALLS} calls of the model in a step "
                    "are replayed"
                )

    def after_step(
        self,
        optimizer: OptimizerLike,
        weights: dict[str, Tensor],
        gradients: Gradients,
        *,
        stochastic: bool = False,
    ) -> None:
        """Observe a step that was taken.

        Args:
            optimizer: the optimizer.
            weights: parameter -> the weights that the optimizer steps, maybe masters.
            gradients: parameter -> its unscaled gradient, or None.
            stochastic: whether the step rounds the weights up or down at random.
        """
        self.stepping = False
        self.stepped.add(id(optimizer))
        if self._sample is None or not self._sample.before:
            return
        if self._recorder is not None:
            with reporting(self.failed, "recording the settings of an optimizer"):
                self._recorder.observe_optimizer(optimizer)
        self._sample.after_step_sample(weights, gradients, stochastic=stochastic)
        self._log.record_moves(self._sample, stochastic=stochastic)
        for name, weight in weights.items():
            if weight.itemsize <= 2 or self._parameters[name].itemsize <= 2:
                self._log.narrow.add(name)
        # an optimizer in use has the state of torch.optim.Optimizer, which OptimizerLike leaves out
        stateful: Any = optimizer
        self._sample.measure(self._parameters.values(), weights.values(), stateful)
        if len(self._log.dominated) < EPSILON_SAMPLES:
            self._log.dominated.append(dominating_epsilon(stateful))
        line = self._sample.lines.get("step", "")
        # an optimizer leaves out parameters without a gradient, such as frozen ones
        stepped = {
            name: weight for name, weight in weights.items() if gradients.get(name) is not None
        }
        for each in state_faults(stateful, stepped, self.step, line):
            self._log.add_finding(each)

    def skipped(self, optimizer: OptimizerLike, gradients: Gradients, why: str = "") -> None:
        """Record a step that was not taken, and the parameters with inf or NaN.

        Args:
            optimizer: the optimizer.
            gradients: parameter -> its gradient, or None.
            why: the reason; "": a sentence about these parameters.
        """
        self.stepping = False
        self.stepped.add(id(optimizer))
        culprits = _with_non_finite(gradients)
        skips = self._log.skips
        if skips and skips[-1].step == self.step:
            # another optimizer was skipped in this step, which counts once
            culprits = list(dict.fromkeys([*skips.pop().culprits, *culprits]))
        if not why:
            shown = ", ".join(culprits[:MOST_NAMES]) or "a gradient"
            if len(culprits) > MOST_NAMES:
                shown += f" and {len(culprits) - MOST_NAMES} more"
            why = f"inf or NaN in {shown}"
        skips.append(Skip(self.step, self._scale_now(), tuple(culprits), why))
        self._find_source(gradients)

    def _find_source(self, gradients: Gradients) -> None:
        """Replay the step unchanged, and record the source of its inf or NaN."""
        if self.step < self.first or len(self._log.non_finite) >= MOST_REPLAYED:
            return
        with self._log.replaying("source of inf or NaN"):
            source = culprit(self.model, self._calls, self._scale_now(), self.step)
            if source is not None:
                self._log.non_finite.append(source)
                return
            culprits = _with_non_finite(gradients)
            place = f" in {culprits[0]}" if culprits else ""
            self._log.add_unseen(f"source of inf or NaN{place}: it did not appear in the replay")


def _with_non_finite(gradients: Gradients) -> list[str]:
    """Return the parameters whose gradients hold inf or NaN."""
    names = []
    for name, gradient in gradients.items():
        if gradient is not None and not finite(gradient):
            names.append(name)
    return names


def _looks_finite(weights: dict[str, Tensor]) -> bool:
    """Return whether one small gradient is finite: inf and NaN reach nearly all gradients."""
    for weight in weights.values():
        if weight.numel() <= SMALL and weight.grad is not None and not weight.grad.is_sparse:
            # a sum may overflow while its numbers do not
            return finite(weight.grad)
    return True


def _unscaled_gradients(optimizer: OptimizerLike, weights: dict[str, Tensor]) -> Gradients:
    """Return the unscaled gradients of a step."""
    # a fused optimizer unscales them inside its step, by this attribute
    scale = getattr(optimizer, "grad_scale", None)
    gradients: Gradients = {}
    for name, weight in weights.items():
        gradient = weight.grad
        if scale is not None and gradient is not None:
            gradient = gradient / scale
        gradients[name] = gradient
    return gradients
