"""What must be written down so that a run goes on as if it had never stopped?

Idea: all that a step reads and changes: weights, masters, optimizer state, loss scales, counters, dice. The model is
written in FP32 under plain names, so that whoever knows nothing of mixed precision can load it. What cannot be put
into an engine, because it was built otherwise, is refused with the difference.

Invariant: state -> go_on -> state is the identity, flat or not; a run that goes on is bit-equal to one never stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from labkit.amp.casting.lists import LISTS, POLICY
from labkit.amp.masters.convert import uncompiled
from labkit.amp.scaling.scaler import ScalerState

if TYPE_CHECKING:
    from labkit.amp.engine import Engine

KEYS = ("model", "weights", "optimizer", "scalers", "recipe", "policy", "steps", "skips_in_a_row")


def state_of(engine: Engine) -> dict[str, Any]:
    """Return what `Engine.state_dict` promises. Its tensors are the engine's own: write them before the next step."""
    return {
        "model": fp32_model(engine),
        "weights": engine.weights.state_dict(),
        "optimizer": type(engine.optimizer).__name__,
        "scalers": [asdict(scaler) for scaler in engine.scalers],
        "recipe": engine.recipe.as_dict(),
        "policy": _policy(),
        "steps": engine.steps,
        "skips_in_a_row": engine.skips_in_a_row,
    }


def go_on(engine: Engine, state: Mapping[str, Any]) -> None:
    """Put a state back into an engine that was built as the one that wrote it."""
    _require_same(engine, state)
    _load(engine, state["model"])
    engine.weights.load_state_dict(state["weights"])
    engine.scalers = [ScalerState(**scaler) for scaler in state["scalers"]]
    engine.steps, engine.skips_in_a_row = state["steps"], state["skips_in_a_row"]


@torch.no_grad()
def begin_with(engine: Engine, model: Mapping[str, Any]) -> None:
    """Put a plain state dict into the model, and all its digits into the masters."""
    _load(engine, model)
    for name, master in engine.weights.named_masters().items():
        master.copy_(model[name])
    engine.weights.copy_back()


def _load(engine: Engine, stored: Mapping[str, Any]) -> None:
    model = uncompiled(engine.model)
    own = model.state_dict()
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
    model.load_state_dict(stored)


def _require_same(engine: Engine, state: Mapping[str, Any]) -> None:
    lacking = [key for key in KEYS if key not in state]
    if lacking:
        raise ValueError(
            f"this is no state of an engine: it lacks {_some(lacking)}. A plain torch state dict goes into "
            "engine.load_model(...)."
        )
    here, anew = state_of(engine), "To begin anew from its weights: engine.load_model(state['model'])."
    if here["optimizer"] != state["optimizer"]:
        raise ValueError(f"it was saved with {state['optimizer']}, and the engine steps {here['optimizer']}. {anew}")
    for part, what in (("recipe", "under another recipe"), ("policy", "with other autocast lists")):
        differ = _differences(state[part], here[part])
        if differ:
            raise ValueError(f"it was saved {what}: {_some(differ)}. Build the engine with the same one. {anew}")
    if len(here["scalers"]) != len(state["scalers"]):
        raise ValueError(
            f"it was saved with {len(state['scalers'])} losses, and the engine has {len(here['scalers'])}: make it "
            f"with losses={len(state['scalers'])}. {anew}"
        )
    groups = [[len(g["params"]) for g in s["weights"]["optimizer"]["param_groups"]] for s in (state, here)]
    names = [list(s["weights"]["master"]) for s in (state, here)]
    if groups[0] != groups[1] or names[0] != names[1]:  # the optimizer's state goes by the order of its parameters
        unlike = sorted(set(names[0]) ^ set(names[1])) or ["the same ones in other groups or in another order"]
        raise ValueError(
            f"the optimizer stepped other parameters when it was saved: {_some(unlike)}. Freeze the same ones, and "
            f"make the same groups. {anew}"
        )


def _differences(stored: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    keys = sorted((stored.keys() | here.keys()) - {"name"})  # what a recipe is called does not matter
    return [f"{k} {stored.get(k)!r}, here {here.get(k)!r}" for k in keys if stored.get(k) != here.get(k)]


def _some(names: Iterable[str]) -> str:
    every = list(names)
    return ", ".join(every[:3]) + (f" and {len(every) - 3} more" if len(every) > 3 else "")


def _policy() -> dict[str, str]:
    """Return what was registered on top of autocast's lists: operation -> rule."""
    now = {name: entry.rule for name, entry in LISTS.table.items() if not name.startswith("__")}
    return {name: rule.value for name, rule in now.items() if name not in POLICY or POLICY[name].rule is not rule}


def fp32_model(engine: Engine, best: Mapping[str, Tensor] | None = None) -> dict[str, Any]:
    """Return the model's state dict in FP32: `best` weights by name, masters unless given, else the model's own."""
    weights = engine.weights
    given = best if best is not None else weights.named_masters() if weights.master else {}
    by_weight: dict[Tensor, Tensor] = {p: given[name] for p, name in weights.names.items() if name in given}
    stored = uncompiled(engine.model).state_dict(keep_vars=True)  # a tied weight stands there under each of its names
    return {k: _fp32(by_weight.get(v, v)) if isinstance(v, Tensor) else v for k, v in stored.items()}


def _fp32(tensor: Tensor) -> Tensor:
    return tensor.detach().float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor.detach()
