"""The record of a run: what was asked, what happened, where, and with what.

Idea: everything that runs returns a record, and every plot, test and exercise reads one. A record says on which device
and versions it was made, so that no curve can pass for one made elsewhere. A fingerprint, twelve letters made of all
their values, tells whether it is a record of this very task and this very recipe.

Invariant: load(save(record)) == record, infinities and NaNs included; a file is either whole or not there. The
categories of memory do not overlap; every tensor that a step leaves behind is counted once, by its storage.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labkit.amp import Engine, ProductFormat, Recipe, WeightRounding
from labkit.instrument import ExponentHistogram, GradSnapshot
from labkit.records import refuse_simulated, write_atomic
from labkit.train.tasks import Task

SCHEMA = "labkit.run/1"


@dataclass(frozen=True)
class StepRecord:
    """One training step.

    step       number of the step, from 1
    loss       unscaled, FP32
    scale      loss scale used in this step
    found_inf  some gradient held inf or NaN
    stepped    the weights moved
    underflow  share of the activation gradients' elements that are non-zero in FP32 and zero here (same weights, same
               batch), 0 to 1; None where it was not measured
    swallowed  share of the weights with a gradient that are the same number after the step as before, 0 to 1: of the
               master weights where there are any; None where it was not measured or nothing was stepped
    """

    step: int
    loss: float
    scale: float
    found_inf: bool
    stepped: bool
    underflow: float | None = None
    swallowed: float | None = None


@dataclass(frozen=True)
class RunRecord:
    """A whole run.

    seconds   wall time of the training, without preparing the data
    date      UTC, ISO 8601
    stopped   the run was stopped before its last step
    snapshots histograms of the FP32 gradients that were watched, in the order they were taken
    fingerprint  of task and recipe, where a race made it (`fingerprint`); "" elsewhere
    step_seconds  median seconds of a step in which nothing was measured, alone on its device; None where nobody timed
              one. Two equal runs may differ in it
    arithmetic  how products were computed: torch setting -> value (`labkit.records.arithmetic_settings`);
              empty where it was not recorded
    memory    bytes by category after the first step that was not skipped (`bytes_held`); empty where nobody counted
    """

    task: str
    recipe: str
    seed: int
    steps: tuple[StepRecord, ...]
    metric: float
    metric_name: str
    seconds: float
    device: str
    versions: dict[str, str]
    date: str
    stopped: bool = False
    snapshots: tuple[GradSnapshot, ...] = ()
    fingerprint: str = ""
    memory: dict[str, int] = field(default_factory=dict)
    arithmetic: dict[str, str] = field(default_factory=dict)
    step_seconds: float | None = field(default=None, compare=False)

    @property
    def final_loss(self) -> float:
        """Mean loss of the last 10 steps; NaN when nothing ran."""
        tail = [s.loss for s in self.steps[-10:]]
        return sum(tail) / len(tail) if tail else math.nan

    @property
    def skipped(self) -> int:
        """How many steps did not move the weights."""
        return sum(not s.stepped for s in self.steps)

    @property
    def steps_per_second(self) -> float | None:
        """How fast this run trained on its device; None where no step was timed."""
        return 1 / self.step_seconds if self.step_seconds else None

    def save(self, path: str | Path) -> Path:
        """Write the record as JSON, one list for each field of a step; return the path.

        Raises:
            ValueError: a simulated device trained it, and the path lies in the lab's own data folder.
        """
        refuse_simulated(self.device, Path(path))
        columns = {f.name: [_pack(getattr(s, f.name)) for s in self.steps] for f in fields(StepRecord)}
        head = {f.name: _pack(getattr(self, f.name)) for f in fields(self) if f.name not in ("steps", "snapshots")}
        whole = {"schema": SCHEMA, **head, "steps": columns, "snapshots": [_pack_snapshot(s) for s in self.snapshots]}
        text = json.dumps(whole, allow_nan=False)
        return write_atomic(Path(path), text.encode())


def load(path: str | Path) -> RunRecord:
    """Read a record that `RunRecord.save` wrote.

    Raises:
        ValueError: the file is not such a record; the message says what it is instead.
    """
    try:
        stored = json.loads(Path(path).read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a run record: it is not JSON ({error})") from error
    if not isinstance(stored, dict) or stored.get("schema") != SCHEMA:
        found = stored.get("schema") if isinstance(stored, dict) else type(stored).__name__
        raise ValueError(f"{path} is not a run record: its schema is {found!r}, and {SCHEMA!r} is what can be read")
    try:
        return _record_of(stored)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a run record: a part is missing or of another kind ({error!r})") from error


def _record_of(stored: dict[str, Any]) -> RunRecord:
    columns, snapshots = stored.pop("steps"), stored.pop("snapshots", [])
    columns.setdefault("swallowed", [None] * len(columns["step"]))  # a record from before there were these
    del stored["schema"]
    rows = zip(*(columns[f.name] for f in fields(StepRecord)), strict=True)
    steps = tuple(StepRecord(*(_unpack(value) for value in row)) for row in rows)
    head = {k: v if k in _TEXT else _unpack(v) for k, v in stored.items()}
    return RunRecord(steps=steps, snapshots=tuple(map(_unpack_snapshot, snapshots)), **head)


_TEXT = ("task", "recipe", "metric_name", "device", "versions", "date", "fingerprint")


def _pack(value: Any) -> Any:
    """JSON has no word for inf and NaN: they travel as text."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _unpack(value: Any) -> Any:
    return float(value) if isinstance(value, str) else value


def _pack_snapshot(snapshot: GradSnapshot) -> dict[str, Any]:
    layers = {name: {**vars(h), "counts": h.counts.tolist()} for name, h in snapshot.layers.items()}
    return {"step": snapshot.step, "kind": snapshot.kind, "layers": layers}


def _unpack_snapshot(stored: dict[str, Any]) -> GradSnapshot:
    layers = {
        name: ExponentHistogram(**{**h, "counts": np.array(h["counts"], dtype=np.int64)})
        for name, h in stored["layers"].items()
    }
    return GradSnapshot(stored["step"], stored["kind"], layers)


_ADDED = ", margin=0"  # a field of a recipe's products that what is on record does not have
_WRITTEN = {"gradient_format": "gradients"}  # a field was renamed: what is on record keeps its fingerprint


def fingerprint(task: Task, recipe: Recipe) -> str:
    """Return twelve letters that change when a value of the task or the recipe does, or the function behind one.

    The same in every process. The code inside a function is not looked at: who rewrites a network gives its task
    another name.

    Raises:
        ValueError: a value cannot be told from another by its text: a lambda, a function or class made inside another
            function, an object that prints as nothing but its address; the message says which.

    >>> from dataclasses import replace
    >>> from labkit.amp import RECIPES
    >>> from labkit.train import TASKS
    >>> fingerprint(TASKS["digits"], RECIPES["O1"]) == fingerprint(replace(TASKS["digits"], steps=3), RECIPES["O1"])
    False
    """
    said = ("about", "margin")  # of a run, not part of it
    values = [(f, getattr(thing, f.name)) for thing in (task, recipe) for f in fields(thing) if f.name not in said]
    # Defaults are left out, so a record stays valid when recipes learn to say something new.
    parts = [f"{_WRITTEN.get(f.name, f.name)}={_spell(value, f.name)}" for f, value in values if value != f.default]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def _spell(value: Any, where: str) -> str:
    """Write a value of the field `where` as its repr, but whole and without addresses: functions by their names."""
    if isinstance(value, partial):
        return f"{_spell(value.func, where)}{[_spell(given, where) for given in value.args]}" + _spell(
            sorted(value.keywords.items()), where
        )
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_spell(key, where)}: {_spell(each, where)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        written = ", ".join(_spell(each, where) for each in value)
        return f"[{written}]" if isinstance(value, list) else f"({written}{',' * (len(value) == 1)})"
    if isinstance(value, torch.Tensor | np.ndarray):  # a repr leaves out digits, and the middle of a long one
        return f"{value.dtype}{value.tolist()}"
    if isinstance(value, torch.nn.Module):
        own = {  # what its repr leaves out: the gamma of a loss of one's own, weights, buffers
            f"{path}.{name}": each
            for path, part in value.named_modules()
            for name, each in vars(part).items()
            if not name.startswith("_") and name != "training"
        }
        own |= dict(value.named_parameters()) | dict(value.named_buffers())
        return f"{_name(type(value), where)}{value!r}{_spell(own, where)}"
    if hasattr(value, "__qualname__"):
        return _name(value, where)
    if re.search(r" at 0x[0-9a-fA-F]+", text := repr(value)):
        raise ValueError(_nameless(where, text) + "Make its class a frozen dataclass, or give it a __repr__.")
    return text.replace(_ADDED, "") if isinstance(value, ProductFormat) else text


def _name(function: Any, where: str) -> str:
    """Return the name of a function or class, with the module of one that is neither the lab's nor torch's."""
    name, owner = str(function.__qualname__), getattr(function, "__self__", None)
    if "<lambda>" in name or "<locals>" in name:
        raise ValueError(_nameless(where, name) + "Write it as a function (def) at the top of a module or a notebook.")
    if isinstance(function, MethodType) and not isinstance(owner, type):
        return f"{_spell(owner, where)}.{function.__name__}"
    module = str(getattr(function, "__module__", None) or "torch")
    return name if module.split(".")[0] in ("labkit", "torch") else f"{module}.{name}"


def _nameless(where: str, text: str) -> str:
    return (
        f"{where} holds {text}, which does not say what it does: another one would look the same, and its run on "
        "record would be taken for this one's. "
    )


CATEGORIES = ("weights", "master weights", "gradients", "optimizer state")


def bytes_held(engine: Engine) -> dict[str, int]:
    """Return bytes by category, as an engine holds them after a step.

    What Kahan's compensation remembers counts among the masters, whose work it does: one more number for each weight.
    A gradient is counted in the model's format, in which the backward pass leaves it: one for each trainable weight.

    >>> import torch
    >>> from labkit.amp import RECIPES
    >>> engine = Engine(torch.nn.Linear(4, 1), torch.optim.SGD, RECIPES["O2"])  # 4 weights and a bias
    >>> bytes_held(engine)
    {'weights': 10, 'master weights': 20, 'gradients': 10, 'optimizer state': 0}
    """
    weights = engine.weights
    model, seen = list(engine.model.parameters()), set[int]()
    own = _count(model, seen)
    masters = _count(weights.master_weights, seen) if weights.master else 0
    if weights.rounding is WeightRounding.KAHAN and not weights.master:
        masters = sum(p.numel() * p.element_size() for p in weights.model_weights if p.element_size() == 2)
    gradients = sum(p.numel() * p.element_size() for p in weights.model_weights)
    moments = [v for state in engine.optimizer.state.values() for v in state.values() if isinstance(v, Tensor)]
    return dict(zip(CATEGORIES, (own, masters, gradients, _count(moments, seen)), strict=True))


def _count(tensors: Iterable[Tensor], seen: set[int]) -> int:
    total = 0
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            total += storage.nbytes()
    return total
