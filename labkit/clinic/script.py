"""Diagnosis of an unchanged training script: `labkit diagnose train.py --its --arguments`.

Idea: the script runs as Python would run it, until it has done a few steps. At a backward pass, the diagnosis finds the
model whose parameters the loss depends on.

Invariant: the script runs no further than the steps that were requested.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor, nn

import labkit.frameworks  # noqa: F401  # registers its scalers as sources
from labkit.clinic.constants import Constant, constants_in, constants_of
from labkit.clinic.diagnose import Diagnosis
from labkit.clinic.events import observe_training
from labkit.faults import explain
from labkit.instrument import Report
from labkit.instrument.guard import guarded
from labkit.instrument.script import model_of, run_as_main
from labkit.instrument.user_code import line_of_error, line_of_user


class StepLimit(SystemExit):
    """The requested number of steps is done; ends the script."""


class ScriptDiagnosis(Diagnosis):
    """Diagnosis of a script, which finds the models that it trains and where its steps begin."""

    def __init__(self, limit: int, constants: list[Constant]) -> None:
        super().__init__(constants)
        self.limit = limit

    def before_module(self, module: nn.Module, args: Any) -> None:
        if self.stepped and line_of_user(sys._getframe(1)) is not None:
            self.forward_begins()
        super().before_module(module, args)

    def next_step(self) -> None:
        """Begin the next step, or end the script at the limit."""
        self.stepped = set()
        guarded(self.finish_step, self.failed)()
        self.step += 1
        if self.steps >= self.limit:
            raise StepLimit

    def backward_begins(self, root: Tensor) -> None:
        super().backward_begins(root)
        if self.step < 2:
            model = model_of(leaves(root))
            if model is not None and all(model is not known for known, _ in self.models.values()):
                self.add_model(model, self.limit)
                self.constants += [c for c in constants_of(leaves, model) if c not in self.constants]


def leaves(root: Tensor) -> list[Tensor]:
    """Return the leaf tensors that a tensor's gradient flows to.

    >>> import torch
    >>> a, b = torch.ones(2, requires_grad=True), torch.ones(2)
    >>> [leaf is a for leaf in leaves((3 * a + b).sum())]
    [True]
    """
    todo, known, found = [root.grad_fn], set(), []
    while todo:
        node: Any = todo.pop()
        if node is None or node in known:
            continue
        known.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        todo += [following for following, _ in node.next_functions]
    return found


def diagnose_script(script: Path, arguments: list[str], steps: int = 20) -> Report:
    """Run a script for a number of steps, and report the faults of its training, the worst first.

    Raises:
        ValueError: there is no such script, steps is not positive, or the script ended without a step of an optimizer.
    """
    if not script.is_file():
        raise ValueError(f"there is no script at {script}")
    if steps < 1:
        raise ValueError(f"steps: expected 1 or more, got {steps}")
    constants: list[Constant] = []
    with suppress(SyntaxError):  # running the script raises it
        constants += constants_in(script.read_text(encoding="utf-8"), str(script))
    diagnosis, ended = ScriptDiagnosis(steps, constants), ""
    try:
        with diagnosis.watches, observe_training(diagnosis):
            run_as_main(script, arguments)
    except StepLimit:
        pass
    except SystemExit as end:
        ended = f" (exit status {end.code})" if end.code else ""
    except Exception as error:
        diagnosis.error = error
        ended = f": {type(error).__name__}: {error} ({line_of_error(error)})"
    if diagnosis.stepped:
        guarded(diagnosis.finish_step, diagnosis.failed)()
    if diagnosis.failures:
        return diagnosis.report()
    if not diagnosis.steps and not diagnosis.models and not (diagnosis.error and explain(str(diagnosis.error))):
        raise ValueError(f"{script} ended before a training step of torch{ended}")
    if not diagnosis.attempts and not diagnosis.error:
        raise ValueError(f"no torch optimizer stepped in {script}{ended}, so there is no training to diagnose")
    return diagnosis.report()
