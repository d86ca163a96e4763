"""Options of the training of four processes (`labkit.train.workers`), and the record of one."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from labkit.records import data_folder, parse_record, write_atomic

STEPS = 12
OUTPUTS = 64  # rows of the weight, which the ranks share
SCHEMA = "labkit.workers/1"


@dataclass(frozen=True)
class WorkerPlan:
    """Options of one training.

    Attributes:
        agree: the ranks agree on found_inf; False: each checks its own gradients only.
        sharded: each rank holds a part of the weights (FSDP2); False: each holds all (DDP).
        reduce: format in which gradients are summed over the ranks.
        predivide: whether an FP16 sum is divided before it as well, or only after it.
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
        return write_atomic(
            Path(path), json.dumps({"schema": SCHEMA, **asdict(self)}, allow_nan=False).encode()
        )


def load_workers(path: str | Path) -> WorkerRecord:
    """Load a record that `WorkerRecord.save` wrote.

    Raises:
        ValueError: the file is not such a record.
    """

    def make(row: dict[str, Any]) -> WorkerRecord:
        return WorkerRecord(
            **{**row, "plan": WorkerPlan(**row["plan"]), "steps": tuple(row["steps"])}
        )

    problem = f"{path} is not a record of a training by several processes"
    return parse_record(Path(path).read_bytes(), SCHEMA, make, problem)


def recorded_workers(*, sharded: bool = True) -> WorkerRecord:
    """Return the training that is shipped with the lab.

    Each rank holds a part of the weights, or all.

    Raises:
        FileNotFoundError: the data folder lacks it.
    """
    return load_workers(data_folder() / "workers" / f"{'fsdp2' if sharded else 'ddp'}.json")
