"""Validation of an engine's arguments: unsuitable models and losses, and states that do not fit.

A state fits the engine that saved it. A run that resumed with another network, optimizer, recipe or
build would differ, so such a state raises an error that names the difference.

Invariant: an error is raised before anything has changed.
"""

from __future__ import annotations

import operator
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from labkit.formats.arguments import describe_value, require_kind

STATE_KEYS = (
    "model",
    "weights",
    "optimizer",
    "scalers",
    "recipe",
    "policy",
    "steps",
    "skips_in_a_row",
)
_START_OVER = "To start over from its weights: engine.load_model(state['model'])."


def require_trainable(model: object, make_optimizer: object, losses: object) -> None:
    """Validate an engine's arguments, and that the model's parameters can be trained.

    Raises:
        TypeError: make_optimizer is not callable, or losses is not a whole number.
        ValueError: losses < 1; the model is not a module, has no parameter that requires a
            gradient, or has one that is complex, FP64, lazy, or an inference tensor.
        RuntimeError: some of its tensors are on the meta device; the message names one.
    """
    if not callable(make_optimizer):
        raise TypeError(
            "make_optimizer: expected a function parameters -> optimizer, got "
            f"{describe_value(make_optimizer)}. For example: partial(torch.optim.SGD, lr=0.1)."
        )
    require_kind(losses, int, "losses", "It is the number of losses with a scale each.")
    if operator.index(losses) < 1:  # type: ignore[arg-type]
        raise ValueError(f"losses: expected 1 or more, got {losses}")
    if isinstance(model, list | tuple) and all(isinstance(layer, nn.Module) for layer in model):
        raise ValueError(
            f"expected a torch.nn.Module, got a {type(model).__name__}. Make one of a list of "
            "layers: nn.Sequential(*layers)."
        )
    if not isinstance(model, nn.Module):
        raise ValueError(f"expected a torch.nn.Module, got a {type(model).__name__}.")
    parameters = dict(model.named_parameters())
    if not parameters:
        raise ValueError(f"expected trainable parameters in this {type(model).__name__}, got none.")
    if not any(p.requires_grad for p in parameters.values()):
        raise ValueError(
            f"expected trainable parameters in this {type(model).__name__}, got {len(parameters)} "
            "frozen ones. Unfreeze some: model.head.requires_grad_(True)."
        )
    for name, p in parameters.items():
        if nn.parameter.is_lazy(p):
            raise ValueError(
                f"parameter {name!r} of a lazy layer has no shape yet, so it can have no master. "
                "Call the model once, on one batch, before Engine(...)."
            )
        if p.is_complex() and p.requires_grad:
            raise ValueError(
                f"parameter {name!r}: expected a real dtype, got {p.dtype}. Store the real and the "
                "imaginary part as one real parameter: torch.view_as_real, and "
                "torch.view_as_complex where it is used."
            )
        if p.is_inference():
            raise ValueError(
                f"parameter {name!r}: expected a tensor that can get a gradient, got one made "
                "under torch.inference_mode(). Make the model, or copy.deepcopy(model), outside of "
                "that block."
            )
        if p.dtype == torch.float64:
            raise ValueError(
                f"parameter {name!r}: expected FP32 or less, got FP64, which no recipe keeps. To "
                "drop the extra precision, call model.float() first."
            )
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta:
            raise RuntimeError(
                f"{name!r}: expected a tensor with data, got one on the meta device. Call "
                "model.to_empty(device=...), then model.load_state_dict(...), before Engine(...)."
            )


def require_known(model: nn.Module, known: Container[int]) -> None:
    """Raise a RuntimeError if a layer was added to the model after its engine was made.

    No optimizer would step it.

    Args:
        model: the engine's model.
        known: the id() of each parameter that the model had when the engine was made.
    """
    modules: list[nn.Module | None] = [model]
    while modules:  # runs in every step, so without the generators of parameters()
        module = modules.pop()
        if module is None:
            continue
        for p in module._parameters.values():
            if id(p) not in known and p is not None and p.requires_grad:
                new = next(
                    n for n, q in model.named_parameters() if q.requires_grad and id(q) not in known
                )
                raise RuntimeError(
                    f"parameter {new!r} was added to the model after the engine was made, so the "
                    "optimizer does not step it. Make the engine after the last change of the "
                    "model."
                )
        modules += module._modules.values()


def require_loss(loss: object) -> None:
    """Raise an error if no backward pass can start at this loss.

    Raises:
        TypeError: it is not a tensor.
        ValueError: it has more than one element.
        RuntimeError: it depends on no parameter.
    """
    if not isinstance(loss, Tensor):
        raise TypeError(
            f"expected the loss as the tensor that the forward pass computed, got {loss!r}, which "
            "has no graph. Leave out .item() and float()."
        )
    if loss.numel() != 1:
        raise ValueError(
            f"expected a loss with one element, got shape {tuple(loss.shape)}. Take its mean() or "
            "sum()."
        )
    if not loss.requires_grad:
        raise RuntimeError(
            "expected a loss that depends on parameters, got one computed under torch.no_grad() or "
            "from detached or other tensors."
        )


def require_loss_id(loss_id: int, losses: int) -> None:
    """Raise an IndexError unless an engine with so many losses has this one."""
    if not 0 <= loss_id < losses:
        raise IndexError(
            f"expected loss_id below {losses}, the engine's losses, got {loss_id}. "
            f"Construct the engine with losses={loss_id + 1}."
        )


@contextmanager
def raising_value_error() -> Iterator[None]:
    """Convert any error of loading a malformed state into a ValueError."""
    try:
        yield
    except ValueError:
        raise
    except (KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
        message = f"{type(error).__name__}: {error}"
        raise ValueError(
            f"this state cannot be loaded, and nothing has changed ({message})"
        ) from error


def require_same_network(own: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
    """Raise an error for weights of another network; it lists the names or shapes that differ."""
    missing, unknown = [k for k in own if k not in stored], [k for k in stored if k not in own]
    both = [k for k in own if isinstance(own[k], Tensor) and isinstance(stored.get(k), Tensor)]
    shapes = [
        f"{k}: {tuple(stored[k].shape)} for {tuple(own[k].shape)}"
        for k in both
        if own[k].shape != stored[k].shape
    ]
    for what, names in (
        ("lacks", missing),
        ("has what the model lacks:", unknown),
        ("has other shapes:", shapes),
    ):
        if names:
            raise ValueError(
                f"these weights are of another network: it {what} {_some(names)}. Build the model "
                "that they were saved from. To load only what fits, call "
                "model.load_state_dict(..., strict=False) before Engine(...)."
            )


def require_same(current: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Raise an error for a state of another optimizer, recipe or build than the current one.

    Raises:
        ValueError: the message says what differs, and what to do.
    """
    lacking = [key for key in STATE_KEYS if key not in state]
    if lacking:
        raise ValueError(
            f"expected the state of an engine, got one without {_some(lacking)}. Load a plain "
            "torch state dict with engine.load_model(...)."
        )
    if current["optimizer"] != state["optimizer"]:
        raise ValueError(
            f"expected a state saved with {current['optimizer']}, the engine's optimizer, got one "
            f"saved with {state['optimizer']}. {_START_OVER}"
        )
    own, stored = current["recipe"]["fields"], state["recipe"]["fields"]
    for now, was, what in (
        (current["recipe"], state["recipe"], "under another recipe"),
        (current["policy"], state["policy"], "with other autocast lists"),
        *(
            (own.get(part, {}), was, f"with another {part} of the same name")
            for part, was in stored.items()
        ),
    ):
        if differ := _differences(was, now):
            raise ValueError(
                f"it was saved {what}: {_some(differ)}. Build the engine with the same one. "
                f"{_START_OVER}"
            )
    if len(current["scalers"]) != len(state["scalers"]):
        raise ValueError(
            f"expected a state with {len(current['scalers'])} losses, got one with "
            f"{len(state['scalers'])}. Construct the engine with losses={len(state['scalers'])}. "
            f"{_START_OVER}"
        )
    groups = [
        [len(g["params"]) for g in s["weights"]["optimizer"]["param_groups"]]
        for s in (state, current)
    ]
    names = [list(s["weights"]["master"]) for s in (state, current)]
    # optimizers index their state by the order of parameters
    if groups[0] != groups[1] or names[0] != names[1]:
        unlike = sorted(set(names[0]) ^ set(names[1])) or [
            "the same ones in other groups or in another order"
        ]
        raise ValueError(
            f"the optimizer stepped other parameters when it was saved: {_some(unlike)}. Freeze "
            f"the same ones, and make the same groups. {_START_OVER}"
        )


def _differences(stored: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    # these do not affect the numbers
    keys = sorted((stored.keys() | current.keys()) - {"name", "fields", "graph"})
    different: list[str] = []
    for k, was, now in ((k, stored.get(k), current.get(k)) for k in keys):
        if isinstance(was, Mapping) and isinstance(now, Mapping):
            different += [f"{k}.{more}" for more in _differences(was, now)]
        elif was != now:
            short = [
                f"a {v.get('type', 'description')}" if isinstance(v, Mapping) else repr(v)
                for v in (was, now)
            ]
            different.append(f"{k} {short[0]}, now {short[1]}")
    return different


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "")
