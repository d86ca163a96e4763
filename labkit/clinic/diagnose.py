"""Diagnosis of a training loop or of an unchanged script, from a few of its own steps.

Idea: a diagnosis is a watch of the model, and an observer of every operation. Events of a step,
findings of the watch and checks of the model at the end each have a kind of
labkit.instrument.symptoms. That table says what a diagnosis can find, and which faults it claims to
find. A script (`labkit diagnose train.py --its --arguments`) runs as Python would run it, until it
has done the steps that were requested: at a backward pass, the diagnosis finds the model whose
parameters the loss depends on.

Invariant: nothing is reported as bad that these steps did not show.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from labkit.clinic.constants import Constant, constants_in, constants_of
from labkit.clinic.events import REENTRANT, TrainingObserver
from labkit.faults import FAULTS, explain
from labkit.faults.messages import DIAGNOSE, messages_in
from labkit.findings import Finding, Status
from labkit.gemm.half_storage import HALVES
from labkit.instrument import Report, Watch, watch
from labkit.instrument.causes import causes_first
from labkit.instrument.events import GradScalerLike, ModuleBegins, OptimizerBegins
from labkit.instrument.guard import guarded, reporting
from labkit.instrument.log import skips_in_a_row
from labkit.instrument.operations import Operations, in_backward
from labkit.instrument.sample import finite
from labkit.instrument.script import leaves, model_of, run_as_main
from labkit.instrument.sources import sources_of
from labkit.instrument.stream import STREAM
from labkit.instrument.symptoms import SYMPTOMS, Kind, finding
from labkit.instrument.user_code import is_library, line_of_error, line_of_user

# `watch` counts and replays in FP32 this many of the first FEW_STEPS steps.
SAMPLES = 5
FEW_STEPS = 20
MOST_PHASES = 3  # of a script that trains with one optimizer after another
NOTES = 8  # constants in the source, at most
NOT_LOOKED_AT = "The training was not affected; this part of the diagnosis is missing."
UNTIL_IT_IS_HALF = (
    "It did no harm. Where it meets a half tensor, choose it by `torch.finfo(x.dtype)`, or "
    "use FP32."
)


# Kinds of watch's findings that the diagnosis finds by itself: with the line of the operation, and
# of all optimizers.
BY_OPERATION = {
    Kind.FIRST_INF,
    Kind.FIRST_NAN,
    Kind.SCALE_TOO_HIGH,
    Kind.SCALE_FALLS,
    Kind.SCALE_DOES_NOT_FALL,
}
HARMLESS_IF_MASKED = {
    Kind.SOFTMAX_OF_A_MASKED_ROW,
    Kind.NOT_FINITE_IN_FP32,
    Kind.NOT_FINITE_IN_BACKWARD,
    Kind.NOT_FINITE_DERIVATIVE,
}

# faults that raise an error, which labkit.faults explains
RAISING = (
    "bce_on_probabilities",
    "first_steps_refused",
    "function_without_custom_fwd",
    "gradcheck_in_fp32",
    "half_weights_unscaled",
    "inference_tensors",
    "linear_algebra",
    "mask_constant",
    "no_gradients_this_turn",
    "recomputed_otherwise",
    "unscaled_twice",
)


def claims() -> dict[str, set[str]]:
    """Return fault -> the kinds of findings by which `diagnose` claims to find it.

    Faults that it cannot find are left out.

    >>> sorted(claims()["stale_cast"]), "average_in_bf16" in claims()
    (['a step inside autocast'], False)
    """
    by: dict[str, tuple[str, ...]] = {kind.value: row.faults for kind, row in SYMPTOMS.items()}
    by["exception"] = RAISING
    claimed = {name: {kind for kind, names in by.items() if name in names} for name in FAULTS}
    return {name: kinds for name, kinds in claimed.items() if kinds}


def diagnose(
    step: Callable[[Any], Any],
    model: nn.Module | None,
    optimizer: torch.optim.Optimizer | None,
    scaler: GradScalerLike | None = None,
    batches: Iterable[Any] = (),
    steps: int = 20,
) -> Report:
    """Run a few steps of a training, and report its faults, the worst first.

    The steps are real: afterwards model, optimizer, scaler and random state are as these steps
    leave them, as without the diagnosis. To keep the originals, pass copies.

    Args:
        step: runs one step on one batch: forward, backward, optimizer and scaler. Its result is
            ignored.
        model: the trained model; None observes the operations only.
        optimizer: the one that should train the model; others that step are observed as well.
        scaler: one with the methods of torch.amp.GradScaler that is not derived from it. torch's
            own is found.
        batches: the arguments of `step`, one after another.
        steps: how many to run at most.

    Raises:
        TypeError: step cannot be called, or model is not a torch.nn.Module.
        ValueError: batches is empty, steps is not positive, or the model has no parameters.
    """
    _check(step, model, steps)
    diagnosis = Diagnosis(constants_of(step, model))
    if optimizer is not None:
        diagnosis.optimizers[id(optimizer)] = optimizer
    with diagnosis.observing(scaler):
        if model is not None:
            diagnosis.roots.append(model)
            diagnosis.add_model(model, steps, scaler)
        for diagnosis.step, batch in zip(range(steps), batches, strict=False):
            try:
                step(batch)
            except Exception as raised:
                diagnosis.error = raised
                break
            guarded(diagnosis.finish_step, diagnosis.failed)()
    if not (diagnosis.error or diagnosis.steps):
        raise ValueError("batches is empty, so no step was run; pass the arguments of a few steps")
    return diagnosis.report()


def diagnose_script(script: Path, arguments: list[str], steps: int = 100) -> Report:
    """Run a script for a number of steps, and report the faults of its training, the worst first.

    A script that does not train gets what its forward passes showed.

    Raises:
        NothingObserved: the script ended before a training step or a forward pass.
        ValueError: the script does not exist, or steps is not positive.
    """
    if script.is_dir():
        raise ValueError(f"expected a script, got the folder {script}")
    if not script.is_file():
        raise ValueError(f"there is no script at {script}")
    if steps < 1:
        raise ValueError(f"steps: expected 1 or more, got {steps}")
    constants: list[Constant] = []
    with suppress(SyntaxError):  # running the script raises it
        constants += constants_in(script.read_text(encoding="utf-8"), str(script))
    diagnosis = ScriptDiagnosis(steps, constants)
    ended = ""
    tracing = sys.gettrace()
    try:
        with diagnosis.observing():
            run_as_main(script, arguments)
    except StepLimit:
        pass
    except SystemExit as end:
        ended = f" (exit status {end.code})" if end.code else ""
        # sys.exit("a message") is how some scripts report an error of a framework
        if isinstance(end.code, str) and _is_known(end):
            diagnosis.error = end
    except Exception as error:
        diagnosis.error = error
        ended = f": {type(error).__name__}: {error} ({line_of_error(error)})"
    finally:
        sys.settrace(tracing)  # see _raise_in_handlers
    if diagnosis.stepped and diagnosis.steps < steps:
        guarded(diagnosis.finish_step, diagnosis.failed)()
    if diagnosis.failures:
        return diagnosis.report()
    known = diagnosis.error is not None and _is_known(diagnosis.error)
    if known or diagnosis.attempts or diagnosis.events:
        return diagnosis.report()
    if diagnosis.error is not None and (diagnosis.steps or diagnosis.models):
        return diagnosis.report()
    if diagnosis.error is not None or not diagnosis.forward_passes:
        raise NothingObserved(f"{script} ended before a training step of torch{ended}")
    return diagnosis.report()


class NothingObserved(ValueError):
    """A script ended before there was anything to diagnose."""


def _check(step: Any, model: Any, steps: Any) -> None:
    if not callable(step):
        raise TypeError(
            f"step: expected a function that runs one step on a batch, got {type(step).__name__}"
        )
    if model is not None and not isinstance(model, nn.Module):
        raise TypeError(f"model: expected a torch.nn.Module or None, got {type(model).__name__}")
    if not (isinstance(steps, int) and steps > 0):
        raise ValueError(f"steps: expected a positive integer, got {steps!r}")


class Diagnosis(TrainingObserver):
    """Events of a diagnosis so far, and the models as they were before the first step."""

    def __init__(self, constants: list[Constant]) -> None:
        super().__init__()
        self.constants = constants
        self.steps = 0
        self.error: BaseException | None = None
        self.watches = ExitStack()
        # prefix of its parameter names -> model
        self.models: dict[str, tuple[nn.Module, Watch]] = {}
        # whole models, of which parts may be watched
        self.roots: list[nn.Module] = []
        self.parameters: dict[str, Tensor] = {}
        self.before: dict[str, Tensor] = {}
        self.with_gradient: set[str] = set()
        self.finite_buffers: set[str] = set()

    @contextmanager
    def observing(self, scaler: GradScalerLike | None = None) -> Iterator[None]:
        """Observe all events until the block ends; `scaler` is one whose class no source knows."""
        subscribed = STREAM.subscribed(self, *sources_of(scaler))
        with self.watches, subscribed, Operations(self.look, self.failed):
            yield

    def add_model(
        self,
        model: nn.Module,
        steps: int,
        scaler: GradScalerLike | None = None,
        *,
        during_step: bool = False,
        name: str = "",
    ) -> None:
        """Watch a model from now on, for about `steps` steps.

        `during_step` means that it was called in this step already; `name` is that of a part of a
        model.
        """
        prefix = f"{name}." if name else ""
        every = max(1, min(steps, FEW_STEPS) // SAMPLES)
        if prefix in self.models:
            prefix = f"{type(model).__name__}.{prefix}"
        watching = watch(model, every, scaler=scaler, against_fp32_every=every)
        if during_step:
            self.watches.push(watching.open_during_step())
        else:
            self.watches.enter_context(watching)
        self.models[prefix] = model, watching
        # a script's model is found in its first backward pass, after the loss was scaled
        if self.scaled:
            watching.scaled_by(self._scale)
        mine = {prefix + n: p for n, p in model.named_parameters() if p.requires_grad}
        self.parameters |= mine
        self.before |= {n: p.detach().clone() for n, p in mine.items()}
        self.finite_buffers |= {n for n, b in self._buffers(prefix) if finite(b)}
        self.modules.add_names(model, unnamed=name or None, prefix=prefix)

    def _buffers(self, prefix: str) -> Iterator[tuple[str, Tensor]]:
        model, _ = self.models[prefix]
        yield from ((prefix + n, b) for n, b in model.named_buffers() if b.is_floating_point())

    def finish_step(self) -> None:
        """Check gradients and buffers after a step."""
        self.steps += 1
        with reporting(self.failed, "checking gradients and buffers after a step"):
            self._after_step()
        with reporting(self.failed, "ending a step"):
            self.end_step()

    def _after_step(self) -> None:
        self.with_gradient |= {n for n, p in self.parameters.items() if p.grad is not None}
        for name, buffer in (pair for prefix in self.models for pair in self._buffers(prefix)):
            if name in self.finite_buffers and not finite(buffer):
                self.finite_buffers.remove(name)
                seen = f"the buffer {name} holds inf or NaN from this step on"
                self.events.append(finding(Kind.BUFFER, name.rpartition(".")[0], self.step, seen))

    def report(self) -> Report:
        """Return all findings, the worst first."""
        events = list(self.events)
        with reporting(self.failed, "checking the model at the end"):
            events += self._final_checks()
        with reporting(self.failed, "reading the findings of watch"):
            events += self._watch_findings()
        events = causes_first(self._repeated(_at_the_clip(events)))
        found = [
            *([_exception_finding(self.error)] if self.error else []),
            *events,
        ]
        found += self._notes({each.line for each in found})
        found += [*self._failures(), self._summary()]
        # a cause comes first
        found.sort(key=lambda each: (list(reversed(Status)).index(each.status), each.step or 0))
        watched = next(
            (watch.report() for _, watch in self.models.values()),
            Report(model="", steps=self.steps),
        )
        return replace(
            watched,
            steps=self.steps,
            findings=tuple(found),
            partial=self._not_looked_at(),
            half=self.ran_in_half,
        )

    def _not_looked_at(self) -> str:
        """Return why a main check is missing: the diagnosis failed, or the comparison with FP32."""
        if self._failures():
            return "a part of the diagnosis failed"
        # only FP16 without a loss scale loses gradients that no other check would miss
        if not self._in_fp16 or self.scaled or self._factor > 1 or not self.attempts:
            return ""
        reports = [watch.report() for _, watch in self.models.values()]
        if any(report.against_fp32 for report in reports):
            return ""
        why = next((u for report in reports for u in report.unseen if "FP32" in u), "")
        return why.partition(" (first in step")[0] or "no step could be compared with FP32"

    def _repeated(self, events: list[Finding]) -> Iterator[Finding]:
        """Yield the first finding of each kind, with how often it occurred."""
        for kind, symptom in SYMPTOMS.items():
            mine = [e for e in events if e.name == kind and self._is_harmful(e)]
            if kind is Kind.CONSTANT:
                # a fault that it led to names it
                mine = [e for e in mine if not any(e.line in what for what in self.blamed)]
            steps = sorted({e.step for e in mine if e.step is not None})
            if len(steps) < symptom.least:
                continue
            often = f"first in step {steps[0]}"
            if len(steps) > 1:
                often += f", in {len(steps)} steps of {max(self.steps, len(steps))}"
            places = list(dict.fromkeys(event.where for event in mine))[1:]
            if places:
                often += f"; also at {'; '.join(places)}"
            found = replace(mine[0], what=f"{mine[0].what} ({often})")
            if kind is Kind.NOT_FINITE_IN_FP32 and not self.lossless.isdisjoint(steps):
                found = replace(
                    found, status=Status.BAD, what=f"{found.what}; the loss is inf or NaN"
                )
            yield found

    def _notes(self, reported: set[str]) -> list[Finding]:
        """Return the constants that FP16 cannot hold, and that did no harm in these steps."""
        reported = reported | {event.line for event in self.events if event.name == Kind.CONSTANT}
        mine = [constant for constant in self.constants if constant.where not in reported]
        shown = [constant.says for constant in mine[:NOTES]]
        if len(mine) > NOTES:
            shown[-1] += f"; and {len(mine) - NOTES} more"
        return [
            Finding(
                "in the source",
                Status.OK,
                says,
                UNTIL_IT_IS_HALF,
                each.where,
                faults=("log_of_epsilon",) if abs(each.value) < 1 else ("mask_constant",),
            )
            for each, says in zip(mine, shown, strict=False)
        ]

    def _is_harmful(self, event: Finding) -> bool:
        """Return whether an event does harm.

        It does none if it was masked, or if a scaler only searches for its scale.
        """
        if event.name not in HARMLESS_IF_MASKED:
            return True
        # a derivative of a loss that is not finite itself
        if event.step in self.lossless and event.name == Kind.NOT_FINITE_DERIVATIVE:
            return False
        # the backward pass of a gradient penalty may make it so, at a scale that the scaler lowers
        if event.step in self.lossless and event.name != Kind.NOT_FINITE_IN_BACKWARD:
            return True
        attempts = [a for a in self.attempts if a.step == event.step]
        spoilt = any(e.name == Kind.STEP_NOT_FINITE and e.step == event.step for e in self.events)
        in_a_row = self._skips_in_a_row()
        of_backward = event.name == Kind.NOT_FINITE_IN_BACKWARD
        by_scale = of_backward and (in_a_row is None or in_a_row.name != Kind.SCALE_FALLS)
        if not attempts:
            # a script with a scaler that leaves out the step by itself
            return not (by_scale and self.scaled and bool(self.attempts))
        return spoilt or (not by_scale and not all(a.taken for a in attempts))

    def _skips_in_a_row(self) -> Finding | None:
        """Return the finding for the steps that were skipped at the end."""
        skipped = next(
            (n for n, a in enumerate(reversed(self.attempts)) if a.taken), len(self.attempts)
        )
        scales = [attempt.scale for attempt in self.attempts[len(self.attempts) - skipped :]]
        return skips_in_a_row(scales, self.step, never_taken=skipped == len(self.attempts))

    def _summary(self) -> Finding:
        attempts = self.attempts
        skips = [a for a in attempts if not a.taken]
        taken = f"{len(attempts) - len(skips)} optimizer steps were taken and {len(skips)} skipped"
        if skips and self._skips_in_a_row() is None:
            taken += ": that is how a scaler finds its scale"
        return Finding("steps", Status.OK, f"{self.steps} steps were run; {taken}")

    def _failures(self) -> list[Finding]:
        """Return what failed in the diagnosis itself."""
        observers = (self, *(watch for _, watch in self.models.values()))
        failures = [failure for observer in observers for failure in observer.failures.values()]
        return [Finding("not looked at", Status.WARN, what, NOT_LOOKED_AT) for what in failures]

    def _final_checks(self) -> Iterator[Finding]:
        last = self.step
        if (in_a_row := self._skips_in_a_row()) is not None:
            yield in_a_row
        held = {id(p) for p in self.optimized_parameters()}
        orphans = [n for n in self.with_gradient if id(self.parameters[n]) not in held]
        still = [n for n in orphans if torch.equal(self.parameters[n].detach(), self.before[n])]
        moved = any(attempt.taken for attempt in self.attempts)
        if moved and held and still and len(orphans) == len(self.with_gradient):
            seen = (
                f"{len(still)} of {len(self.parameters)} parameters got gradients, and no "
                "optimizer holds them"
            )
            yield finding(Kind.OPTIMIZER_HOLDS_OTHER_PARAMETERS, sorted(still)[0], last, seen)
        elif moved and held and still:
            names = sorted(still)
            shown = ", ".join(names[:4])
            seen = (
                f"{len(names)} parameters get gradients, never move, and are in no optimizer: "
                f"{shown}"
            )
            yield finding(Kind.IN_NO_OPTIMIZER, names[0], last, seen)
        yield from self._without_gradient(held)
        half = [n for n, p in self.parameters.items() if p.dtype in HALVES and id(p) in held]
        if half:
            seen = (
                f"{len(half)} of {len(self.parameters)} trained parameters are "
                f"{self.parameters[half[0]].dtype}"
            )
            yield finding(Kind.TRAINABLE_WEIGHTS_IN_HALF, half[0], 0, seen)

    def _others_arrived(self) -> bool:
        """Return whether several models are watched, and each step had gradients other than 0."""
        cut_off = any(event.name == Kind.ALL_GRADIENTS_ARE_ZERO for event in self.events)
        return len(self.models) > 1 and not cut_off

    def _without_gradient(self, held: set[int]) -> Iterator[Finding]:
        """Yield the finding for an optimizer's parameters whose modules never recorded."""
        if not any(attempt.taken for attempt in self.attempts):
            return
        missing: list[str] = []
        for model in self.roots:
            for name, module in model.named_modules():
                why = self.unrecorded.get(id(module))
                if why != REENTRANT or id(module) in self.recorded:
                    continue
                for own, parameter in module.named_parameters(recurse=False):
                    if id(parameter) in held and id(parameter) not in self.parts.reached:
                        missing.append(f"{name}.{own}" if name else own)
        if missing:
            seen = (
                f"{len(missing)} of {len(held)} trained parameters got no gradient in any "
                f"step, since they run in {REENTRANT}: {', '.join(missing[:4])}"
            )
            yield finding(Kind.NEVER_A_GRADIENT, missing[0], 0, seen)

    def _watch_findings(self) -> Iterator[Finding]:
        findings = (
            (prefix, f)
            for prefix, (_, watch) in self.models.items()
            for f in watch.every_finding().findings
        )
        for prefix, found in findings:
            if found.name == Kind.UNDERFLOW and not found.layer and self._others_arrived():
                # a part of the model that a loss leaves out, or multiplies by 0
                continue
            if found.name not in BY_OPERATION:
                layer = prefix + found.layer if found.layer else ""
                yield replace(found, layer=layer)


class StepLimit(SystemExit):
    """The requested number of steps is done; ends the script."""


class ScriptDiagnosis(Diagnosis):
    """Diagnosis of a script, which finds the models that it trains and where its steps begin."""

    def __init__(self, limit: int, constants: list[Constant]) -> None:
        super().__init__(constants)
        self.limit = limit
        self.backward_passes = 0
        self._steps_of_a_phase = limit
        self._phases = 1
        self._seen_leaves: set[int] = set()  # of earlier backward passes
        self.forward_passes = 0  # of modules that no other module calls
        # modules that no other module calls and that record gradients
        self._called: dict[int, nn.Module] = {}

    def before_module(self, event: ModuleBegins) -> None:
        if self.stepped and line_of_user(sys._getframe(1)) is not None:
            self.forward_begins()
        if not self.modules.running and not self.stepping and not in_backward():
            self.forward_passes += 1
            if id(event.module) not in self.modules.names:
                self.modules.add_names(event.module)
            if torch.is_grad_enabled():
                self._called[id(event.module)] = event.module
        super().before_module(event)

    def before_optimizer(self, event: OptimizerBegins) -> None:
        is_new = id(event.optimizer) not in self.optimizers
        super().before_optimizer(event)
        # as of a fine-tuning after a training; a federated script makes one optimizer after another
        if is_new and self.step > 0 and self._phases < MOST_PHASES:
            self._phases += 1
            self.limit = self.step + self._steps_of_a_phase

    def _summary(self) -> Finding:
        if self.attempts or not self.forward_passes:
            return super()._summary()
        ran = f"{self.forward_passes} forward passes were run, and no optimizer stepped"
        return Finding("forward passes", Status.OK, ran)

    def next_step(self) -> None:
        """Begin the next step, or end the script at the limit."""
        # an `except:` of the script has caught the StepLimit before
        if self.steps >= self.limit:
            _raise_in_handlers()
            raise StepLimit
        self.stepped = set()
        guarded(self.finish_step, self.failed)()
        self.step += 1
        if self.steps >= self.limit:
            # not empty: whatever begins now is the next step
            self.stepped = {0}
            raise StepLimit

    def _final_checks(self) -> Iterator[Finding]:
        yield from super()._final_checks()
        bad = [
            name for name, p in self.parameters.items() if p.grad is not None and not finite(p.grad)
        ]
        if not self.attempts and bad and self.error is None and self._factor > 1:
            seen = (
                f"no optimizer stepped, and after the last of {self.backward_passes} "
                f"backward passes the gradients of {bad[0]} hold inf or NaN, at a scale "
                f"of {self._factor:g}"
            )
            yield finding(Kind.NO_STEP_TAKEN, "", 0, seen)

    def backward_begins(self, root: Tensor) -> None:
        super().backward_begins(root)
        self.backward_passes += 1
        reached = leaves(root)
        if self.step < 2 or not any(id(leaf) in self._seen_leaves for leaf in reached):
            model = model_of(reached)
            if model is not None:
                self._watch_called(model)
        self._seen_leaves |= {id(leaf) for leaf in reached}

    def _watch_called(self, model: nn.Module) -> None:
        """Watch a model, or those of its parts that the script calls instead of it."""
        parts = {name: m for name, m in model.named_modules() if id(m) in self._called}
        if "" in parts or not parts:
            parts = {"": model}
        if all(model is not root for root in self.roots):
            self.roots.append(model)
        known = [watched for watched, _ in self.models.values()]
        for name, part in parts.items():
            within = any(part is m for watched in known for m in watched.modules())
            if within or next(part.parameters(), None) is None:
                continue
            self.add_model(part, self.limit, during_step=True, name=name)
            self.constants += [c for c in constants_of(leaves, part) if c not in self.constants]
            known.append(part)


def _raise_in_handlers() -> None:
    """Raise StepLimit once more, at the next line of the user's code.

    That line is in the `except:` that catches the StepLimit that is raised now.
    """

    def raise_at_line(_: Any, event: str, __: Any) -> Any:
        if event == "line":
            raise StepLimit  # Python removes the function that raises
        return raise_at_line

    standard_library = str(Path(traceback.__file__).parent)
    for frame, _ in traceback.walk_stack(None):
        # the frames below belong to the lab, which has to report
        if frame.f_code is run_as_main.__code__:
            break
        file = frame.f_code.co_filename
        if not is_library(file) and not file.startswith(standard_library):
            frame.f_trace = raise_at_line
    sys.settrace(lambda *_: None)  # no other frame is traced


def _at_the_clip(events: list[Finding]) -> list[Finding]:
    """Move the finding of scaled clipping from the step that noticed it to the line that clips.

    Clipping reads the norm of scaled gradients, and is the last to do so before the step.
    """
    reads = [event for event in events if event.name == Kind.GRADIENTS_READ_WHILE_SCALED]
    if not reads or all(event.name != Kind.CLIPPED_WHILE_SCALED for event in events):
        return events
    clip = [event for event in reads if event.step == reads[0].step][-1].line
    moved = (
        replace(event, line=clip) if event.name == Kind.CLIPPED_WHILE_SCALED else event
        for event in events
    )
    return [event for event in moved if event not in reads or event.line != clip]


def _text_of(error: BaseException) -> str:
    """Return the text of an error, and of the errors that it was raised from."""
    texts: list[str] = []
    each: BaseException | None = error
    while each is not None and len(texts) < 10:
        texts.append(str(each))
        each = each.__cause__
    return "\n".join(texts)


def _is_known(error: BaseException) -> bool:
    """Return whether a fault or a list of messages explains an error."""
    return bool(explain(_text_of(error)) or messages_in(_text_of(error)))


def _exception_finding(error: BaseException) -> Finding:
    """Return the finding for an exception that ended the steps."""
    text = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
    known = explain(_text_of(error))
    messages = messages_in(_text_of(error))
    remedy = "No known fault has this message. A step has to finish before it can be examined."
    if known:
        remedy = known[0].repair
    elif messages:
        # not the advice to run what is running
        remedy = messages[0].next.replace(DIAGNOSE, "").strip() or messages[0].means
    if messages and messages[0].causes:
        count = len(messages[0].causes)
        remedy += f" `labkit explain` tells its {count} causes apart."
    return Finding(
        "exception",
        Status.BAD,
        text,
        remedy,
        line_of_error(error),
        faults=tuple(p.id for p in known),
    )
