"""What must be written down so that a run goes on as if it had never stopped?

Idea: all that a step reads and changes: weights, masters, optimizer state, loss scales, counters, random numbers. The
model is written in FP32 under plain names, so that whoever knows nothing of mixed precision can load it. What cannot be
put into an engine, because it was built otherwise, is refused with the difference.

Invariant: state_dict -> load_state_dict -> state_dict is the identity, flat or not; a run that goes on is bit-equal to
one never stopped; a state that does not fit changes nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from labkit.amp.casting.lists import LISTS, POLICY
from labkit.amp.gradients import StepGradients
from labkit.amp.masters.convert import uncompiled
from labkit.amp.masters.weights import Weights
from labkit.amp.recipe import Recipe
from labkit.amp.scales.products import Products
from labkit.amp.scaling.scaler import ScalerState

KEYS = ("model", "weights", "optimizer", "scalers", "recipe", "policy", "steps", "skips_in_a_row")
_RENAMED = {"gradients": "gradient_format"}  # fields of a recipe, by the names that older states give them
_BEGIN_ANEW = "To begin anew from its weights: engine.load_model(state['model'])."


class Resumable:
    """The part of an engine that a step changes, and that can be written down and read back."""

    model: nn.Module
    weights: Weights
    recipe: Recipe
    scalers: list[ScalerState]
    products: Products | None
    steps: int
    skips_in_a_row: int
    _gradients: StepGradients

    def state_dict(self) -> dict[str, Any]:
        """Return all that a step changes, in values and tensors that `torch.load(weights_only=True)` reads.

        "model" is a plain FP32 state dict with the masters' digits: a torch model that knows nothing of us loads it.
        The tensors are the engine's own: write them before the next step.

        Raises:
            RuntimeError: gradients are on their way to a step; they are not part of it.
        """
        if self._gradients.wait:
            raise RuntimeError("gradients wait for a step, and a checkpoint holds none. Save it after step().")
        return self._state()

    def _state(self) -> dict[str, Any]:
        return {
            "model": self.fp32_model(),
            "weights": self.weights.state_dict(),
            "optimizer": type(self.weights.optimizer).__name__,
            "scalers": [asdict(scaler) for scaler in self.scalers],
            "recipe": self.recipe.as_dict(),
            "policy": _policy(),
            "steps": self.steps,
            "skips_in_a_row": self.skips_in_a_row,
        } | ({"products": self.products.memory.state_dict()} if self.products is not None else {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned, bit for bit; gradients that are here are forgotten.

        Raises:
            ValueError: it is of another network, optimizer or recipe, or damaged; the message says which, and what
                would do. Then nothing has changed.
        """
        with _in_words():
            require_same(self._state(), state)
            scalers = [ScalerState(**scaler) for scaler in state["scalers"]]
            steps, skips = int(state["steps"]), int(state["skips_in_a_row"])
            with self._loading(state["model"]), self._loading_products(state):
                self.weights.load_state_dict(state["weights"])
        self.resume_at(scalers, steps, skips)

    def resume_at(self, scalers: list[ScalerState], steps: int, skips_in_a_row: int) -> None:
        """Go on with these scalers and counters, and without gradients, once the weights are there."""
        self.scalers, self.steps, self.skips_in_a_row = scalers, steps, skips_in_a_row
        self.weights.zero_grad()
        self._gradients = StepGradients(self.weights)

    def fp32_model(self, averages: Mapping[str, Tensor] | None = None) -> dict[str, Any]:
        """Return the model's state dict in FP32, with the masters' digits; to hand to a plain torch model.

        averages stand for the masters where they are given: parameter name -> FP32 weight.
        """
        weights = self.weights
        given = averages if averages is not None else weights.named_masters() if weights.master else {}
        by_weight: dict[Tensor, Tensor] = {p: given[name] for p, name in weights.names.items() if name in given}
        stored = uncompiled(self.model).state_dict(keep_vars=True)  # a tied weight stands there under each of its names
        return {k: _fp32(by_weight.get(v, v)) if isinstance(v, Tensor) else v for k, v in stored.items()}

    @torch.no_grad()
    def load_model(self, state: Mapping[str, Any]) -> None:
        """Begin with the weights of a plain torch state dict, in any precision; the rest of the engine stays as it is.

        Raises:
            ValueError: it is of another network; the message names what is missing or too much. Then nothing has
                changed.
        """
        with _in_words(), self._loading(state):
            pass
        for name, master in self.weights.named_masters().items():
            master.copy_(state[name])
        self.weights.copy_back()

    @contextmanager
    def _loading(self, stored: Mapping[str, Any]) -> Iterator[None]:
        """Load the model; take it back if that fails, or what the `with` block does."""
        model = uncompiled(self.model)
        _require_fitting(model.state_dict(), stored)
        self.weights.adopt_edits()
        before = copy.deepcopy(model.state_dict())
        try:
            model.load_state_dict(stored)
            yield
        except BaseException:
            model.load_state_dict(before)
            raise

    @contextmanager
    def _loading_products(self, state: Mapping[str, Any]) -> Iterator[None]:
        """Load what the products' scales remember; take it back if what the `with` block does fails."""
        if self.products is None:
            yield
            return
        before = self.products.memory.state_dict()
        self.products.memory.load_state_dict(state["products"])
        try:
            yield
        except BaseException:
            self.products.memory.load_state_dict(before)
            raise


@contextmanager
def _in_words() -> Iterator[None]:
    """Turn what goes wrong with a state of the wrong build into the ValueError that is promised."""
    try:
        yield
    except ValueError:
        raise
    except (KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
        said = f"{type(error).__name__}: {error}"
        raise ValueError(f"this state cannot be loaded, and nothing has changed ({said})") from error


def _require_fitting(own: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
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
    lacking = [key for key in KEYS if key not in state]
    if lacking:
        raise ValueError(
            f"this is no state of an engine: it lacks {_some(lacking)}. A plain torch state dict goes into "
            "engine.load_model(...)."
        )
    if here["optimizer"] != state["optimizer"]:
        raise ValueError(
            f"it was saved with {state['optimizer']}, and the engine steps {here['optimizer']}. {_BEGIN_ANEW}"
        )
    recipe = _named_as_now(state["recipe"])
    for part, stored, what in (
        ("recipe", recipe, "under another recipe"),
        ("policy", state["policy"], "with other autocast lists"),
    ):
        differ = _differences(stored, here[part])
        if differ:
            raise ValueError(f"it was saved {what}: {_some(differ)}. Build the engine with the same one. {_BEGIN_ANEW}")
    _require_same_fields(here["recipe"]["fields"], _named_as_now(recipe.get("fields", {})))
    _require_same_parts(here, state)


def _require_same_parts(here: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Refuse a state of more or fewer losses, or of other parameters, other groups or another order of them."""
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


def _named_as_now(recipe: Mapping[str, Any]) -> dict[str, Any]:
    return {_RENAMED.get(name, name): value for name, value in recipe.items()}


def _require_same_fields(here: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
    """Refuse a format or an accumulator of the same name and other numbers; an older state knows names alone."""
    for part, values in stored.items():
        differ = _differences(values, here[part])
        if differ:
            raise ValueError(
                f"it was saved with another {part} of the same name: {_some(differ)}. Build the engine with "
                f"the same one. {_BEGIN_ANEW}"
            )


def _differences(stored: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    keys = sorted((stored.keys() | here.keys()) - {"name", "fields", "graph"})  # what it is called, and how it is run
    found: list[str] = []
    for k, was, now in ((k, stored.get(k), here.get(k)) for k in keys):
        if isinstance(was, Mapping) and isinstance(now, Mapping):
            found += [f"{k}.{more}" for more in _differences(was, now)]
        elif was != now:
            found.append(f"{k} {_short(was)}, here {_short(now)}")
    return found


def _short(value: Any) -> str:
    return f"a {value.get('type', 'description')}" if isinstance(value, Mapping) else repr(value)


def _some(names: Iterable[str]) -> str:
    every = list(names)
    return ", ".join(every[:3]) + (f" and {len(every) - 3} more" if len(every) > 3 else "")


def _policy() -> dict[str, str]:
    """Return what was registered on top of autocast's lists: operation -> rule."""
    now = {name: entry.rule for name, entry in LISTS.table.items() if not name.startswith("__")}
    return {name: rule.value for name, rule in now.items() if name not in POLICY or POLICY[name].rule is not rule}


def _fp32(tensor: Tensor) -> Tensor:
    return tensor.detach().float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor.detach()
