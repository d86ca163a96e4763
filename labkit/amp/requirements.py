"""What an engine refuses, in words: models and losses that it cannot train, and states that do not fit it.

A state is of the engine that saved it. One of another network, optimizer, recipe or build would go on otherwise, so it
is refused with the difference.

Invariant: whatever is refused is refused before anything has changed.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from labkit.amp.recipe import Recipe

STATE_KEYS = ("model", "weights", "optimizer", "scalers", "recipe", "policy", "steps", "skips_in_a_row")
_BEGIN_ANEW = "To begin anew from its weights: engine.load_model(state['model'])."
LOSS_INSIDE_MODEL = (
    "The model computed its loss itself, in FP16, so the scale itself must fit FP16, which ends at 65504: at 2^16 a "
    "step is skipped. Let the model return its outputs, and compute the loss outside of it: "
    "`with engine.forward(): loss = loss_function(engine(inputs), targets)`."
)


def require_trainable(model: object, make_optimizer: object, recipe: object, losses: int) -> None:
    """Refuse what no engine can be made of, and a model whose parameters cannot be trained in mixed precision.

    Raises:
        ValueError: make_optimizer is no function, recipe is no Recipe, or there are no losses; the model is no module,
            it has no parameter that requires a gradient, or one that is complex, FP64, or made under inference_mode.
        RuntimeError: some of its tensors are on the meta device; the message names one.
    """
    if not isinstance(recipe, Recipe) or not callable(make_optimizer) or losses < 1:
        raise ValueError(
            f"an engine takes a function that makes an optimizer, a Recipe, and 1 loss or more; it was given "
            f"{make_optimizer!r}, {recipe!r} and losses={losses}. For example: "
            'Engine(model, partial(torch.optim.SGD, lr=0.1), RECIPES["O2"]).'
        )
    if not isinstance(model, nn.Module):
        of_modules = isinstance(model, list | tuple) and all(isinstance(layer, nn.Module) for layer in model)
        hint = " nn.Sequential(*layers) makes one of a list of layers." if of_modules else ""
        raise ValueError(f"an engine trains a torch.nn.Module; it was given a {type(model).__name__}.{hint}")
    parameters = dict(model.named_parameters())
    if not parameters:
        raise ValueError(f"this {type(model).__name__} has no parameters: there is nothing to train.")
    trainable = {name: p for name, p in parameters.items() if p.requires_grad}
    if not trainable:
        raise ValueError(
            f"all {len(parameters)} parameters of this {type(model).__name__} are frozen (requires_grad=False): there "
            "is nothing to train. Let some layer learn: model.head.requires_grad_(True)."
        )
    for name, p in trainable.items():
        if p.is_complex():
            raise ValueError(
                f"parameter {name!r} is complex ({p.dtype}), and no recipe has a format for it. Keep its real and "
                "imaginary part as one real parameter: torch.view_as_real, and torch.view_as_complex where it is used."
            )
    for name, p in parameters.items():
        if p.is_inference():
            raise ValueError(
                f"parameter {name!r} was made under torch.inference_mode(), and such a tensor never gets a gradient. "
                "Make the model outside of that block, or train copy.deepcopy(model), made outside of it."
            )
        if p.dtype == torch.float64:
            raise ValueError(
                f"parameter {name!r} is FP64, and a recipe's widest format is FP32: its digits would be lost without a "
                "word. If that is meant, model.float() before the engine is made."
            )
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta:
            raise RuntimeError(
                f"{name!r}: expected a tensor with numbers, got one on the meta device, which has a shape alone. "
                "Before the engine is made: model.to_empty(device=...), then model.load_state_dict(...)."
            )


def require_known(model: nn.Module, known: Container[int]) -> None:
    """Refuse a model that got a layer after its engine was made, which no optimizer would step.

    Raises:
        RuntimeError: a parameter that requires a gradient is not `known` by its id(); the message names it.
    """
    modules: list[nn.Module | None] = [model]
    while modules:  # every step asks, so without the generators of parameters()
        module = modules.pop()
        for p in () if module is None else module._parameters.values():
            if id(p) not in known and p is not None and p.requires_grad:
                new = next(n for n, q in model.named_parameters() if q.requires_grad and id(q) not in known)
                raise RuntimeError(
                    f"parameter {new!r} came into the model after the engine was made, by a layer that was added or "
                    "replaced, so the optimizer does not step it. Make the engine after the last change of the model."
                )
        modules += () if module is None else module._modules.values()


def require_loss(loss: object) -> None:
    """Refuse what no backward pass can begin with.

    Raises:
        TypeError: it is no tensor.
        ValueError: it has more than one element.
        RuntimeError: it depends on no parameter.
    """
    if not isinstance(loss, Tensor):
        raise TypeError(
            f"backward() takes the loss as the tensor that the forward pass computed; it was given {loss!r}, from "
            "which no way leads back to the weights. Leave out .item() and float()."
        )
    if loss.numel() != 1:
        raise ValueError(f"a loss is one number; this one has the shape {tuple(loss.shape)}. Take its mean() or sum().")
    if not loss.requires_grad:
        raise RuntimeError(
            "this loss depends on no parameter: it was computed under torch.no_grad(), detached, or from other tensors."
        )


@contextmanager
def in_words() -> Iterator[None]:
    """Turn what goes wrong with a state of the wrong build into the ValueError that is promised."""
    try:
        yield
    except ValueError:
        raise
    except (KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
        said = f"{type(error).__name__}: {error}"
        raise ValueError(f"this state cannot be loaded, and nothing has changed ({said})") from error


def require_same_network(own: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
    """Refuse the weights of another network, by the names or shapes that differ."""
    missing, unknown = [k for k in own if k not in stored], [k for k in stored if k not in own]
    both = [k for k in own if isinstance(own[k], Tensor) and isinstance(stored.get(k), Tensor)]
    shapes = [
        f"{k}: {tuple(stored[k].shape)} for {tuple(own[k].shape)}" for k in both if own[k].shape != stored[k].shape
    ]
    for what, names in (("lacks", missing), ("has what the model lacks:", unknown), ("has other shapes:", shapes)):
        if names:
            raise ValueError(
                f"these weights are of another network: it {what} {_some(names)}. Build the model that they were saved "
                "from; to take only what fits, model.load_state_dict(..., strict=False) before the engine is made."
            )


def require_same(here: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Refuse a state of another optimizer, recipe or build than the one `here`.

    Raises:
        ValueError: the message says what differs, and what would do.
    """
    lacking = [key for key in STATE_KEYS if key not in state]
    if lacking:
        raise ValueError(
            f"this is no state of an engine: it lacks {_some(lacking)}. A plain torch state dict goes into "
            "engine.load_model(...)."
        )
    if here["optimizer"] != state["optimizer"]:
        raise ValueError(
            f"it was saved with {state['optimizer']}, and the engine steps {here['optimizer']}. {_BEGIN_ANEW}"
        )
    own, stored = here["recipe"]["fields"], state["recipe"]["fields"]
    for now, was, what in (
        (here["recipe"], state["recipe"], "under another recipe"),
        (here["policy"], state["policy"], "with other autocast lists"),
        *((own.get(part, {}), was, f"with another {part} of the same name") for part, was in stored.items()),
    ):
        if differ := _differences(was, now):
            raise ValueError(f"it was saved {what}: {_some(differ)}. Build the engine with the same one. {_BEGIN_ANEW}")
    if len(here["scalers"]) != len(state["scalers"]):
        raise ValueError(
            f"it was saved with {len(state['scalers'])} losses, and the engine has {len(here['scalers'])}: make it "
            f"with losses={len(state['scalers'])}. {_BEGIN_ANEW}"
        )
    groups = [[len(g["params"]) for g in s["weights"]["optimizer"]["param_groups"]] for s in (state, here)]
    names = [list(s["weights"]["master"]) for s in (state, here)]
    if groups[0] != groups[1] or names[0] != names[1]:  # the optimizer's state goes by the order of its parameters
        unlike = sorted(set(names[0]) ^ set(names[1])) or ["the same ones in other groups or in another order"]
        raise ValueError(
            f"the optimizer stepped other parameters when it was saved: {_some(unlike)}. Freeze the same ones, and "
            f"make the same groups. {_BEGIN_ANEW}"
        )


def _differences(stored: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    keys = sorted((stored.keys() | here.keys()) - {"name", "fields", "graph"})  # what it is called, and how it is run
    found: list[str] = []
    for k, was, now in ((k, stored.get(k), here.get(k)) for k in keys):
        if isinstance(was, Mapping) and isinstance(now, Mapping):
            found += [f"{k}.{more}" for more in _differences(was, now)]
        elif was != now:
            short = [f"a {v.get('type', 'description')}" if isinstance(v, Mapping) else repr(v) for v in (was, now)]
            found.append(f"{k} {short[0]}, here {short[1]}")
    return found


def _some(names: Iterable[str]) -> str:
    every = list(names)
    return ", ".join(every[:3]) + (f" and {len(every) - 3} more" if len(every) > 3 else "")
