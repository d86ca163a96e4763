"""Entry points of a diagnosis: `diagnose` for a training loop, `diagnose_script` for a script.

Idea: a few real steps of a training run under observation (`diagnosis`, `script_diagnosis`). The
table labkit.instrument.symptoms says what a diagnosis can find; `claims` lists the faults that it
claims to find.
"""

from __future__ import annotations

import sys
import tokenize
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

from labkit.clinic.constants import Constant, constants_in, constants_of
from labkit.clinic.diagnosis import Diagnosis, is_known
from labkit.clinic.script_diagnosis import ScriptDiagnosis, StepLimit
from labkit.faults import FAULTS
from labkit.formats.arguments import require_kind
from labkit.instrument import Report
from labkit.instrument.events import GradScalerLike
from labkit.instrument.guard import guarded
from labkit.instrument.script import run_as_main
from labkit.instrument.symptoms import SYMPTOMS
from labkit.instrument.user_code import line_of_error

# Faults that raise an error, which labkit.faults explains.
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
    """Return the kinds of findings by which `diagnose` claims to find each fault, by its id.

    The dict leaves out faults that `diagnose` cannot find.

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

    The steps are real: they change model, optimizer, scaler and random state exactly as they would
    without the diagnosis. To keep the originals, pass copies.

    Args:
        step: runs one step on one batch: forward, backward, optimizer and scaler. Its result is
            ignored.
        model: the trained model; None observes the operations only.
        optimizer: the optimizer that should train the model; others that step are observed, too.
        scaler: an object with the methods of torch.amp.GradScaler that is not derived from it.
            Scalers of torch are observed without being passed.
        batches: the arguments of `step`, one after another.
        steps: the largest number of steps to run.

    Returns:
        The findings of these steps, the worst first.

    Raises:
        TypeError: step cannot be called, model is not a torch.nn.Module, optimizer has no
            param_groups, batches cannot be iterated, or steps is not a whole number.
        ValueError: batches is empty, steps is not positive, or the model has no parameters.
    """
    if not callable(step):
        raise TypeError(
            f"step: expected a function that runs one step on a batch, got {type(step).__name__}"
        )
    if model is not None and not isinstance(model, nn.Module):
        raise TypeError(f"model: expected a torch.nn.Module or None, got {type(model).__name__}")
    if optimizer is not None and not hasattr(optimizer, "param_groups"):
        raise TypeError(
            f"optimizer: expected a torch.optim.Optimizer or None, got {type(optimizer).__name__}"
        )
    require_kind(batches, Iterable, "batches", "Pass a list of the arguments of a few steps")
    require_kind(steps, int, "steps")
    if steps < 1:
        raise ValueError(f"steps: expected a positive integer, got {steps!r}")
    diagnosis = Diagnosis(constants_of(step, model))
    if optimizer is not None:
        diagnosis.optimizers[id(optimizer)] = optimizer
    with diagnosis.observing(scaler):
        if model is not None:
            diagnosis.roots.append(model)
            diagnosis.add_model(model, steps, scaler)
        for number, batch in zip(range(steps), batches, strict=False):
            diagnosis.step = number
            try:
                step(batch)
            except Exception as raised:
                diagnosis.error = raised
                break
            guarded(diagnosis.finish_step, diagnosis.failed)()
    if diagnosis.error is None and diagnosis.steps == 0:
        raise ValueError("batches is empty, so no step was run; pass the arguments of a few steps")
    return diagnosis.report()


def diagnose_script(script: Path, arguments: list[str], steps: int = 100) -> Report:
    """Run a script for a number of steps, and report the faults of its training, the worst first.

    The report of a script that only predicts has the findings of its forward passes.

    Args:
        script: the file to run.
        arguments: the script's own command-line arguments.
        steps: the number of steps after which the script is ended.

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
    # An error of its syntax or its encoding is reported when the script runs. A sum of thousands of
    # terms is too deep to read.
    with suppress(SyntaxError, ValueError, RecursionError), tokenize.open(script) as file:
        constants += constants_in(file.read(), str(script))
    diagnosis = ScriptDiagnosis(steps, constants)
    ended = ""
    # StepLimit may replace the trace function (see script_diagnosis.raise_in_handlers)
    tracing = sys.gettrace()
    try:
        with diagnosis.observing():
            run_as_main(script, arguments)
    except StepLimit:
        pass
    except SystemExit as end:
        if end.code:
            ended = f" (exit status {end.code})"
        # sys.exit("a message") is how some scripts report an error of a framework
        if isinstance(end.code, str) and is_known(end):
            diagnosis.error = end
    except Exception as error:
        diagnosis.error = error
        ended = f": {type(error).__name__}: {error}"
        # the place of a syntax error is in its message: no line of the script has run
        place = line_of_error(error)
        if place:
            ended += f" ({place})"
    finally:
        sys.settrace(tracing)
    if diagnosis.stepped and diagnosis.steps < steps:
        guarded(diagnosis.finish_step, diagnosis.failed)()
    if not _has_observations(diagnosis):
        raise NothingObserved(f"{script} ended before a training step of torch{ended}")
    return diagnosis.report()


def _has_observations(diagnosis: ScriptDiagnosis) -> bool:
    """Return whether a script got far enough for a report."""
    if diagnosis.failures or diagnosis.attempts or diagnosis.events:
        return True
    if diagnosis.error is None:
        return diagnosis.forward_passes > 0
    if is_known(diagnosis.error):
        return True
    # an unknown error counts only if it ended a training, not a script that never began one
    return diagnosis.steps > 0 or bool(diagnosis.models)


class NothingObserved(ValueError):
    """A script ended before there was anything to diagnose."""
