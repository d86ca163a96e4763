"""Which models and losses can an engine train with, and what is said of the others?"""

from __future__ import annotations

from collections.abc import Container

import torch
from torch import Tensor, nn

from labkit.amp.recipe import Recipe

LOSS_INSIDE_MODEL = (
    "The model computed its loss itself, in FP16, so the scale itself must fit FP16, which ends at 65504: at 2^16 a "
    "step is skipped. Let the model return its outputs, and compute the loss outside of it: "
    "`with engine.forward(): loss = loss_function(engine(inputs), targets)`."
)


def require_given(make_optimizer: object, recipe: object, losses: int) -> None:
    """Raise ValueError for arguments that no engine can be made of."""
    if not isinstance(recipe, Recipe) or not callable(make_optimizer) or losses < 1:
        raise ValueError(
            f"an engine takes a function that makes an optimizer, a Recipe, and 1 loss or more; it was given "
            f"{make_optimizer!r}, {recipe!r} and losses={losses}. For example: "
            'Engine(model, partial(torch.optim.SGD, lr=0.1), RECIPES["O2"]).'
        )


def require_trainable(model: object) -> nn.Module:
    """Return the model, if its parameters can be trained in mixed precision.

    Raises:
        ValueError: it is no module, it has no parameter that requires a gradient, or one that is complex, FP64, or made
            under inference_mode.
    """
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
        _require_single(name, p)
    return model


def _require_single(name: str, p: Tensor) -> None:
    """Refuse a parameter that can have no gradient, or has more digits than a recipe keeps."""
    if p.is_inference():
        raise ValueError(
            f"parameter {name!r} was made under torch.inference_mode(), and such a tensor never gets a gradient. Make "
            "the model outside of that block, or train copy.deepcopy(model), made outside of it."
        )
    if p.dtype == torch.float64:
        raise ValueError(
            f"parameter {name!r} is FP64, and a recipe's widest format is FP32: its digits would be lost without a "
            "word. If that is meant, model.float() before the engine is made."
        )


def require_numbers(model: nn.Module) -> None:
    """Refuse a model of which some tensors are on the meta device.

    Raises:
        RuntimeError: the message names one.
    """
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
    if _holds_other(model, known):
        new = [name for name, p in model.named_parameters() if p.requires_grad and id(p) not in known]
        raise RuntimeError(
            f"parameter {new[0]!r} came into the model after the engine was made, by a layer that was added or "
            "replaced, so the optimizer does not step it. Make the engine after the last change of the model."
        )


def _holds_other(model: nn.Module, known: Container[int]) -> bool:
    """Whether a trainable parameter is not known; every step asks, so without the generators of parameters()."""
    modules: list[nn.Module | None] = [model]
    while modules:
        module = modules.pop()
        if module is None:
            continue
        for p in module._parameters.values():
            if id(p) not in known and p is not None and p.requires_grad:
                return True
        modules += module._modules.values()
    return False


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
