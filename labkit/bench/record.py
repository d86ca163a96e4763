"""Records of sweeps: cases, timings, device, method, versions and date.

Idea: new and saved measurements have the same type, so one figure can show both, each with its
provenance.

Invariant: from_json(record.to_json()) == record.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch

from labkit.bench.cases import ConvCase, ElementwiseCase, Extent, GemmCase, sweeps
from labkit.bench.timing import ROUNDS, GemmRun, run_cases
from labkit.formats import FORMATS
from labkit.machine.device import DeviceReport, device_report
from labkit.records import now, parse_record, versions

SCHEMA = "labkit.gemm/1"
KINDS: dict[str, type[GemmCase] | type[ConvCase] | type[ElementwiseCase]] = {
    "gemm": GemmCase,
    "conv": ConvCase,
    "elementwise": ElementwiseCase,
}


@dataclass(frozen=True)
class GemmRecord:
    """Timed sweep on one device.

    Attributes:
        sweep: name of the sweep.
        question: the question that it answers.
        runs: the timed cases.
        device: the manufacturer's name of the device.
        kind: "cuda" or "cpu".
        how: description of clock, threads and rounds.
        versions: versions of python and torch; on a GPU also of cuda and the driver.
        date: UTC, ISO 8601.
        left_out: cases that could not be timed, with the reason.
    """

    sweep: str
    question: str
    runs: tuple[GemmRun, ...]
    device: str
    kind: str
    how: str
    versions: dict[str, str]
    date: str
    left_out: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Return the record as JSON, one line for each run."""
        head: dict[str, Any] = {"schema": SCHEMA}
        for field in fields(self):
            if field.name != "runs":
                head[field.name] = getattr(self, field.name)
        runs = ",\n ".join(json.dumps(_pack(run), allow_nan=False) for run in self.runs)
        # the runs come last, on lines of their own: continue the object before its closing brace
        return json.dumps(head).removesuffix("}") + f', "runs": [\n {runs}]}}\n'


def from_json(text: str) -> GemmRecord:
    """Return the record that `GemmRecord.to_json` wrote.

    Raises:
        ValueError: the text is not a valid record.
    """

    def make(stored: dict[str, Any]) -> GemmRecord:
        runs = tuple(_unpack(run) for run in stored.pop("runs"))
        return GemmRecord(runs=runs, left_out=tuple(stored.pop("left_out")), **stored)

    return parse_record(text, SCHEMA, make, "expected a record of a sweep")


def measure(
    sweep: str,
    device: torch.device | str | None = None,
    *,
    extent: Extent | None = None,
    rounds: int = ROUNDS,
    threads: int = 1,
    seconds: float = float("inf"),
    stop: Callable[[], bool] = lambda: False,
    progress: Callable[[GemmRecord], None] = lambda record: None,
) -> GemmRecord:
    """Time a sweep on this machine, and return its record.

    On two CPU cores, this takes up to half a minute.

    Args:
        sweep: a name in `sweeps`.
        device: "cpu" or "cuda"; None for a GPU if this machine has one, else the CPU.
        extent: sizes of the cases; None for the device's own.
        rounds: number of timings of each case after a warm-up.
        threads: number of CPU threads.
        seconds: time limit, after which no further timing begins.
        stop: called before each timing; True ends the measurement, and timed cases are recorded.
        progress: called after each round with the record so far.

    Raises:
        ValueError: the sweep is unknown.

    >>> from labkit.bench.cases import QUICK
    >>> record = measure("size", "cpu", extent=QUICK, rounds=1)
    >>> from_json(record.to_json()) == record
    True
    """
    report = device_report(device)
    known = sweeps(report, extent)
    if sweep not in known:
        raise ValueError(f"expected a sweep of {', '.join(known)}, got {sweep!r}")
    chosen = known[sweep]
    end = time.monotonic() + seconds
    left_out: list[str] = []
    if report.kind == "cuda":
        clock = "CUDA events"
    elif threads == 1:
        clock = "host timer, 1 thread"
    else:
        clock = f"host timer, {threads} threads"
    how = (
        f"{clock}; median of up to {rounds} rounds in which all cases take turns; random operands, "
        "in the cache only if they are small"
    )

    def record(runs: list[GemmRun]) -> GemmRecord:
        return GemmRecord(
            sweep=chosen.name,
            question=chosen.question,
            runs=tuple(runs),
            device=report.name,
            kind=report.kind,
            how=how,
            versions=bench_versions(report),
            date=now(),
            left_out=tuple(left_out),
        )

    runs = run_cases(
        chosen.cases,
        report.kind,
        rounds=rounds,
        threads=threads,
        stop=lambda: stop() or time.monotonic() > end,
        left_out=lambda case, why: left_out.append(f"{case.label}: {why}"),
        progress=lambda runs: progress(record(runs)),
    )
    return record(runs)


def bench_versions(report: DeviceReport) -> dict[str, str]:
    """Return the versions that can change a timing.

    >>> sorted(bench_versions(device_report("cpu")))
    ['python', 'torch']
    """
    result = versions()
    if report.kind == "cuda":
        result["cuda"] = str(torch.version.cuda or torch.version.hip)
        result["driver"] = report.driver or "unknown"
    return result


def _pack(run: GemmRun) -> dict[str, Any]:
    """Return a run as one flat JSON object: its kind, the fields of its case, and its numbers."""
    names = {type_: name for name, type_ in KINDS.items()}
    packed: dict[str, Any] = {"kind": names[type(run.case)]}
    packed |= vars(run.case)
    packed["format"] = run.case.format.name
    for name, value in vars(run).items():
        if name != "case":
            packed[name] = value
    return packed


def _unpack(stored: dict[str, Any]) -> GemmRun:
    """Return the run that `_pack` returned as an object; the object is emptied."""
    numbers = {}
    for field in fields(GemmRun):
        if field.name != "case":
            numbers[field.name] = stored.pop(field.name)
    case_type = KINDS[stored.pop("kind")]
    stored["format"] = FORMATS[stored["format"]]
    return GemmRun(case_type(**stored), **numbers)
