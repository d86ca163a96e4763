"""Diagnosis of an unchanged script: the models that it trains, and its steps.

Idea: a script runs as Python would run it. At a backward pass, the diagnosis finds the model whose
parameters the loss depends on. A step begins at the first forward pass, backward pass or optimizer
after all optimizers have stepped. After the requested number of steps a `StepLimit` ends the
script.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from labkit.clinic.constants import Constant, constants_of
from labkit.clinic.diagnosis import Diagnosis
from labkit.findings import Finding, Status
from labkit.instrument.events import ModuleBegins, OptimizerBegins
from labkit.instrument.guard import guarded
from labkit.instrument.operations import in_backward
from labkit.instrument.sample import finite
from labkit.instrument.script import leaves, model_of, run_as_main
from labkit.instrument.symptoms import Kind, finding
from labkit.instrument.user_code import is_library, line_of_user

# models that a script trains one after another, each with a new optimizer
MOST_PHASES = 3
# what Python calls at the events of a frame; it returns the function for the next event, or None
TraceFunction = Callable[[FrameType, str, Any], Any]


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
        # ids of the leaves that earlier backward passes reached
        self._seen_leaves: set[int] = set()
        # number of forward passes of modules that no other module calls
        self.forward_passes = 0
        # id -> a module that no other module calls and that records gradients
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
        # A new optimizer begins a phase, such as a fine-tuning, which gets its own number of steps.
        # A federated script makes one optimizer after another, so the number of phases is limited.
        if is_new and self.step > 0 and self._phases < MOST_PHASES:
            self._phases += 1
            self.limit = self.step + self._steps_of_a_phase

    def _summary(self) -> Finding:
        if self.attempts or not self.forward_passes:
            return super()._summary()
        passes = "1 forward pass was run"
        if self.forward_passes > 1:
            passes = f"{self.forward_passes} forward passes were run"
        ran = f"{passes}, and no optimizer stepped"
        return Finding("forward passes", Status.OK, ran)

    def next_step(self) -> None:
        """Begin the next step, or end the script at the limit."""
        # an `except:` of the script has caught the StepLimit that ended the last step
        if self.steps >= self.limit:
            raise_in_handlers()
            raise StepLimit
        self.stepped = set()
        guarded(self.finish_step, self.failed)()
        self.step += 1
        if self.steps >= self.limit:
            # If the script catches the StepLimit and continues, its next event must begin a step
            # and so come here again. A step begins when `stepped` is not empty.
            self.stepped = {0}
            raise StepLimit

    def _final_checks(self) -> Iterator[Finding]:
        yield from super()._final_checks()
        if self.attempts or self.error is not None or self._factor <= 1:
            return
        bad = [
            name for name, p in self.parameters.items() if p.grad is not None and not finite(p.grad)
        ]
        if bad:
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
        # new models appear in the first two steps, or with a loss of unknown leaves
        if self.step < 2 or not any(id(leaf) in self._seen_leaves for leaf in reached):
            model = model_of(reached)
            if model is not None:
                self._watch_called(model)
        self._seen_leaves |= {id(leaf) for leaf in reached}

    def _watch_called(self, model: nn.Module) -> None:
        """Watch a model, or its parts if the script calls them rather than the model."""
        parts = {name: m for name, m in model.named_modules() if id(m) in self._called}
        if "" in parts or not parts:
            parts = {"": model}
        if all(model is not root for root in self.roots):
            self.roots.append(model)
        known = [watched for watched, _ in self.models.values()]
        for name, part in parts.items():
            within = any(part is m for watched in known for m in watched.modules())
            if within or not list(part.parameters()):
                continue
            self.add_model(part, self.limit, during_step=True, name=name)
            # a script has no step function; `leaves`, of the lab, has no constants to report
            for constant in constants_of(leaves, part):
                if constant not in self.constants:
                    self.constants.append(constant)
            known.append(part)


def raise_in_handlers() -> None:
    """Raise StepLimit once more, at the next line that runs in the user's code.

    That line is in the `except:` block that catches the StepLimit that the caller raises.
    """

    def raise_at_line(_: FrameType, event: str, __: object) -> TraceFunction | None:
        if event == "line":
            # Python removes a trace function that raises
            raise StepLimit
        return raise_at_line

    standard_library = str(Path(traceback.__file__).parent)
    for frame, _ in traceback.walk_stack(None):
        # the frames below belong to the lab, which has to report
        if frame.f_code is run_as_main.__code__:
            break
        file = frame.f_code.co_filename
        if not is_library(file) and not file.startswith(standard_library):
            frame.f_trace = raise_at_line
    # f_trace has an effect only while a global trace function is set; this one traces no new frame
    sys.settrace(lambda *_: None)
