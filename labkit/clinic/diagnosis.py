"""Observations of a diagnosis, and the report that they become.

Idea: a diagnosis watches each model, and observes every operation. Events of a step, findings of
the watch and checks of the model at the end each have a kind of labkit.instrument.symptoms. The
report names each kind once, with the first step in which it occurred.

Invariant: nothing is reported as bad that these steps did not show.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from labkit.clinic.constants import Constant
from labkit.clinic.events import REENTRANT, TrainingObserver
from labkit.faults import explain
from labkit.faults.messages import DIAGNOSE, messages_in
from labkit.findings import Finding, Status, counted
from labkit.gemm.half_storage import HALVES
from labkit.instrument import Report, Watch, watch
from labkit.instrument.causes import causes_first
from labkit.instrument.events import GradScalerLike
from labkit.instrument.guard import reporting
from labkit.instrument.log import skips_in_a_row
from labkit.instrument.operations import Operations
from labkit.instrument.sample import finite
from labkit.instrument.sources import sources_of
from labkit.instrument.stream import STREAM
from labkit.instrument.symptoms import SYMPTOMS, Kind, finding
from labkit.instrument.user_code import line_of_error

# `watch` counts and replays in FP32 this many of the first FEW_STEPS steps.
SAMPLES = 5
FEW_STEPS = 20
# how many causes of an error are followed, one from another
MOST_CAUSES = 9
# constants in the source that a report lists at most
NOTES = 8
NOT_LOOKED_AT = "The training was not affected; this part of the diagnosis is missing."
UNTIL_IT_IS_HALF = (
    "It did no harm. Where it meets a half tensor, choose it by `torch.finfo(x.dtype)`, or "
    "use FP32."
)


# Kinds that watch and the diagnosis both find. Those of the diagnosis are reported: they have the
# line of the operation, and cover all optimizers.
BY_OPERATION = {
    Kind.FIRST_INF,
    Kind.FIRST_NAN,
    Kind.SCALE_TOO_HIGH,
    Kind.SCALE_FALLS,
    Kind.SCALE_DOES_NOT_FALL,
}
# Kinds that `_is_harmful` judges by the rest of their step.
HARMLESS_IF_MASKED = {
    Kind.SOFTMAX_OF_A_MASKED_ROW,
    Kind.NOT_FINITE_IN_FP32,
    Kind.NOT_FINITE_IN_BACKWARD,
    Kind.NOT_FINITE_DERIVATIVE,
}


class Diagnosis(TrainingObserver):
    """Events of a diagnosis so far, and the models as they were before the first step."""

    def __init__(self, constants: list[Constant]) -> None:
        super().__init__()
        self.constants = constants
        self.steps = 0
        self.error: BaseException | None = None
        self.watches = ExitStack()
        # prefix of its parameter names -> a model, and its watch
        self.models: dict[str, tuple[nn.Module, Watch]] = {}
        # whole models, of which parts may be watched
        self.roots: list[nn.Module] = []
        self.parameters: dict[str, Tensor] = {}
        self.before: dict[str, Tensor] = {}
        self.with_gradient: set[str] = set()
        self.finite_buffers: set[str] = set()

    @contextmanager
    def observing(self, scaler: GradScalerLike | None = None) -> Iterator[None]:
        """Observe all events until the block ends.

        Args:
            scaler: a scaler that is not derived from torch's, whose calls are observed as well.
        """
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
        """Watch a model from now on.

        Args:
            model: the model.
            steps: how many steps are expected; some of them are compared with FP32.
            scaler: a scaler that is not derived from torch's.
            during_step: whether the model was called in this step already.
            name: the name in the whole model, if this is a part of one.
        """
        prefix = f"{name}." if name else ""
        every = max(1, min(steps, FEW_STEPS) // SAMPLES)
        # a second model has its class in its names, and further ones of that class a number, too
        class_name = type(model).__name__
        own_prefix = prefix
        count = 1
        while prefix in self.models:
            number = f"_{count}" if count > 1 else ""
            prefix = f"{class_name}{number}.{own_prefix}"
            count += 1
        watching = watch(model, every, scaler=scaler, against_fp32_every=every)
        if during_step:
            self.watches.push(watching.open_during_step(in_closure=self.stepping))
        else:
            self.watches.enter_context(watching)
        self.models[prefix] = model, watching
        # a script's model is found in its first backward pass, after the loss was scaled
        if self.scaled:
            watching.scaled_by(self._scale)
        for own_name, parameter in model.named_parameters():
            if parameter.requires_grad:
                self.parameters[prefix + own_name] = parameter
                self.before[prefix + own_name] = parameter.detach().clone()
        for full_name, buffer in self._buffers(prefix):
            if finite(buffer):
                self.finite_buffers.add(full_name)
        self.modules.add_names(model, unnamed=name or None, prefix=prefix)

    def _buffers(self, prefix: str) -> Iterator[tuple[str, Tensor]]:
        """Yield the floating-point buffers of a model, with their names in the report."""
        model, _ = self.models[prefix]
        for name, buffer in model.named_buffers():
            if buffer.is_floating_point():
                yield prefix + name, buffer

    def finish_step(self) -> None:
        """Check gradients and buffers after a step."""
        self.steps += 1
        with reporting(self.failed, "checking gradients and buffers after a step"):
            self._after_step()
        with reporting(self.failed, "ending a step"):
            self.end_step()

    def _after_step(self) -> None:
        for name, parameter in self.parameters.items():
            if parameter.grad is not None:
                self.with_gradient.add(name)
        for prefix in self.models:
            for name, buffer in self._buffers(prefix):
                if name in self.finite_buffers and not finite(buffer):
                    self.finite_buffers.remove(name)
                    layer = name.rpartition(".")[0]
                    seen = f"the buffer {name} holds inf or NaN from this step on"
                    self.events.append(finding(Kind.BUFFER, layer, self.step, seen))

    def report(self) -> Report:
        """Return all findings, the worst first."""
        events = list(self.events)
        with reporting(self.failed, "checking the model at the end"):
            events += self._final_checks()
        with reporting(self.failed, "reading the findings of watch"):
            events += self._watch_findings()
        findings: list[Finding] = []
        if self.error is not None:
            findings.append(_exception_finding(self.error))
        findings += causes_first(self._first_of_each_kind(_at_the_clip(events)))
        findings += self._notes({each.line for each in findings})
        findings += self._failures()
        findings.append(self._summary())
        # The worst status first, then the earliest step. The sort is stable, so that a cause stays
        # before its effects.
        worst_first = list(reversed(Status))
        findings.sort(key=lambda each: (worst_first.index(each.status), each.step or 0))
        # the report has the measurements of the first model
        measured = Report(model="", steps=self.steps)
        for _, watching in self.models.values():
            measured = watching.report()
            break
        return replace(
            measured,
            steps=self.steps,
            findings=tuple(findings),
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
        for report in reports:
            for why in report.unseen:
                if "FP32" in why:
                    return why.partition(" (first in step")[0]
        return "no step could be compared with FP32"

    def _first_of_each_kind(self, events: list[Finding]) -> Iterator[Finding]:
        """Yield the first finding of each kind, with the number of steps in which it occurred."""
        for kind, symptom in SYMPTOMS.items():
            mine = [e for e in events if e.name == kind and self._is_harmful(e)]
            if kind is Kind.CONSTANT:
                # the finding of the fault that a constant caused names the constant already
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
            if kind is Kind.NOT_FINITE_IN_FP32 and not self.not_finite_losses.isdisjoint(steps):
                found = replace(
                    found, status=Status.BAD, what=f"{found.what}; the loss is inf or NaN"
                )
            yield found

    def _notes(self, reported: set[str]) -> list[Finding]:
        """Return the constants that FP16 cannot hold, and that did no harm in these steps."""
        reported = reported | {event.line for event in self.events if event.name == Kind.CONSTANT}
        harmless = [constant for constant in self.constants if constant.where not in reported]
        notes = []
        for constant in harmless[:NOTES]:
            fault = "log_of_epsilon" if abs(constant.value) < 1 else "mask_constant"
            note = Finding(
                "in the source",
                Status.OK,
                constant.says,
                UNTIL_IT_IS_HALF,
                constant.where,
                faults=(fault,),
            )
            notes.append(note)
        if len(harmless) > NOTES:
            more = f"{notes[-1].what}; and {len(harmless) - NOTES} more"
            notes[-1] = replace(notes[-1], what=more)
        return notes

    def _is_harmful(self, event: Finding) -> bool:
        """Return whether an event does harm.

        It does none if its inf or NaN was masked later in the step, or if the scaler is only
        searching for its scale.
        """
        if event.name not in HARMLESS_IF_MASKED:
            return True
        # the loss itself was inf or NaN, so its derivative follows from that
        if event.step in self.not_finite_losses and event.name == Kind.NOT_FINITE_DERIVATIVE:
            return False
        # With a gradient penalty, the loss may be inf because of a backward pass at a scale that
        # the scaler then lowers; so inf or NaN in a backward pass is judged below.
        if event.step in self.not_finite_losses and event.name != Kind.NOT_FINITE_IN_BACKWARD:
            return True
        attempts = [a for a in self.attempts if a.step == event.step]
        # an optimizer stepped with inf or NaN
        spoilt = any(e.name == Kind.STEP_NOT_FINITE and e.step == event.step for e in self.events)
        # a lower scale cures an overflow in a backward pass, unless the scale falls without end
        in_a_row = self._skips_in_a_row()
        scale_falls = in_a_row is not None and in_a_row.name == Kind.SCALE_FALLS
        by_scale = event.name == Kind.NOT_FINITE_IN_BACKWARD and not scale_falls
        if not attempts:
            # the script itself did not call the scaler's step
            left_out = self.scaled and bool(self.attempts)
            return not (by_scale and left_out)
        if spoilt:
            return True
        # if every step was taken with finite gradients, inf or NaN was masked
        skipped = any(not a.taken for a in attempts)
        return skipped and not by_scale

    def _skips_in_a_row(self) -> Finding | None:
        """Return the finding for the steps that were skipped at the end."""
        scales: list[float] = []
        for attempt in self.attempts:
            if attempt.taken:
                scales = []
            else:
                scales.append(attempt.scale)
        never_taken = len(scales) == len(self.attempts)
        return skips_in_a_row(scales, self.step, never_taken=never_taken)

    def _summary(self) -> Finding:
        attempts = self.attempts
        skips = [a for a in attempts if not a.taken]
        taken = f"{_steps_were(len(attempts) - len(skips), 'optimizer step')} taken"
        taken += f" and {len(skips)} skipped"
        if skips and self._skips_in_a_row() is None:
            taken += ": that is how a scaler finds its scale"
        return Finding("steps", Status.OK, f"{_steps_were(self.steps, 'step')} run; {taken}")

    def _failures(self) -> list[Finding]:
        """Return what failed in the diagnosis itself."""
        failures = list(self.failures.values())
        for _, watching in self.models.values():
            failures += watching.failures.values()
        return [Finding("not looked at", Status.WARN, what, NOT_LOOKED_AT) for what in failures]

    def _final_checks(self) -> Iterator[Finding]:
        """Yield findings about the model that only the state after the last step shows."""
        last = self.step
        in_a_row = self._skips_in_a_row()
        if in_a_row is not None:
            yield in_a_row
        held = {id(p) for p in self.optimized_parameters()}
        # parameters that got gradients, that no optimizer holds, and that have not moved
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
            what = "parameters get gradients, never move, and are"
            if len(names) == 1:
                what = "parameter gets gradients, never moves, and is"
            seen = f"{len(names)} {what} in no optimizer: {shown}"
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
        for prefix, (_, watching) in self.models.items():
            for found in watching.every_finding().findings:
                if found.name in BY_OPERATION:
                    continue
                if found.name == Kind.UNDERFLOW and not found.layer and self._others_arrived():
                    # a part of the model that a loss leaves out, or multiplies by 0
                    continue
                layer = prefix + found.layer if found.layer else ""
                yield replace(found, layer=layer)


def _steps_were(count: int, noun: str) -> str:
    """Return the beginning of a sentence about some steps, such as "2 steps were"."""
    return f"{counted(count, noun)} {'was' if count == 1 else 'were'}"


def _at_the_clip(events: list[Finding]) -> list[Finding]:
    """Give the findings of scaled clipping the line that clips, instead of the step's.

    Clipping reads the norm of scaled gradients, and is the last operation to do so before the step.
    The finding of that read says less than the one of the clipping, and is left out.
    """
    reads = [event for event in events if event.name == Kind.GRADIENTS_READ_WHILE_SCALED]
    if not reads or all(event.name != Kind.CLIPPED_WHILE_SCALED for event in events):
        return events
    in_first_step = [event for event in reads if event.step == reads[0].step]
    clip = in_first_step[-1].line
    moved = []
    for event in events:
        if event.name == Kind.CLIPPED_WHILE_SCALED:
            moved.append(replace(event, line=clip))
        elif event not in reads or event.line != clip:
            moved.append(event)
    return moved


def _text_of(error: BaseException) -> str:
    """Return the text of an error, and of the errors that it was raised from, up to `MOST_CAUSES`.

    Errors can name each other as their causes, in a circle.
    """
    texts: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(texts) <= MOST_CAUSES:
        texts.append(str(cause))
        cause = cause.__cause__
    return "\n".join(texts)


def is_known(error: BaseException) -> bool:
    """Return whether a fault or a row in the tables of messages explains an error."""
    return bool(explain(_text_of(error)) or messages_in(_text_of(error)))


def _exception_finding(error: BaseException) -> Finding:
    """Return the finding for an exception that ended the steps."""
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0] if lines else ''}"
    known = explain(_text_of(error))
    messages = messages_in(_text_of(error))
    remedy = "No known fault has this message. A step has to finish before it can be examined."
    if known:
        remedy = known[0].repair
    elif messages:
        # without the advice to run `labkit diagnose`, which is running
        remedy = messages[0].next.replace(DIAGNOSE, "").strip()
        if not remedy:
            remedy = messages[0].means
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
