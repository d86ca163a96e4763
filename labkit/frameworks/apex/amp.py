"""The API of apex.amp on the lab's engine.

    model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()

Idea: the calls, their arguments and their errors are apex's; casts, masters, unscaling and the rule
of the scale are labkit.amp's. apex's functions share global state, so the state of one training is
in `_amp_state`. A second `initialize` starts over. Each thread has a state of its own, as it has
casts of its own.

Invariant: with `enabled=False` a script runs as if amp did nothing. Differences from apex:

- It runs on a CPU.
- All normalisation layers stay FP32, not only batch norm, and so do custom buffers
  (`labkit.amp.to_model_format`).
- A registered function of torch is cast under each of its names.
- Casts apply in the thread that called `initialize`. Messages use `logging`.

Source: apex.amp, frontend.py, handle.py, amp.py and opt.py, at the commit before its removal
    (cb65b8e, 2025).
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from labkit.amp import Rule, ScalerState, autocast, float_function, half_function, promote_function
from labkit.amp.masters.weights import require_fitting
from labkit.formats.arguments import require_kind
from labkit.frameworks.apex.casts import LOG, AmpHandle, AmpState, require_no_modes
from labkit.frameworks.apex.models import (
    Properties,
    convert,
    listed_models,
    properties_of,
    require_outputs,
)
from labkit.frameworks.apex.optimizers import (
    LossScaler,
    Prepared,
    listed_optimizers,
    unscaled_after,
)
from labkit.frameworks.steps import OptimizerLike

__all__ = [
    "disable_casts",
    "float_function",
    "half_function",
    "init",
    "initialize",
    "load_state_dict",
    "master_params",
    "promote_function",
    "register_float_function",
    "register_half_function",
    "register_promote_function",
    "scale_loss",
    "state_dict",
]


_amp_state = AmpState()


def initialize(
    models: nn.Module | list[nn.Module],
    optimizers: OptimizerLike | list[OptimizerLike] | None = None,
    enabled: bool = True,
    opt_level: str = "O1",
    cast_model_type: torch.dtype | bool | None = None,
    patch_torch_functions: bool | None = None,
    keep_batchnorm_fp32: bool | str | None = None,
    master_weights: bool | None = None,
    loss_scale: float | str | None = None,
    cast_model_outputs: torch.dtype | None = None,
    num_losses: int = 1,
    verbosity: int = 1,
    min_loss_scale: float | None = None,
    max_loss_scale: float = 2.0**24,
) -> Any:
    """Convert models and optimizers to an opt level, in place, and return them.

    Args:
        models: one model, or a list.
        optimizers: one optimizer, a list, or None to only run the models; wrappers of optimizers
            are allowed.
        enabled: if False, this and all other calls do nothing.
        opt_level: "O0" (FP32), "O1" (functions cast), "O2" (half model, FP32 master weights) or
            "O3" (half).
        cast_model_type: override the level's value; see `Properties`.
        patch_torch_functions: override the level's value.
        keep_batchnorm_fp32: override the level's value.
        master_weights: override the level's value.
        loss_scale: override the level's value: a number, or "dynamic".
        cast_model_outputs: dtype of the models' outputs; None: FP32 under O0, O2 and O3, unchanged
            under O1.
        num_losses: number of scales for `scale_loss(..., loss_id=)`.
        verbosity: 0 for no messages, 2 for a message about each cast.
        min_loss_scale: lower limit of a dynamic scale.
        max_loss_scale: upper limit of a dynamic scale.

    Returns:
        The models, or the pair of models and optimizers if there are any; each as it was passed,
        single or as a list.

    Raises:
        RuntimeError: there is no such level, or an override contradicts it; a model is half
            already, or wrapped for several devices; an optimizer was initialized before; a mode of
            labkit is active.
        TypeError, ValueError: an argument has the wrong type or value. Like after a RuntimeError,
            models and optimizers have not changed then.

    >>> model = nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> model, optimizer = initialize(model, optimizer, opt_level="O2")
    >>> model.weight.dtype, next(master_params(optimizer)).dtype
    (torch.float16, torch.float32)
    """
    LOG.setLevel(logging.WARNING if verbosity else logging.ERROR)
    if not enabled:
        _start_over()
        return models if optimizers is None else (models, optimizers)
    properties = properties_of(
        opt_level,
        cast_model_type=cast_model_type,
        patch_torch_functions=patch_torch_functions,
        keep_batchnorm_fp32=keep_batchnorm_fp32,
        master_weights=master_weights,
        loss_scale=loss_scale,
    )
    require_outputs(cast_model_outputs)
    model_list = listed_models(models, _amp_state.allow_incoming_model_not_fp32)
    optimizer_list = listed_optimizers(optimizers)
    if properties.master_weights:
        for optimizer in optimizer_list:
            require_fitting(optimizer, flat=False)
    require_kind(num_losses, int, "num_losses")
    if num_losses < 1:
        raise ValueError(f"expected num_losses >= 1, got {num_losses!r}")
    losses = [
        LossScaler(properties.loss_scale, min_loss_scale, max_loss_scale) for _ in range(num_losses)
    ]
    # every argument is valid, so the training before ends here
    _start_over()
    if properties.patch_torch_functions:
        require_no_modes()
    convert(model_list, properties, cast_model_outputs)
    # names of parameters, for messages; of several models, with the number of the model
    names: dict[Tensor, str] = {}
    for i, model in enumerate(model_list):
        prefix = f"{i}." if len(model_list) > 1 else ""
        for name, parameter in model.named_parameters():
            names[parameter] = prefix + name
    for optimizer in optimizer_list:
        # patches the methods of the optimizer
        Prepared(optimizer, names, masters=bool(properties.master_weights))
    _amp_state.opt_properties = properties
    _amp_state.loss_scalers = losses
    if properties.patch_torch_functions:
        parameters = [p for model in model_list for p in model.parameters()]
        device = parameters[0].device if parameters else torch.device("cpu")
        _open(device, verbose=verbosity == 2)
    return models if optimizers is None else (models, optimizers)


@contextmanager
def scale_loss(
    loss: Tensor,
    optimizers: OptimizerLike | Sequence[OptimizerLike],
    loss_id: int = 0,
    model: nn.Module | None = None,
    delay_unscale: bool = False,
    delay_overflow_check: bool = False,
) -> Iterator[Tensor]:
    """Yield the loss in FP32 times its scale; at the end of the block, unscale the new gradients.

    Args:
        loss: usually a scalar.
        optimizers: one or a list: all whose parameters this backward pass reaches and that step
            with its gradients.
        loss_id: index of its scale among the `num_losses`.
        model: unused.
        delay_unscale: leave the gradients scaled, for another loss to add to; not for the last loss
            before a step.
        delay_overflow_check: do not check the gradients for inf and NaN.

    Raises:
        RuntimeError: `initialize` was not called with these optimizers; or there are gradients of
            another scale.
        IndexError: there is no such loss.
        TypeError: the loss is not a tensor.
    """
    properties = _amp_state.opt_properties
    if properties is None:
        raise RuntimeError(
            "Invoked 'with amp.scale_loss`, but internal Amp state has not been initialized. "
            "model, optimizer = amp.initialize(model, optimizer, opt_level=...) must be called "
            "before `with amp.scale_loss`, in this thread."
        )
    if not properties.enabled:
        yield loss
        return
    if not isinstance(loss, Tensor):
        raise TypeError(f"expected the loss as a tensor, without .item() or float(), got {loss!r}")
    scaler = _scaler(loss_id)
    scale = scaler.loss_scale()
    if not properties.master_weights and not scaler.dynamic and scale == 1.0:
        yield loss.float()
    else:
        listed = optimizers if isinstance(optimizers, list | tuple) else [optimizers]
        prepared = [_prepared(optimizer) for optimizer in listed]
        with unscaled_after(prepared, scale, delay_unscale) as found:
            yield loss.float() * scale
        if delay_unscale or delay_overflow_check:
            skips = False
        else:
            # updates the scale
            skips = scaler.must_skip(any(found))
        if skips:
            LOG.warning(
                "Gradient overflow.  Skipping step, reducing loss scale to %s", scaler.loss_scale()
            )
            for optimizer in prepared:
                optimizer.skips = True
    if _amp_state.handle is not None:
        _amp_state.handle._clear_cache()


def _scaler(loss_id: int) -> LossScaler:
    known = len(_amp_state.loss_scalers)
    if loss_id not in range(known):
        if isinstance(loss_id, int) and loss_id >= 0:
            more = f"Give initialize num_losses={loss_id + 1}."
        else:
            more = f"Use 0 to {known - 1}."
        raise IndexError(
            f"loss_id={loss_id!r}: amp has {known} loss scale(s), counted from 0. {more}"
        )
    return _amp_state.loss_scalers[loss_id]


def _prepared(optimizer: Any) -> Prepared:
    prepared = getattr(optimizer, "_amp_stash", None)
    if not isinstance(prepared, Prepared):
        raise RuntimeError(
            "expected an optimizer that amp.initialize returned, got another "
            f"{type(optimizer).__name__}. Pass all optimizers to amp.initialize as a list, "
            "including wrappers, and use those that it returns."
        )
    return prepared


def master_params(optimizer: OptimizerLike) -> Iterator[Tensor]:
    """Yield the tensors that an optimizer steps, to clip their gradients after `scale_loss`."""
    for group in optimizer.param_groups:
        yield from group["params"]


def state_dict(destination: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the scale of each loss and its clean steps in a row, for a checkpoint.

    The states of model and optimizer are saved beside it.

    Args:
        destination: a dict to write them into.
    """
    if destination is None:
        destination = {}
    for i, scaler in enumerate(_amp_state.loss_scalers):
        destination[f"loss_scaler{i}"] = {
            "loss_scale": scaler.loss_scale(),
            "unskipped": scaler.state.growth_tracker,
        }
    return destination


def load_state_dict(state_dict: dict[str, Any]) -> None:
    """Load a `state_dict`, after `initialize`.

    Raises:
        RuntimeError: it is not a state dict of amp, and nothing is loaded; or `initialize` was not
            called.

    Warns:
        UserWarning: its number of losses differs; the common ones are loaded.
    """
    if _amp_state.opt_properties is None:
        raise RuntimeError(
            "amp.load_state_dict comes after amp.initialize, which makes the scales that it sets."
        )
    if not _amp_state.opt_properties.enabled:
        return
    scalers = _amp_state.loss_scalers
    if not _is_state_dict(state_dict):
        if isinstance(state_dict, Mapping):
            keys = ", ".join(map(repr, state_dict))
        else:
            keys = repr(state_dict)
        raise RuntimeError(
            f"Error(s) in loading state_dict. Unexpected key(s) in state_dict: {keys}. This is not "
            "an amp.state_dict(): that of the model or the optimizer is loaded by those."
        )
    if len(state_dict) != len(scalers):
        advice = f"give amp.initialize num_losses={len(state_dict)} to continue with all of them"
        if not state_dict:
            advice = "it was saved with enabled=False, and the scales start from their first values"
        warnings.warn(
            f"state_dict contains {len(state_dict)} entries, while {len(scalers)} loss_scalers are "
            f"used: {advice}.",
            stacklevel=2,
        )
    try:
        states = [
            ScalerState(float(each["loss_scale"]), int(each["unskipped"]))
            for each in state_dict.values()
        ]
    except (KeyError, TypeError, ValueError) as error:
        wrong = str(error)
        if isinstance(error, KeyError):
            wrong = f"it has no {error}"
        raise RuntimeError(
            f"Error(s) in loading state_dict: {wrong}. Nothing was loaded."
        ) from None
    for scaler, state in zip(scalers, states, strict=False):
        scaler.state = state


def _is_state_dict(content: object) -> bool:
    """Return whether a value has the form of amp's state dict."""
    if not isinstance(content, Mapping):
        return False
    return all("loss_scaler" in str(key) for key in content)


def disable_casts() -> AbstractContextManager[Any]:
    """Disable casts for a `with` block; blocks may be nested."""
    return autocast(enabled=False)


def register_half_function(module: Any, name: str) -> None:
    """Run a function in FP16 under O1.

    For example `register_half_function(torch, "sigmoid")`, before `initialize`.

    Raises:
        ValueError: the module has no such function.
        RuntimeError: functions are cast already.
    """
    _register(module, name, Rule.ALLOW)


def register_float_function(module: Any, name: str) -> None:
    """Run a function in FP32 under O1; see `register_half_function`."""
    _register(module, name, Rule.DENY)


def register_promote_function(module: Any, name: str) -> None:
    """Run a function in the widest dtype of its tensors under O1; see `register_half_function`."""
    _register(module, name, Rule.PROMOTE)


def _register(module: Any, name: str, rule: Rule) -> None:
    if not hasattr(module, name):
        raise ValueError(f"No function named {name} in module {module}.")
    if _amp_state.handle is not None and _amp_state.handle.is_active():
        raise RuntimeError(
            f"{name} comes too late, functions are cast already: register it before amp.initialize."
        )
    # the last rule of a function counts
    others = [each for each in _amp_state.registrations if each[0] is not module or each[1] != name]
    _amp_state.registrations = [*others, (module, name, rule)]


def init(
    enabled: bool = True,
    loss_scale: float | str = "dynamic",
    enable_caching: bool = True,
    verbose: bool = False,
    allow_banned: bool = False,
) -> AmpHandle:
    """Cast torch's functions, and return a handle that ends the casts.

    The entry point of apex's own tests.

    Args:
        enabled: if False, nothing is cast, and the handle does nothing.
        loss_scale: unused.
        enable_caching: keep the casts of weights until the optimizer's step.
        verbose: log each cast.
        allow_banned: run binary_cross_entropy in FP32 instead of raising an error.
    """
    _deactivate()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    options = {
        "enabled": enabled,
        "verbose": verbose,
        "cache": enable_caching,
        "allow_banned": allow_banned,
    }
    return _open(device, **options)


def _open(device: torch.device, **options: bool) -> AmpHandle:
    _amp_state.handle = AmpHandle(device, _amp_state.registrations, **options)
    _amp_state.registrations = []
    return _amp_state.handle


def _start_over() -> None:
    """End the casts and the scales of an earlier `initialize`."""
    _deactivate()
    _amp_state.opt_properties = Properties()
    _amp_state.loss_scalers = []


def _deactivate() -> None:
    if _amp_state.handle is not None:
        _amp_state.handle._deactivate()
        _amp_state.handle = None
