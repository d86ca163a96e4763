"""Records of training runs: steps, metric, memory, provenance; saving, loading and fingerprints.

Idea: every run returns a record, and plots, tests and exercises read records. A record names its
device and versions, so that no curve can pass for one made elsewhere. A fingerprint, a hash of all
values of task and recipe, identifies what was trained.

Invariant: a loaded record has the values that were saved, infinities and NaNs included; a file is
complete or does not exist. The categories of memory do not overlap: every tensor is counted once,
by its storage.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from pathlib import Path
from types import BuiltinMethodType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labkit.amp import Engine, ProductFormat, Recipe, WeightRounding
from labkit.formats.arguments import require_kind
from labkit.instrument import ExponentHistogram, GradSnapshot
from labkit.instrument.sample import storage_bytes
from labkit.records import parse_record, refuse_simulated, write_atomic
from labkit.train.drawing import Picture
from labkit.train.tasks import Task

SCHEMA = "labkit.run/1"


@dataclass(frozen=True)
class StepRecord:
    """One training step.

    Attributes:
        step: number of the step, from 1.
        loss: unscaled, FP32.
        scale: loss scale of this step.
        found_inf: some gradient contains inf or NaN.
        stepped: the optimizer stepped.
        underflow: share of the activation gradients' elements that are non-zero in FP32 and zero in
            the run (same weights, same batch), 0 to 1; None where not measured.
        swallowed: share of the weights with a gradient that the step left unchanged, 0 to 1: of the
            master weights if the recipe has them; None where not measured or skipped.
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
    """A training run.

    Attributes:
        seconds: wall time of the training, without data preparation.
        date: UTC, ISO 8601.
        stopped: the run was stopped before its last step.
        snapshots: histograms of FP32 gradients, in the order they were taken.
        pictures: pictures of test results, in the order they were taken; empty if the task has no
            drawing.
        fingerprint: of task and recipe (`fingerprint`); "" outside of `train_grid`.
        memory: bytes by category after the first step that was not skipped (`bytes_held`); empty
            where not measured.
        arithmetic: torch setting -> value (`labkit.records.arithmetic_settings`); empty where not
            recorded.
        step_seconds: median seconds of a step without measurements, alone on its device; None where
            not timed. Not part of a comparison of two records.
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
    pictures: tuple[Picture, ...] = ()

    @property
    def final_loss(self) -> float:
        """Mean loss of the last 10 steps; NaN without steps."""
        tail = [s.loss for s in self.steps[-10:]]
        return sum(tail) / len(tail) if tail else math.nan

    @property
    def skipped(self) -> int:
        """Number of skipped steps."""
        return sum(not s.stepped for s in self.steps)

    @property
    def steps_per_second(self) -> float | None:
        """Training steps a second on the run's device; None where no step was timed."""
        return 1 / self.step_seconds if self.step_seconds else None

    def save(self, path: str | Path) -> Path:
        """Write the record as JSON, one list for each field of a step; return the path.

        Raises:
            ValueError: a simulated device trained it, and the path is in the lab's data folder.
        """
        refuse_simulated(self.device, Path(path))
        content: dict[str, Any] = {"schema": SCHEMA}
        for f in fields(self):
            if f.name not in ("steps", "snapshots", "pictures"):
                content[f.name] = _pack(getattr(self, f.name))
        content["steps"] = {
            f.name: [_pack(getattr(step, f.name)) for step in self.steps]
            for f in fields(StepRecord)
        }
        content["snapshots"] = [_pack_snapshot(snapshot) for snapshot in self.snapshots]
        content["pictures"] = [vars(picture) for picture in self.pictures]
        text = json.dumps(content, allow_nan=False, default=_without_numpy)
        return write_atomic(Path(path), text.encode())


def load(path: str | Path) -> RunRecord:
    """Load a record that `RunRecord.save` wrote.

    Raises:
        ValueError: the file is not a valid run record.
        OSError: the file cannot be read.
    """
    return parse_record(
        Path(path).read_bytes(), SCHEMA, _unpack_record, f"{path} is not a run record"
    )


def _unpack_record(content: dict[str, Any]) -> RunRecord:
    columns = content.pop("steps")
    # old records have neither swallowed updates, nor snapshots, nor pictures
    columns.setdefault("swallowed", [None] * len(columns["step"]))
    snapshots = content.pop("snapshots", [])
    pictures = content.pop("pictures", [])
    rows = zip(*(columns[f.name] for f in fields(StepRecord)), strict=True)
    steps = [StepRecord(*(_unpack(value) for value in row)) for row in rows]
    # everything else is a field of its own
    head = {}
    for name, value in content.items():
        head[name] = value if name in _TEXT else _unpack(value)
    return RunRecord(
        steps=tuple(steps),
        snapshots=tuple(_unpack_snapshot(snapshot) for snapshot in snapshots),
        pictures=tuple(Picture(**picture) for picture in pictures),
        **head,
    )


# Fields whose strings are text; any other string is a number that JSON lacks.
_TEXT = ("task", "recipe", "metric_name", "device", "versions", "date", "fingerprint", "arithmetic")


def _without_numpy(value: Any) -> Any:
    """Return a number of numpy as one of Python, for JSON."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"expected numbers, text, lists and dicts in a record, got {value!r}")


def _pack(value: Any) -> Any:
    """Return a value for JSON, which lacks inf and NaN: these become strings."""
    if isinstance(value, np.generic):
        return _pack(value.item())
    if isinstance(value, dict):
        return {key: _pack(each) for key, each in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _unpack(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _unpack(each) for key, each in value.items()}
    return float(value) if isinstance(value, str) else value


def _pack_snapshot(snapshot: GradSnapshot) -> dict[str, Any]:
    layers = {name: {**vars(h), "counts": h.counts.tolist()} for name, h in snapshot.layers.items()}
    return {"step": snapshot.step, "kind": snapshot.kind, "layers": layers}


def _unpack_snapshot(content: dict[str, Any]) -> GradSnapshot:
    layers = {
        name: ExponentHistogram(**{**h, "counts": np.array(h["counts"], dtype=np.int64)})
        for name, h in content["layers"].items()
    }
    return GradSnapshot(content["step"], content["kind"], layers)


# Saved records keep their fingerprints when a recipe gets a new field or a field is renamed.
_NEW_FIELD = ", margin=0"
_OLD_NAMES = {"gradient_format": "gradients"}


def fingerprint(task: Task, recipe: Recipe) -> str:
    """Return a hash of a task and a recipe: 12 hexadecimal digits, the same in every process.

    Functions are identified by name: code inside a function is not part of the hash, so a changed
    network needs a new name for its task.

    Raises:
        ValueError: a value has no distinctive text: a lambda, a function or class defined inside a
            function, an object whose repr is its address.

    >>> from dataclasses import replace
    >>> from labkit.amp import RECIPES
    >>> from labkit.train import TASKS
    >>> task = TASKS["digits"]
    >>> fingerprint(task, RECIPES["O1"]) == fingerprint(replace(task, steps=3), RECIPES["O1"])
    False
    """
    # These do not influence a run.
    descriptive = ("about", "margin", "drawing")
    parts = []
    for owner in (task, recipe):
        for f in fields(owner):
            value = getattr(owner, f.name)
            # Defaults are omitted, so that saved records stay valid when a field is added.
            if f.name not in descriptive and not _is_default(value, f.default):
                parts.append(f"{_OLD_NAMES.get(f.name, f.name)}={_spell(value, f.name)}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def _is_default(value: Any, default: Any) -> bool:
    # a comparison of arrays gives an array
    if isinstance(value, torch.Tensor | np.ndarray):
        return False
    return bool(value == default)


def _spell(value: Any, field: str) -> str:
    """Return a complete repr of a field's value without addresses.

    Functions are written by name. The text is part of saved fingerprints and must not change.
    """
    if isinstance(value, partial):
        function = _spell(value.func, field)
        arguments = [_spell(argument, field) for argument in value.args]
        keywords = _spell(sorted(value.keywords.items()), field)
        return f"{function}{arguments}{keywords}"
    if isinstance(value, dict):
        pairs = [f"{_spell(key, field)}: {_spell(each, field)}" for key, each in value.items()]
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list | tuple):
        items = ", ".join(_spell(each, field) for each in value)
        if isinstance(value, list):
            return f"[{items}]"
        # Python writes a tuple of one element with a comma
        return f"({items},)" if len(value) == 1 else f"({items})"
    # the order of a set differs from process to process
    if isinstance(value, set | frozenset):
        return "{" + ", ".join(sorted(_spell(each, field) for each in value)) + "}"
    # the repr of an array is rounded and abbreviated
    if isinstance(value, torch.Tensor | np.ndarray):
        return f"{value.dtype}{value.tolist()}"
    if isinstance(value, torch.nn.Module):
        # the repr of a module lacks attributes, such as the gamma of a custom loss, weights and
        # buffers
        state = {
            f"{path}.{name}": each
            for path, module in value.named_modules()
            for name, each in vars(module).items()
            if not name.startswith("_") and name != "training"
        }
        state |= dict(value.named_parameters()) | dict(value.named_buffers())
        return f"{_qualified_name(type(value), field)}{value!r}{_spell(state, field)}"
    if hasattr(value, "__qualname__"):
        return _qualified_name(value, field)
    text = repr(value)
    # the same as the repr, except for values whose repr is not complete
    if is_dataclass(value):
        pairs = [f"{f.name}={_spell(getattr(value, f.name), field)}" for f in fields(value)]
        text = f"{type(value).__qualname__}({', '.join(pairs)})"
    if re.search(r" at 0x[0-9a-fA-F]+", text):
        raise _ambiguous(field, text, "Make its class a frozen dataclass, or define its __repr__.")
    if isinstance(value, ProductFormat):
        text = text.replace(_NEW_FIELD, "")
    return text


def _qualified_name(function: Any, field: str) -> str:
    """Return the name of a function or class, with its module unless it is the lab's or torch's."""
    name = str(function.__qualname__)
    module = str(getattr(function, "__module__", None) or "torch")
    owner = getattr(function, "__self__", None)
    if isinstance(function, MethodType) and isinstance(owner, type):
        # an inherited class method has the name of the class that defines it
        name = f"{owner.__qualname__}.{function.__name__}"
        module = owner.__module__
    if "<lambda>" in name or "<locals>" in name:
        raise _ambiguous(
            field, name, "Write it as a function (def) at the top level of a module or a notebook."
        )
    # the owner of a function that was written in C is None, a module or an object
    is_method = isinstance(function, MethodType | BuiltinMethodType)
    if is_method and owner is not None and not isinstance(owner, type | ModuleType):
        return f"{_spell(owner, field)}.{function.__name__}"
    return name if module.split(".")[0] in ("labkit", "torch") else f"{module}.{name}"


def _ambiguous(field: str, text: str, advice: str) -> ValueError:
    return ValueError(
        f"expected a value of {field} that its text identifies, got {text}: a saved run of another "
        f"value with the same text would be loaded instead. {advice}"
    )


CATEGORIES = ("weights", "master weights", "gradients", "optimizer state")


def bytes_held(engine: Engine) -> dict[str, int]:
    """Return the bytes of an engine by category after a step.

    Kahan's compensation, one number for each weight, counts as master weights. Gradients are
    counted in the format in which the backward pass leaves them, that of the model, one for each
    trainable weight.

    >>> import torch
    >>> from labkit.amp import RECIPES
    >>> # 4 weights and a bias
    >>> engine = Engine(torch.nn.Linear(4, 1), torch.optim.SGD, RECIPES["O2"])
    >>> bytes_held(engine)
    {'weights': 10, 'master weights': 20, 'gradients': 10, 'optimizer state': 0}
    """
    require_kind(engine, Engine, "engine")
    weights = engine.weights
    # storages that are counted already, so that shared ones count once
    counted = set[int]()
    model = storage_bytes(engine.model.parameters(), counted)
    masters = storage_bytes(weights.master_weights, counted) if weights.master else 0
    if weights.rounding is WeightRounding.KAHAN and not weights.master:
        masters = sum(p.nbytes for p in weights.model_weights if p.element_size() == 2)
    gradients = sum(p.nbytes for p in weights.model_weights)
    state: list[Tensor] = []
    for state_of_weight in engine.optimizer.state.values():
        state += [value for value in state_of_weight.values() if isinstance(value, Tensor)]
    sizes = (model, masters, gradients, storage_bytes(state, counted))
    return dict(zip(CATEGORIES, sizes, strict=True))
