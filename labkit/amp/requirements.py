"""Validation of an engine's arguments: unsuitable models and losses, and states that do not fit.

A state fits the engine that saved it. A run that resumed with another network, optimizer, recipe or
build would differ, so such a state raises an error that names the difference.

Invariant: an error is raised before anything has changed.
"""

from __future__ import annotations

import operator
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import reduce
from types import UnionType
from typing import Any

import torch
from torch import Tensor, nn

from labkit.amp.loss_scaling.scaler import ScalerState
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
# the types of the parts of a state: path -> type
Layout = Mapping[tuple[str, ...], type | UnionType]
STATE_LAYOUT: Layout = {
    ("model",): Mapping,
    ("weights",): Mapping,
    ("weights", "master"): Mapping,
    ("weights", "optimizer"): Mapping,
    ("weights", "optimizer", "state"): Mapping,
    ("weights", "optimizer", "param_groups"): Sequence,
    ("weights", "generator"): Tensor,
    ("scalers",): Sequence,
    ("recipe",): Mapping,
    ("recipe", "fields"): Mapping,
    ("policy",): Mapping,
    ("steps",): int,
    ("skips_in_a_row",): int,
}
# of a recipe whose products keep scales
PRODUCTS_LAYOUT: Layout = {
    ("products",): Mapping,
    ("products", "history"): Mapping,
    ("products", "loss_size"): int | float,
    ("products", "generator"): Tensor,
}
# names of weights or differences in a message
_MOST_NAMES = 3
_START_OVER = "To start over from its weights: engine.load_model(state['model'])."


def require_trainable(model: object, make_optimizer: object, losses: object) -> None:
    """Validate an engine's arguments, and that the model's parameters can be trained.

    Raises:
        TypeError: make_optimizer is not callable, or losses is not a whole number.
        ValueError: losses < 1; the model is not a module, has no parameter that requires a
            gradient, or has one that is complex, FP64, lazy, or an inference tensor.
        RuntimeError: some of the model's tensors are on the meta device; the message names one.
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
    for name, parameter in parameters.items():
        _require_trainable_parameter(name, parameter)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta:
            raise RuntimeError(
                f"{name!r}: expected a tensor with data, got one on the meta device. Call "
                "model.to_empty(device=...), then model.load_state_dict(...), before Engine(...)."
            )


def _require_trainable_parameter(name: str, p: nn.Parameter) -> None:
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


def require_known(model: nn.Module, known: Container[int]) -> None:
    """Raise a RuntimeError if a layer was added to the model after its engine was made.

    The optimizer would not step the layer.

    Args:
        model: the engine's model.
        known: the id() of each parameter that the model had when the engine was made.
    """
    # This runs in every step. The generators of model.parameters() would take longer.
    modules: list[nn.Module | None] = [model]
    while modules:
        module = modules.pop()
        if module is None:
            continue
        for p in module._parameters.values():
            if id(p) not in known and p is not None and p.requires_grad:
                name = next(name for name, other in model.named_parameters() if other is p)
                raise RuntimeError(
                    f"parameter {name!r} was added to the model after the engine was made, so the "
                    "optimizer does not step it. Make the engine after the last change of the "
                    "model."
                )
        modules += module._modules.values()


def require_loss(loss: object) -> None:
    """Raise an error if no backward pass can start at this loss.

    Raises:
        TypeError: the loss is not a tensor.
        ValueError: the loss has more than one element.
        RuntimeError: the loss depends on no parameter.
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
    """Raise an error unless a loss_id is a whole number from 0 to below `losses`.

    Raises:
        TypeError: it is not a whole number.
        IndexError: the engine has no loss of this index.
    """
    require_kind(loss_id, int, "loss_id", "It is the index of the loss among the engine's losses.")
    if loss_id < 0:
        raise IndexError(f"expected a loss_id of 0 or more, got {loss_id}.")
    if loss_id >= losses:
        raise IndexError(
            f"expected loss_id below {losses}, the engine's losses, got {loss_id}. "
            f"Construct the engine with losses={loss_id + 1}."
        )


def require_same_network(own: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Raise an error for weights of another network.

    Args:
        own: the state dict of the model.
        state: the state dict to be loaded.

    Raises:
        TypeError: the state is not a mapping.
        ValueError: the message lists the names or shapes that differ.
    """
    require_kind(
        state, Mapping, "state", "torch.load(path, weights_only=True) reads one from a file."
    )
    shapes: list[str] = []
    for name, tensor in own.items():
        if not isinstance(tensor, Tensor) or name not in state:
            continue
        other = state[name]
        if not isinstance(other, Tensor):
            raise ValueError(f"{name!r}: expected a tensor, got {describe_value(other)}.")
        if other.shape != tensor.shape:
            shapes.append(f"{name}: {tuple(other.shape)} for {tuple(tensor.shape)}")
    for what, names in (
        ("lacks", [name for name in own if name not in state]),
        ("has what the model lacks:", [name for name in state if name not in own]),
        ("has other shapes:", shapes),
    ):
        if names:
            raise ValueError(
                f"these weights are of another network: it {what} {_some(names)}. Build the model "
                "that they were saved from. To load only what fits, call "
                "model.load_state_dict(..., strict=False) before Engine(...)."
            )


def require_keys(state: Mapping[str, Any]) -> None:
    """Raise an error unless a mapping has all parts of an engine's state.

    Raises:
        TypeError: the state is not a mapping.
        ValueError: it lacks a part.
    """
    require_kind(state, Mapping, "state", "labkit.amp.load_checkpoint reads one from a file.")
    missing = [key for key in STATE_KEYS if key not in state]
    if missing:
        raise ValueError(
            f"expected the state of an engine, got one without {_some(missing)}. Load a plain "
            "torch state dict with engine.load_model(...)."
        )


def require_layout(state: Mapping[str, Any], layout: Layout = STATE_LAYOUT) -> None:
    """Raise an error if a part of a state is missing, or is of another type.

    Args:
        state: the state of an engine.
        layout: path of a part -> its type. A part comes after the part that contains it.

    Raises:
        ValueError: the message names the part.
    """
    for path, kind in layout.items():
        *parents, key = path
        parent: Mapping[str, Any] = reduce(lambda part, name: part[name], parents, state)
        name = ".".join(path)
        if key not in parent:
            raise ValueError(f"this state is damaged: it lacks {name!r}. Load an older one.")
        part = parent[key]
        # a str is a Sequence, and a bool is an int
        if not isinstance(part, kind) or isinstance(part, str | bool):
            expected = getattr(kind, "__name__", str(kind))
            raise ValueError(
                f"this state is damaged: expected {name!r} to be of type {expected}, got "
                f"{describe_value(part)}. Load an older one."
            )


def as_scaler(values: object) -> ScalerState:
    """Return the scaler that a state describes.

    Raises:
        ValueError: its values do not describe a scaler.
    """
    names = {field.name for field in fields(ScalerState)}
    if not isinstance(values, Mapping) or not values.keys() <= names or "scale" not in values:
        raise ValueError(
            f"this state is damaged: expected a scaler with {', '.join(sorted(names))}, got "
            f"{describe_value(values)}. Load an older one."
        )
    return ScalerState(**values)


def require_same(current: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Raise an error for a state of another optimizer, recipe or build than the current one.

    Args:
        current: the state of the engine.
        state: the state to be loaded, with all of `STATE_KEYS`.

    Raises:
        ValueError: the message says what differs, and what to do.
    """
    if current["optimizer"] != state["optimizer"]:
        raise ValueError(
            f"expected a state saved with {current['optimizer']}, the engine's optimizer, got one "
            f"saved with {state['optimizer']}. {_START_OVER}"
        )
    _require_equal(current["recipe"], state["recipe"], "under another recipe")
    _require_equal(current["policy"], state["policy"], "with other autocast lists")
    # two values of one name may differ, such as two descriptions of one GPU
    own = current["recipe"]["fields"]
    for part, saved in state["recipe"]["fields"].items():
        _require_equal(own.get(part, {}), saved, f"with another {part} of the same name")
    if len(current["scalers"]) != len(state["scalers"]):
        raise ValueError(
            f"expected a state with {len(current['scalers'])} losses, got one with "
            f"{len(state['scalers'])}. Construct the engine with losses={len(state['scalers'])}. "
            f"{_START_OVER}"
        )
    # optimizers index their state by the order of parameters
    own_names = list(current["weights"]["master"])
    stored_names = list(state["weights"]["master"])
    if own_names != stored_names or _group_sizes(current) != _group_sizes(state):
        different = sorted(set(own_names) ^ set(stored_names))
        if not different:
            different = ["the same ones in other groups or in another order"]
        raise ValueError(
            f"the optimizer stepped other parameters when it was saved: {_some(different)}. Freeze "
            f"the same ones, and make the same groups. {_START_OVER}"
        )


def _group_sizes(state: Mapping[str, Any]) -> list[int]:
    return [len(group["params"]) for group in state["weights"]["optimizer"]["param_groups"]]


def _require_equal(current: Mapping[str, Any], saved: Mapping[str, Any], how: str) -> None:
    """Raise a ValueError if a part of a state was saved with other values."""
    differences = _differences(saved, current)
    if differences:
        raise ValueError(
            f"it was saved {how}: {_some(differences)}. Build the engine with the same one. "
            f"{_START_OVER}"
        )


def _differences(saved: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    # these do not affect the numbers
    keys = sorted((saved.keys() | current.keys()) - {"name", "fields", "graph"})
    different: list[str] = []
    for key in keys:
        was = saved.get(key)
        now = current.get(key)
        if isinstance(was, Mapping) and isinstance(now, Mapping):
            different += [f"{key}.{inner}" for inner in _differences(was, now)]
        elif was != now:
            different.append(f"{key} {_shortened(was)}, now {_shortened(now)}")
    return different


def _shortened(value: object) -> str:
    if isinstance(value, Mapping):
        return f"a {value.get('type', 'description')}"
    return repr(value)


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    text = ", ".join(listed[:_MOST_NAMES])
    if len(listed) > _MOST_NAMES:
        text += f" and {len(listed) - _MOST_NAMES} more"
    return text
