"""Runs of an unchanged training script under a watch: `labkit watch train.py --its --arguments`.

Idea: the script runs as Python would run it. At the first step of each optimizer, taken or skipped,
the outermost living module that holds its parameters is found, and watched from then on. `labkit
diagnose` runs a script alike.

Invariant: the script's output, files and exit status are its own.
"""

from __future__ import annotations

import gc
import runpy
import sys
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from labkit.instrument.events import OptimizerBegins, ScalerStepBegins
from labkit.instrument.guard import described, guarded, reporting
from labkit.instrument.ranks import group_of
from labkit.instrument.report import Report
from labkit.instrument.stream import STREAM, StepObserver
from labkit.instrument.taps import tap
from labkit.instrument.watch import Watch, watch

MOST_ATTEMPTS = 32  # forward passes in which optimizers are looked for
NO_MODULE = (
    "an optimizer whose parameters are in no module, as masters of one's own are: "
    "`labkit diagnose` finds the model by its loss, or use watch(model) in the script"
)


def watched(
    script: Path, arguments: list[str], every: int, record: Path | None = None
) -> tuple[int, list[Report]]:
    """Run a script under watch; return its exit status, and a report for each model.

    Args:
        script: a file.
        arguments: those of the script.
        every: sample one step in so many.
        record: file to record the training of the first model to; further models get a number
            behind its name.
    """
    watches = ScriptWatch(every, record)
    try:
        with ExitStack() as stack:
            stack.enter_context(STREAM.subscribed(watches))
            if record is not None:
                stack.enter_context(watches.opening_with_forward())
            status = run_script(script, arguments)
    finally:
        watches.close()
    return status, watches.reports(script.name)


def run_script(script: Path, arguments: list[str]) -> int:
    """Run a script as `python script arguments` would, and return its exit status."""
    try:
        run_as_main(script, arguments)
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:
        traceback.print_exc()
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


def run_as_main(script: Path, arguments: list[str]) -> None:
    """Run a script with the sys.argv and sys.path of `python script arguments`.

    Its exceptions are raised.
    """
    before = sys.argv
    path = list(sys.path)
    sys.argv = [str(script), *arguments]
    sys.path[0] = str(script.resolve().parent)
    try:
        runpy.run_path(str(script), run_name="__main__")
    finally:
        sys.argv = before
        sys.path[:] = path


class ScriptWatch(StepObserver):
    """A watch for each model, opened at the first step, or skipped step, of its optimizer.

    A training that is recorded is observed from its first forward pass on: the batch is seen there.
    """

    def __init__(self, every: int, record: Path | None = None) -> None:
        super().__init__()
        self.every, self._record = every, record
        self._opening: ExitStack | None = None
        self._attempts = 0
        self._inside = False  # an outermost forward pass runs
        self.open: list[Watch] = []
        self._known: set[int] = set()
        self.on(OptimizerBegins, self.before_optimizer)
        self.on(ScalerStepBegins, self.scaler_begins)

    @contextmanager
    def opening_with_forward(self) -> Iterator[None]:
        """In a block, open watches before the first forward pass of models with an optimizer."""
        with ExitStack() as stack:
            self._opening = stack
            stack.enter_context(tap(nn.Module, "__call__", self._before_forward))
            yield

    def _before_forward(self, call: Any, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Look for living optimizers before an outermost forward pass, until some are found."""
        if self._opening is None or self._inside or not torch.is_grad_enabled():
            return call(module, *args, **kwargs)
        self._attempts += 1
        with reporting(self.failed, "looking for optimizers"):
            optimizers = _optimizers_beside(module)
            for optimizer in optimizers:
                self._open_for(optimizer, before_step=True)
            if optimizers or self._attempts >= MOST_ATTEMPTS:
                self._opening.close()
                self._opening = None
        if self._opening is None:
            # through the class: a watch that has just opened observes this call, too
            again: Any = type(module).__call__
            return again(module, *args, **kwargs)
        self._inside = True
        try:
            return call(module, *args, **kwargs)
        finally:
            self._inside = False

    def before_optimizer(self, event: OptimizerBegins) -> None:
        """Look for the model of an optimizer that is new.

        A watch that opens observes this step, too.
        """
        opened = self._open_for(event.optimizer)
        if opened is not None:
            guarded(opened.before_optimizer, opened.failed)(event)

    def scaler_begins(self, event: ScalerStepBegins) -> None:
        """Find the model here as well.

        If a scaler skips every step, the optimizer is never called.
        """
        if id(event.optimizer) in self._known:
            return
        self.scaled_by(event.scale)
        opened = self._open_for(event.optimizer)
        if opened is not None:
            guarded(opened.scaler_begins, opened.failed)(event)

    def _open_for(self, optimizer: Any, before_step: bool = False) -> Watch | None:
        """Open a watch on an optimizer's model; return None if it is watched or not found."""
        if id(optimizer) in self._known:
            return None
        self._known.add(id(optimizer))
        model = model_of([p for group in optimizer.param_groups for p in group["params"]])
        if model is None:
            self.failures.setdefault(("an optimizer", "no module"), NO_MODULE)
        if model is None or any(w.model is group_of(model, model)[0] for w in self.open):
            return None
        opened = watch(model, self.every, against_fp32_every=10 * self.every)
        if self._record is not None:
            opened.record(_numbered(self._record, len(self.open)))
        if before_step:
            opened.__enter__()
        else:
            opened.open_during_step()
        if self.scaled:
            opened.scaled_by(self._scale)
        self.open.append(opened)
        return opened

    def close(self) -> None:
        """Close all watches."""
        for each in self.open:
            guarded(each.__exit__, self.failed)()

    def failed(self, where: str, error: Exception) -> None:
        """Record a failure outside of any one watch."""
        self.failures.setdefault((where, type(error).__name__), described(where, error))

    def reports(self, script: str) -> list[Report]:
        """Return a report for each model; the first includes failures outside of any one watch."""
        reports = [each.report() for each in self.open]
        if self.failures:
            first, *others = reports or [Report(model=script, steps=0)]
            reports = [replace(first, unseen=(*first.unseen, *self.failures.values())), *others]
        return reports


def _numbered(path: Path, number: int) -> Path:
    """Return the path for the first model, and one with a number behind its name for others."""
    return path.with_name(f"{path.stem}-{number + 1}{path.suffix}") if number else path


def _optimizers_beside(module: nn.Module) -> list[Any]:
    """Return all living optimizers if one of them steps a parameter of the module, else none."""
    own = {id(parameter) for parameter in module.parameters()}
    alive = [v for v in gc.get_objects() if issubclass(type(v), torch.optim.Optimizer)]
    stepped = {id(p) for each in alive for group in each.param_groups for p in group["params"]}
    return [] if own.isdisjoint(stepped) else alive


def model_of(parameters: list[Tensor]) -> nn.Module | None:
    """Return the outermost living module that holds these parameters, or None.

    Of several, it is the one that holds most of them.
    """
    wanted = {id(parameter) for parameter in parameters}
    alive = [value for value in gc.get_objects() if issubclass(type(value), nn.Module)]
    holding = [module for module in alive if any(id(p) in wanted for p in module.parameters())]
    inner = {id(part) for module in holding for part in module.modules() if part is not module}
    return max(
        (module for module in holding if id(module) not in inner),
        key=lambda module: sum(id(p) in wanted for p in module.parameters()),
        default=None,
    )


def leaves(root: Tensor) -> list[Tensor]:
    """Return the leaf tensors that a tensor's gradient flows to.

    >>> import torch
    >>> a, b = torch.ones(2, requires_grad=True), torch.ones(2)
    >>> [leaf is a for leaf in leaves((3 * a + b).sum())]
    [True]
    """
    todo = [root.grad_fn]
    known = set()
    found = []
    while todo:
        node: Any = todo.pop()
        if node is None or node in known:
            continue
        known.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        todo += [following for following, _ in node.next_functions]
    return found
