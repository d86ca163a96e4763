"""Options and records of a training by four processes (`labkit.train.workers`)."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from labkit.records import data_folder, parse_record, write_atomic

STEPS = 12
# The rows of the weight, of which each rank holds a part.
OUTPUTS = 64
SCHEMA = "labkit.workers/1"


@dataclass(frozen=True)
class WorkerPlan:
    """Options of one training.

    Attributes:
        agree: whether the ranks agree on found_inf; otherwise each checks only its own gradients.
        sharded: whether each rank holds a part of the weights (FSDP2) or all of them (DDP).
        reduce: format in which gradients are summed over the ranks.
        predivide: whether gradients are divided before and after an FP16 sum, or only after it.
    """

    agree: bool = True
    sharded: bool = True
    reduce: str = "FP32"
    predivide: bool = True


@dataclass(frozen=True)
class WorkerRecord:
    """One training by the processes, with its provenance.

    Attributes:
        steps: reports of `labkit.train.workers.training`, in order.
        date: UTC, ISO 8601.
    """

    plan: WorkerPlan
    steps: tuple[dict[str, Any], ...]
    device: str
    versions: dict[str, str]
    date: str

    def save(self, path: str | Path) -> Path:
        """Write the record as JSON; return the path."""
        content = json.dumps({"schema": SCHEMA, **asdict(self)}, allow_nan=False)
        return write_atomic(Path(path), content.encode())


def load_workers(path: str | Path) -> WorkerRecord:
    """Load a record that `WorkerRecord.save` wrote.

    Raises:
        ValueError: the file is not such a record.
    """

    def make(row: dict[str, Any]) -> WorkerRecord:
        plan = WorkerPlan(**row.pop("plan"))
        steps = tuple(row.pop("steps"))
        return WorkerRecord(plan=plan, steps=steps, **row)

    problem = f"{path} is not a record of a training by several processes"
    return parse_record(Path(path).read_bytes(), SCHEMA, make, problem)


def recorded_workers(*, sharded: bool = True) -> WorkerRecord:
    """Return the record that is shipped with the lab, of FSDP2 if `sharded` or else of DDP.

    Raises:
        FileNotFoundError: the data folder lacks it.
    """
    name = "fsdp2.json" if sharded else "ddp.json"
    return load_workers(data_folder() / "workers" / name)
