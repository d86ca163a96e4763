"""What is left of a run when it has ended? One record: what was asked, what happened, where, and with what.

Idea: everything that runs returns a record, and every plot, test and exercise reads one. A record says on which device
and versions it was made, so that no curve can pass for one made elsewhere.

Invariant: load(save(record)) == record, infinities and NaNs included; a file is either whole or not there.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from labkit.instrument import ExponentHistogram, GradSnapshot
from labkit.records import refuse_simulated, write_whole

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
    fingerprint  of task and recipe, where a race made it (labkit.train.fingerprint); "" elsewhere
    step_seconds  median seconds of a step in which nothing was measured, alone on its device; None where nobody timed
              one. Two equal runs may differ in it
    arithmetic  how products were computed: switch of torch -> its value in this run (`labkit.records.in_force`); empty
              where it was not recorded
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
        return write_whole(Path(path), text.encode())


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
    stored.setdefault("fingerprint", "")  # records from before there were these and swallowed updates
    stored.setdefault("memory", {})
    stored.setdefault("arithmetic", {})
    stored.setdefault("step_seconds", None)
    columns.setdefault("swallowed", [None] * len(columns["step"]))
    del stored["schema"]
    rows = zip(*(columns[f.name] for f in fields(StepRecord)), strict=True)
    steps = tuple(StepRecord(*(_unpack(value) for value in row)) for row in rows)
    head = {k: _unpack(v) for k, v in stored.items() if k not in _TEXT}
    watched = tuple(_unpack_snapshot(s) for s in snapshots)
    return RunRecord(steps=steps, snapshots=watched, **{k: stored[k] for k in _TEXT}, **head)


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
