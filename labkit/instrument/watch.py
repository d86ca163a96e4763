"""Observer of a model in any training loop.

Idea: a few steps out of many are sampled. A watch subscribes to the stream of events, filtered by
model: forward passes of modules, optimizer steps, scales and skipped steps. Gradients are hooked in
a sampled step. Weights are compared before and after a step. A step with inf or NaN is replayed to
find their source. The hooks of modules are torch's global ones: the model itself carries none, and
can be copied and pickled.

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

from labkit.formats import BF16, FP16, Format, FormatLike, as_format
from labkit.formats.arguments import require_kind
from labkit.instrument.causes import causes_first
from labkit.instrument.events import (
    BackwardBegins,
    ClipBegins,
    EngineStepBegins,
    EngineStepEnded,
    Event,
    GradBegins,
    GradEnded,
    GradScalerLike,
    ModuleBegins,
    ModuleEnded,
    Moment,
    OptimizerBegins,
    OptimizerEnded,
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
    TRANSFORMED,
    Sample,
    compiled,
    finite,
    floats,
    in_transform,
    length,
    local_part,
)
from labkit.instrument.sources import sources_of
from labkit.instrument.stream import STREAM, Gradients, Listener, StepObserver, no_scale
from labkit.instrument.symptoms import Kind, finding
from labkit.instrument.taps import tap
from labkit.instrument.user_code import line_of_user

# calls of the model in one step whose inputs are kept until the step is over
MAX_CALLS = 8
# steps with inf or NaN: a scaler that starts too high skips many, for the same reason
MOST_REPLAYED = 20
# sampled steps in which an optimizer's eps is compared with what it is added to
EPSILON_SAMPLES = 5
SMALL = 4096  # elements of a gradient that is cheap to check in each step


def watch(
    model: Any,
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
        optimizer: watch this one's steps only.
        scaler: one with the methods of torch.amp.GradScaler that is not derived from it. torch's
            own is found.
        formats: formats whose losses the report shows.
        loss: the model's output -> the loss, unscaled. Without it, the replay in FP32 begins with
            the gradient that arrived at the model's outputs, and misses what was lost between the
            loss and them.
        against_fp32_every: which steps are replayed in FP32 as well, a multiple of `every`; 0 for
            none, None for the smallest such multiple from 500 on.
        group: the ranks that train the model together. Those of DDP, of FSDP2 and of a distributed
            engine are found. Each rank opens a watch; after its end, `report` on any rank covers
            all of them.

    Raises:
        TypeError: there is no module to watch.
        ValueError: it has no parameter; every is not positive; against_fp32_every is not a multiple
            of it.

    >>> model = nn.Linear(3, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with watch(model, every=1) as w:
    ...     model(torch.ones(4, 3)).sum().backward()
    ...     optimizer.step()
    >>> w.report().histograms("weight gradients")["bias"].count(2, 2)  # 2^2 <= 4 < 2^3
    1
    """
    require_kind(formats, Iterable, "formats", "Pass a list of formats")
    require_kind(against_fp32_every, (int, type(None)), "against_fp32_every")
    module = model if isinstance(model, nn.Module) else getattr(model, "model", None)
    if not isinstance(module, nn.Module):
        raise TypeError(
            "model: expected a torch.nn.Module, or an object with one as .model; got "
            f"{type(model).__name__}"
        )
    if next(module.parameters(), None) is None:
        raise ValueError(f"{type(module).__name__} has no parameter, so there is nothing to watch")
    if not (isinstance(every, int) and every > 0):
        raise ValueError(f"every: expected a positive integer, got {every!r}")
    if against_fp32_every is None:
        against_fp32_every = -(-500 // every) * every
    elif against_fp32_every % every:
        raise ValueError(
            f"against_fp32_every: expected 0 or a multiple of every={every}, got "
            f"{against_fp32_every}"
        )
    module, found = group_of(model, module)
    shown_in = tuple([as_format(format, "formats") for format in formats])
    return Watch(
        module, every, optimizer, scaler, shown_in, loss, against_fp32_every, group or found
    )


class Watch(StepObserver):
    """A watch on one model: a context manager with a `report` of the steps so far."""

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
        self._group = group
        self._ranks: Ranks | None = None
        self._only = optimizer
        self._scaler = scaler
        self._loss = loss
        self._fp32_every = fp32_every
        self.first = 0
        self._stack: ExitStack | None = None
        self._log = Log(type(model).__name__, tuple(formats))
        self._sample: Sample | None = None
        self._calls: list[Call] = []
        self._running = 0  # the thread in which the model runs
        self._known_scale: float | None = None  # in this step
        self._grads = 0  # calls of torch.autograd.grad that run
        self._recorder: Recorder | None = None
        self._sketches: SketchedStep | None = None  # of the sampled step that is recorded
        self.on(GradBegins, self.before_grad).on(GradEnded, self.after_grad)
        self.on(UnscaleBegins, self.before_unscale)
        self.on(ScalerStepBegins, self.scaler_begins).on(ScalerStepEnded, self.scaler_ended)
        self.on(StandInStepped, self.stand_in_stepped)
        self.on(OptimizerBegins, self.before_optimizer).on(OptimizerEnded, self.after_optimizer)
        self.on(EngineStepBegins, self.engine_begins).on(EngineStepEnded, self.engine_ended)
        self.on(StepEvent, self.engine_steps)

    def record(self, path: Path | str) -> Watch:
        """Record the training to a file, which is written when the watch ends; return the watch.

        `labkit diff` and `labkit.testing.compare_trainings` compare two of them. Of several ranks,
        the first one records.

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

    def open_during_step(self) -> Watch:
        """Open the watch after the model was called in this step, and sample the next step too."""
        self.first = 1
        self.__enter__()
        if self._sample is not None:
            self._sample.kept = None
        return self

    def __enter__(self) -> Watch:
        if self._stack is not None:
            raise RuntimeError("this watch was opened before; create another one with watch(model)")
        self._parameters = {
            n.removeprefix("_orig_mod."): p for n, p in self.model.named_parameters()
        }
        self._weight_names = {id(p): name for name, p in self._parameters.items()}
        self._ranks = (
            Ranks(self._log.name, self._parameters, self._group)
            if self._group is not None
            else None
        )
        self._names = {
            id(module): name or type(module).__name__ for name, module in self.model.named_modules()
        }
        self._blind = compiled(self.model)
        if self._recorder is not None:
            with reporting(self.failed, "beginning to record"):
                self._begin_recording(self._recorder)
        unhooked = f"activations and their gradients: {self._blind}" if self._blind else ""
        for unseen in filter(
            None, (unhooked, single_rank_warning() if self._ranks is None else "")
        ):
            self._log.add_unseen(unseen)
        self._by_engine = False
        self._called = False
        self._modules = [
            m for m in self.model.modules() if not type(m).__module__.startswith("torch.nn.")
        ]
        self._held: dict[int, tuple[Any, int, dict[str, Tensor]]] = {}
        with ExitStack() as stack:
            self._stack = stack
            self._sample_stack = stack.enter_context(ExitStack())
            if not self._blind:
                stack.enter_context(
                    tap(type(self.model), "__call__", self._around_call, self.failed)
                )
            stack.enter_context(STREAM.subscribed(self, *sources_of(self._scaler)))
            if self._blind:
                # its forward passes are not seen, so a backward pass begins a step
                steps = Listener(self.failed).on(BackwardBegins, self._backward_begins)
                stack.enter_context(STREAM.subscribed(steps))
            with reporting(self.failed, "beginning the first step"):
                self._begin()
            self._stack = stack.pop_all()
        return self

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
            self.model = self._only = self._scaler = self._loss = None  # type: ignore[assignment]
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

        After its end, that of all ranks of a group.
        """
        own = self.every_finding()
        own = replace(own, findings=tuple(causes_first(own.findings)))
        return own if self._ranks is None else self._ranks.merged(own)

    def every_finding(self) -> Report:
        """Return the report of this rank, with findings that follow from others apart."""
        return self._own_report()

    def _own_report(self) -> Report:
        running = self._sample.done() if self._sample is not None and self.stepped else None
        return self._log.report(self.step + bool(self.stepped), running, self)

    # Steps, one after another

    def _begin(self) -> None:
        step = self.step
        self._log.step = step
        self.stepped = set()
        self._calls = []
        self._sample = None
        self._known_scale = None
        self._losses_are_zero = True
        self._sample_stack.close()
        if not self._called and not self._blind:
            layers = Listener(self.failed).on(ModuleBegins, self._layer_begins)
            self._sample_stack.enter_context(STREAM.subscribed(layers))
        if step % self.every and step != self.first:
            return
        keep = bool(self._fp32_every) and (step % self._fp32_every == 0 or step == self.first)
        self._sketches = None if self._recorder is None else self._recorder.begin(step)
        self._sample = Sample(step, self._names, self._scale_now, self.failed, keep, self._sketches)
        sampling = Listener(self.failed)
        if not self._blind:
            sampling.on(ModuleEnded, self._sample.after_module)
            sampling.on(BackwardBegins, self._backward_begins)
        sampling.on(ClipBegins, partial(self._note_line, "clip"))
        self._sample_stack.enter_context(STREAM.subscribed(sampling))
        if self._group is None:
            for name, parameter in self._parameters.items():
                if parameter.requires_grad and parameter.is_leaf:
                    hook = guarded(partial(self._accumulated, name), self.failed)
                    self._sample_stack.callback(
                        parameter.register_post_accumulate_grad_hook(hook).remove
                    )

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
        if self._running:
            if self._running != get_ident():
                self._log.add_unseen(
                    "calls of the model in a second thread, while it ran in a first"
                )
            return call(module, *args, **kwargs)
        self._called = True
        self._running = get_ident()
        noted: Call | None = None
        try:
            with reporting(self.failed, "recording a call"):
                if in_transform():
                    raise Unseen(TRANSFORMED)
                noted = note_call(self._modules, args, kwargs)
                self._calls = [*self._calls[1 - MAX_CALLS :], noted]
            if self._sketches is not None:
                with reporting(self.failed, "recording a batch"):
                    self._sketches.called(args, kwargs)
                self._sketches.running = True
            sample = None if in_transform() else self._sample
            if sample is None:
                output = call(module, *args, **kwargs)
            else:
                with guarded_context(
                    sample.inside(self.model.parameters), self.failed, "observing a call"
                ):
                    output = call(module, *args, **kwargs)
        finally:
            self._running = 0
            if self._sketches is not None:
                self._sketches.running = False
        if noted is not None:
            noted.hook_outputs(floats(output), self.failed)
        if self._group is not None and self._sample is not None:
            after_backward(floats(output), self._reduced, self.failed)
        return output

    def before_grad(self, event: GradBegins) -> None:
        """Mark gradients of other backward passes, such as that of a gradient penalty."""
        self._grads += 1
        if self._sample is not None:
            self._sample.inner = True

    def after_grad(self, event: GradEnded) -> None:
        self._grads -= 1
        if self._sample is not None:
            self._sample.inner = self._grads > 0

    def _note_line(self, what: str, event: Event | None = None) -> None:
        """Record the line of the user's code that runs a part of a sampled step."""
        if self._sample is not None and (line := line_of_user(sys._getframe(1))):
            self._sample.lines[what] = line

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
        if not (of_replay or in_backward()):
            roots = [event.roots] if isinstance(event.roots, Tensor) else list(event.roots)
            is_zero = not any(bool(root.detach().any()) for root in roots)
            self._losses_are_zero = self._losses_are_zero and is_zero
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
        if self._known_scale is None:
            self._known_scale = float(self._scale())
        return self._known_scale

    def observes_model(self, model: nn.Module) -> bool:
        return model is self.model

    def scaled_by(self, scale: Callable[[], float]) -> None:
        super().scaled_by(scale)
        # else this step counted with the known one
        if self._sample is None or not self._sample.norms:
            self._known_scale = None

    def observes_optimizer(self, optimizer: Any) -> bool:
        return (self._only is None or optimizer is self._only) and bool(self._held_by(optimizer))

    def _held_by(self, optimizer: Any) -> dict[str, Tensor]:
        """Return the parameters that an optimizer steps, cached while their number is unchanged."""
        total = sum(len(group["params"]) for group in optimizer.param_groups)
        _, known, held = self._held.get(id(optimizer), (None, 0, {}))
        if known != total:
            stepped = [
                p
                for group in optimizer.param_groups
                for p in group["params"]
                if id(p) in self._weight_names
            ]
            held = {self._weight_names[id(p)]: p for p in stepped}
            if held:  # a cached optimizer stays alive, so its id stays unique
                self._held[id(optimizer)] = optimizer, total, held
        return held

    def before_optimizer(self, event: OptimizerBegins) -> None:
        optimizer = event.optimizer
        if self._by_engine or not self.observes_optimizer(optimizer):
            return
        self.stepping = True
        held = self._held_by(optimizer)
        self.step_begins(optimizer)
        if self._sample is not None or not (self.scaled or self._looks_finite(held)):
            self.before_step(optimizer, held, _unscaled_gradients(optimizer, held))

    @staticmethod
    def _looks_finite(weights: dict[str, Tensor]) -> bool:
        """Return whether one small gradient is finite: inf and NaN reach nearly all gradients."""
        for weight in weights.values():
            if weight.numel() <= SMALL and weight.grad is not None and not weight.grad.is_sparse:
                return math.isfinite(abs(local_part(weight.grad).sum().item()))
        return True

    def after_optimizer(self, event: OptimizerEnded) -> None:
        optimizer = event.optimizer
        if self._by_engine or not self.observes_optimizer(optimizer):
            return
        # of a fused optimizer, which skips by itself
        skipped = getattr(optimizer, "found_inf", None)
        held = self._held_by(optimizer) if self._sample is not None or skipped else {}
        gradients = {name: p.grad for name, p in held.items()}
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
        """Record a step as skipped if the optimizer's hooks were not called."""
        optimizer = event.optimizer
        if event.raised or id(optimizer) in self.stepped or not self.observes_optimizer(optimizer):
            return
        held = self._held_by(optimizer)
        self.skipped(optimizer, {name: p.grad for name, p in held.items()})

    def stand_in_stepped(self, event: StandInStepped) -> None:
        """Record that a step was taken, which the optimizer itself takes later."""
        if self.observes_optimizer(event.stand_in):
            self.after_step(event.stand_in, {}, {})

    def engine_begins(self, event: EngineStepBegins) -> None:
        """Begin a step of the model's engine, which reports it itself.

        torch's hooks are ignored.
        """
        self._by_engine = self._by_engine or self.observes_model(event.engine.model)

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
        elif event.report is not None and event.report.stepped:
            self.after_step(engine.optimizer, engine.masters(), gradients)
        elif event.report is not None:
            self.skipped(engine.optimizer, gradients, event.report.why)

    def before_unscale(self, event: UnscaleBegins) -> None:
        """Compare gradients that are still scaled with those of the backward pass."""
        optimizer = event.optimizer
        if not self.observes_optimizer(optimizer):
            return
        if self._sample is None or id(optimizer) in self.stepped:
            return
        norms = self._sample.norms
        scale = self._scale_now()
        held = {
            n: p.grad
            for n, p in self._held_by(optimizer).items()
            if p.grad is not None and n in norms
        }
        left = math.hypot(*(norms[n] for n in held)) * scale
        now = length(held.values())
        if scale != 1 and math.isfinite(left) and now < 0.999 * left:
            says = (
                f"while {scale:g} times too large, they were shortened from {left:.3g} to "
                f"{now:.3g}; unscale_ first"
            )
            self._note_line("step")
            line = self._sample.lines.get("clip", self._sample.lines.get("step", ""))
            self._log.add_finding(finding(Kind.CLIPPED_WHILE_SCALED, "", self.step, says, line))

    def before_step(self, optimizer: Any, weights: dict[str, Tensor], gradients: Gradients) -> None:
        self.step_begins(optimizer)
        if self._sample is not None:
            self._note_line("step")
            if self._by_engine:
                self._sample.forget_gradients()
            observed = self._sample.kept
            self._sample.kept = None
            if observed is not None:
                with self._log.replaying("comparison with FP32"):
                    at = self._scale_now(), self.step
                    beside = against_fp32(
                        self.model, self._calls, *at, observed, gradients, self._loss
                    )
                    if self._losses_are_zero:
                        beside = replace(beside, arrived=(0, 0))
                    self._log.against_fp32.append(beside)
            self._sample.before_step_sample(self._parameters, weights, gradients)
            self._log.record_checksums(weights)
        counted = (
            self._sample.counts["weight gradients"].values() if self._sample is not None else ()
        )
        if not self.scaled and (self._sample is None or any(h.non_finite for h in counted)):
            self._find_source(gradients)

    def after_step(self, optimizer: Any, weights: dict[str, Tensor], gradients: Gradients) -> None:
        self.stepping = False
        self.stepped.add(id(optimizer))
        if self._sample is None or not self._sample.before:
            return
        if self._recorder is not None:
            with reporting(self.failed, "recording the settings of an optimizer"):
                self._recorder.observe_optimizer(optimizer)
        self._sample.after_step_sample(weights, gradients)
        self._log.record_moves(self._sample)
        self._log.narrow |= {
            name
            for name, weight in weights.items()
            if weight.itemsize <= 2 or self._parameters[name].itemsize <= 2
        }
        self._sample.measure(self._parameters.values(), weights.values(), optimizer)
        if len(self._log.dominated) < EPSILON_SAMPLES:
            self._log.dominated.append(dominating_epsilon(optimizer))
        for found in state_faults(
            optimizer, weights, self.step, self._sample.lines.get("step", "")
        ):
            self._log.add_finding(found)

    def skipped(self, optimizer: Any, gradients: Gradients, why: str = "") -> None:
        """Record a step that was not taken, and the parameters with inf or NaN."""
        self.stepping = False
        self.stepped.add(id(optimizer))
        culprits = tuple(name for name, g in gradients.items() if g is not None and not finite(g))
        shown = ", ".join(culprits[:3]) or "a gradient"
        if len(culprits) > 3:
            shown += f" and {len(culprits) - 3} more"
        why = why or f"inf or NaN in {shown}"
        self._log.skips.append(Skip(self.step, self._scale_now(), culprits, why))
        self._find_source(gradients)

    def _find_source(self, gradients: Gradients) -> None:
        """Replay the step unchanged, and record the source of its inf or NaN."""
        if self.step < self.first or len(self._log.non_finite) >= MOST_REPLAYED:
            return
        with self._log.replaying("source of inf or NaN"):
            found = culprit(self.model, self._calls, self._scale_now(), self.step)
            if found is None:
                bad = next((n for n, g in gradients.items() if g is not None and not finite(g)), "")
                self._log.add_unseen(
                    f"source of inf or NaN in {bad}: it did not appear in the replay"
                )
            else:
                self._log.non_finite.append(found)


def _unscaled_gradients(optimizer: Any, held: dict[str, Tensor]) -> Gradients:
    """Return the unscaled gradients of a step; a fused optimizer unscales them inside the step."""
    scale = getattr(optimizer, "grad_scale", None)
    return {
        n: p.grad if scale is None or p.grad is None else p.grad / scale for n, p in held.items()
    }
