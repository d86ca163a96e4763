"""Runs of an unchanged training script under a watch: `labkit watch train.py --its --arguments`.

Idea: the script runs as Python would run it. At the first step of each optimizer, taken or skipped,
the watch looks for the outermost living module that holds the optimizer's parameters, and opens on
it. `labkit diagnose` runs a script in the same way.

Invariant: the script's output, files and exit status are the same as without the watch.
"""

from __future__ import annotations

import gc
import runpy
import sys
import weakref
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from labkit.instrument.events import OptimizerBegins, OptimizerLike, ScalerStepBegins
from labkit.instrument.guard import describe_failure, guarded, reporting
from labkit.instrument.ranks import group_of
from labkit.instrument.report import Report
from labkit.instrument.stream import STREAM, StepObserver
from labkit.instrument.taps import tap
from labkit.instrument.user_code import in_utf8
from labkit.instrument.watch import Watch, watch

# forward passes before which a recorded watch looks for optimizers
MOST_ATTEMPTS = 32
# exit status of a process that Ctrl+C ended: 128 + SIGINT
INTERRUPTED = 130
NO_MODULE = (
    "an optimizer whose parameters are in no module, such as handwritten master weights: "
    "`labkit diagnose` finds the model by its loss, or use watch(model) in the script"
)


def watched(
    script: Path | str, arguments: list[str], every: int, record: Path | str | None = None
) -> tuple[int, list[Report]]:
    """Run a script under watch; return its exit status, and a report for each model.

    Args:
        script: path of the script.
        arguments: command-line arguments of the script.
        every: sample one step in so many.
        record: file to record the training of the first model to. The files of further models get
            a number after its name.
    """
    script = Path(script)
    watches = ScriptWatch(every, None if record is None else Path(record))
    try:
        with ExitStack() as stack:
            stack.enter_context(STREAM.subscribed(watches))
            if record is not None:
                stack.enter_context(watches.opening_with_forward())
            status = run_script(script, arguments)
    finally:
        watches.close()
    return status, watches.reports(in_utf8(script.name))


def run_script(script: Path, arguments: list[str]) -> int:
    """Run a script as `python script arguments` would, and return its exit status."""
    try:
        run_as_main(script, arguments)
    except SystemExit as end:
        if end.code is None:
            return 0
        if isinstance(end.code, int):
            return end.code
        # Python prints any other object, and ends with 1
        sys.stderr.write(f"{end.code}\n")
        return 1
    except KeyboardInterrupt as error:
        _print_as_python(error)
        return INTERRUPTED
    except BaseException as error:
        _print_as_python(error)
        return 1
    return 0


def _print_as_python(error: BaseException) -> None:
    """Print an exception that ended the script as Python does, without the frames around it."""
    around = (run_as_main.__code__.co_filename, runpy.run_path.__code__.co_filename)
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in around:
        trace = trace.tb_next
    # the script may have a hook of its own
    sys.excepthook(type(error), error.with_traceback(trace), trace)


def run_as_main(script: Path, arguments: list[str]) -> None:
    """Run a script with the sys.argv and sys.path of `python script arguments`.

    Exceptions of the script are raised.
    """
    argv_before = sys.argv
    path_before = list(sys.path)
    sys.argv = [str(script), *arguments]
    sys.path[0] = str(script.resolve().parent)
    try:
        runpy.run_path(str(script), run_name="__main__")
    finally:
        sys.argv = argv_before
        sys.path[:] = path_before


class ScriptWatch(StepObserver):
    """Listener that opens a watch for each model at the first step, taken or skipped.

    A recorded training is watched from its first forward pass on, where its batch is seen.
    """

    def __init__(self, every: int, record: Path | None = None) -> None:
        super().__init__()
        self.every = every
        self.open: list[Watch] = []
        self._record = record
        # closes the tap on forward passes; None while there is no tap
        self._opening: ExitStack | None = None
        self._attempts = 0
        # an outermost forward pass is running
        self._inside = False
        # ids of optimizers
        self._known: set[int] = set()
        # those of other trainings, which were there before the script, by id; an id may be taken by
        # a new optimizer later
        self._earlier = {id(each): weakref.ref(each) for each in _living_optimizers()}
        self.on(OptimizerBegins, self.before_optimizer)
        self.on(ScalerStepBegins, self.scaler_begins)

    @contextmanager
    def opening_with_forward(self) -> Iterator[None]:
        """Open watches before the first forward pass of models with an optimizer, in a block."""
        with ExitStack() as stack:
            self._opening = stack
            stack.enter_context(tap(nn.Module, "__call__", self._before_forward))
            yield

    def _before_forward(self, call: Any, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Look for living optimizers before an outermost forward pass, until some are found."""
        if self._opening is None or self._inside or not torch.is_grad_enabled():
            return call(module, *args, **kwargs)
        self._attempts += 1
        optimizers: list[torch.optim.Optimizer] = []
        with reporting(self.failed, "looking for optimizers"):
            optimizers = self._optimizers_of(module)
        for optimizer in optimizers:
            # a model that cannot be watched keeps no other one from being watched
            with reporting(self.failed, "opening a watch"):
                self._open_for(optimizer, before_step=True)
        if optimizers or self._attempts >= MOST_ATTEMPTS:
            self._opening.close()
            self._opening = None
            # Look the method up again instead of using `call`: a watch that has just opened has
            # tapped it, and observes this call, too.
            tapped_call: Any = type(module).__call__
            return tapped_call(module, *args, **kwargs)
        self._inside = True
        try:
            return call(module, *args, **kwargs)
        finally:
            self._inside = False

    def _optimizers_of(self, module: nn.Module) -> list[torch.optim.Optimizer]:
        """Return the script's optimizers if one of them steps a parameter of a module, else none.

        Those of the module come first. The order is the same in each run of a script, since it
        numbers the recordings; that of the garbage collector, which finds them, is not.
        """
        own = {id(parameter) for parameter in module.parameters()}

        def steps_module(optimizer: torch.optim.Optimizer) -> bool:
            return any(id(parameter) in own for parameter in _parameters(optimizer))

        def place(optimizer: torch.optim.Optimizer) -> tuple[bool, list[tuple[int, ...]]]:
            return not steps_module(optimizer), [tuple(p.shape) for p in _parameters(optimizer)]

        def is_earlier(optimizer: torch.optim.Optimizer) -> bool:
            reference = self._earlier.get(id(optimizer))
            return reference is not None and reference() is optimizer

        alive = [each for each in _living_optimizers() if not is_earlier(each)]
        if not any(map(steps_module, alive)):
            return []
        return sorted(alive, key=place)

    def before_optimizer(self, event: OptimizerBegins) -> None:
        """Look for the model of an optimizer that is new."""
        opened = self._open_for(event.optimizer)
        if opened is not None:
            # the new watch missed this event: pass it on
            guarded(opened.before_optimizer, opened.failed)(event)

    def scaler_begins(self, event: ScalerStepBegins) -> None:
        """Look for the model of an optimizer that is new.

        If a scaler skips every step, the optimizer is never called, so this is the only event.
        """
        if id(event.optimizer) in self._known:
            return
        self.scaled_by(event.scale)
        opened = self._open_for(event.optimizer)
        if opened is not None:
            # the new watch missed this event: pass it on
            guarded(opened.scaler_begins, opened.failed)(event)

    def _open_for(self, optimizer: OptimizerLike, before_step: bool = False) -> Watch | None:
        """Open a watch on an optimizer's model; return None if it is watched or not found.

        Args:
            optimizer: the optimizer.
            before_step: the step has not begun; else the watch opens in the middle of a step.
        """
        if id(optimizer) in self._known:
            return None
        self._known.add(id(optimizer))
        model = model_of(_parameters(optimizer))
        if model is None:
            self.failures.setdefault(("an optimizer", "no module"), NO_MODULE)
            return None
        inner_model, _ = group_of(model, model)
        if any(each.model is inner_model for each in self.open):
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
        self.failures.setdefault((where, type(error).__name__), describe_failure(where, error))

    def reports(self, script: str) -> list[Report]:
        """Return a report for each model; the first includes failures outside of any one watch."""
        reports = [each.report() for each in self.open]
        if not self.failures:
            return reports
        if not reports:
            reports = [Report(model=script, steps=0)]
        first = reports[0]
        reports[0] = replace(first, unseen=(*first.unseen, *self.failures.values()))
        return reports


def _numbered(path: Path, number: int) -> Path:
    """Return the path for model 0, or the path with a number after its stem for another model."""
    if number == 0:
        return path
    return path.with_name(f"{path.stem}-{number + 1}{path.suffix}")


def _living_optimizers() -> list[torch.optim.Optimizer]:
    # by type: isinstance would ask an object's __class__, which may run code of the user
    return [each for each in gc.get_objects() if issubclass(type(each), torch.optim.Optimizer)]


def _parameters(optimizer: OptimizerLike) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def model_of(parameters: Iterable[Tensor]) -> nn.Module | None:
    """Return the outermost living module that holds some of these parameters, or None.

    Of several such modules, it is the one that holds most of them.
    """
    wanted = {id(parameter) for parameter in parameters}

    def number_held(module: nn.Module) -> int:
        return sum(id(parameter) in wanted for parameter in module.parameters())

    alive = [each for each in gc.get_objects() if issubclass(type(each), nn.Module)]
    holding = [module for module in alive if number_held(module)]
    inner = {id(part) for module in holding for part in module.modules() if part is not module}
    outermost = [module for module in holding if id(module) not in inner]
    return max(outermost, key=number_held, default=None)


def leaves(root: Tensor) -> list[Tensor]:
    """Return the leaf tensors that a tensor's gradient flows to.

    >>> import torch
    >>> a, b = torch.ones(2, requires_grad=True), torch.ones(2)
    >>> [leaf is a for leaf in leaves((3 * a + b).sum())], [leaf is a for leaf in leaves(a)]
    ([True], [True])
    """
    if root.grad_fn is None:
        return [root] if root.requires_grad else []
    pending = [root.grad_fn]
    visited = set()
    result = []
    while pending:
        node: Any = pending.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        # only the nodes that accumulate gradients of leaves have this attribute
        if hasattr(node, "variable"):
            result.append(node.variable)
        pending += [following for following, _ in node.next_functions]
    return result
