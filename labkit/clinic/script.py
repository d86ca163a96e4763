"""Diagnosis of an unchanged training script: `labkit diagnose train.py --its --arguments`.

Idea: the script runs as Python would run it, until it has done a few steps. At a backward pass, the model is looked for
that holds the parameters which the loss depends on.

Invariant: no more of the script is run than is told.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn

import labkit.frameworks  # noqa: F401  # its scalers are heard
from labkit.clinic.constants import Constant, constants_in, constants_of
from labkit.clinic.diagnose import Diagnosis
from labkit.clinic.listen import line_of, listening, user_line
from labkit.faults import explain
from labkit.instrument.guard import guarded
from labkit.instrument.script import model_of, run_as_main
from labkit.machine.findings import Report


class Enough(SystemExit):
    """Ends a script that has done the steps that were asked for."""


class ScriptDiagnosis(Diagnosis):
    """The diagnosis of a script: which models it trains, and where each of its steps begins."""

    def __init__(self, wanted: int, constants: list[Constant]) -> None:
        super().__init__(constants)
        self.wanted = wanted

    def before_module(self, module: nn.Module, args: Any) -> None:
        if self.stepped and user_line(sys._getframe(1)) is not None:
            self.forward_begins()
        super().before_module(module, args)

    def next_step(self) -> None:
        """Begin the next step; end the script where it was not asked for."""
        self.stepped = set()
        guarded(self.finish_step, self.failed)()
        self.step += 1
        if self.steps >= self.wanted:
            raise Enough

    def before_backward(self, root: Tensor) -> None:
        super().before_backward(root)
        if self.step < 2:
            model = model_of(SimpleNamespace(param_groups=[{"params": leaves(root)}]))
            if model is not None and all(model is not known for known, _ in self.models.values()):
                self.look_at(model, self.wanted)
                self.constants += [c for c in constants_of(leaves, model) if c not in self.constants]


def leaves(root: Tensor) -> list[Tensor]:
    """Return the leaves that a tensor's gradient flows to.

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
    """Run a script until it has done so many steps, and say what is wrong with its training, the worst first.

    Raises:
        ValueError: there is no such script, steps is not positive, or the script ended without a step of an optimizer.
    """
    if not script.is_file():
        raise ValueError(f"there is no script at {script}")
    if steps < 1:
        raise ValueError(f"--steps is at least 1; it was given {steps}")
    constants: list[Constant] = []
    with suppress(SyntaxError):  # which running it tells of
        constants += constants_in(script.read_text(encoding="utf-8"), str(script))
    seen, ended = ScriptDiagnosis(steps, constants), ""
    try:
        with seen.watches, listening(seen):
            run_as_main(script, arguments)
    except Enough:
        pass
    except SystemExit as end:
        ended = f" (it left with exit status {end.code})" if end.code else ""
    except Exception as error:
        seen.error = error
        ended = f": {type(error).__name__}: {error} ({line_of(error)})"
    if seen.stepped:
        guarded(seen.finish_step, seen.failed)()
    if seen.failures:
        return seen.report()
    if not seen.steps and not seen.models and not (seen.error and explain(str(seen.error))):
        raise ValueError(f"{script} ended before any training step of torch was seen{ended}")
    if not seen.attempts and not seen.error:
        raise ValueError(f"no optimizer of torch stepped in {script}{ended}, so there is no training to look at")
    return seen.report()
