"""What do timed products say? Recorded sweeps are found here, and each is told in a sentence.

Idea: a sentence compares what was measured on one device with one clock, never the numbers of two devices.

Invariant: where nothing was recorded, that is what is said.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from labkit.bench import ElementwiseCase, GemmCase, GemmRecord, GemmRun, from_json
from labkit.records import on_record
from labkit.widgets.base.number_words import two_digits

NOT_RECORDED = "not recorded yet: `make gpu` on a machine with a GPU records it"


def recorded_gemm(sweep: str, kind: str | None = None) -> list[GemmRecord]:
    """Return the records of a sweep that travel with the lab, newest first; `kind` asks for "cuda" or "cpu" only.

    >>> recorded_gemm("no such sweep")
    []
    """
    files = on_record(f"gemm/*/{sweep}.json").values()
    records = (from_json(file.read_text(encoding="utf-8")) for file in files)
    return sorted((r for r in records if kind in (None, r.kind)), key=lambda r: r.date, reverse=True)


def made_where(record: GemmRecord, *, here: bool = False) -> str:
    """Return where and when a record was made: the title of its picture."""
    if here:
        return f"Measured here: {record.device}, torch {record.versions['torch']}"
    driver = f", driver {record.versions['driver']}" if "driver" in record.versions else ""
    return f"Recorded: {record.device}, torch {record.versions['torch']}{driver}, {record.date[:10]}"


def products(record: GemmRecord) -> list[tuple[GemmCase, GemmRun]]:
    """Return the matrix products of a record, each case beside its run."""
    return [(run.case, run) for run in record.runs if isinstance(run.case, GemmCase)]


def speed(run: GemmRun) -> str:
    """Return FLOP/s, or bytes a second where nothing is computed, as a person reads them.

    >>> speed(GemmRun(GemmCase(1000, 1000, 1000), 0.01, 0.01, 0.01, 1, 0.0))
    '200 GFLOP/s'
    """
    if not run.case.flops:
        return f"{run.gbps:.3g} GB/s"
    return f"{run.tflops:.3g} TFLOP/s" if run.tflops >= 1 else f"{1000 * run.tflops:.3g} GFLOP/s"


def sweep_sentence(record: GemmRecord | None) -> str:
    """Return what a sweep shows; None is answered with NOT_RECORDED.

    >>> sweep_sentence(None)
    'not recorded yet: `make gpu` on a machine with a GPU records it'
    """
    if record is None:
        return NOT_RECORDED
    if not record.runs:
        return f"Nothing of this sweep could be timed on {record.device}."
    return f"On {record.device}, {SENTENCES.get(record.sweep, _extremes)(record)}."


def _size(record: GemmRecord) -> str:
    """Compare the formats at the largest size that FP32 was timed at."""
    found = products(record)
    size = max((case.m for case, _ in found if case.format.name == "FP32"), default=0)
    same = {case.format.name: run for case, run in found if case.m == size}
    if "FP32" not in same:
        return _extremes(record)
    base = same.pop("FP32")
    ratios = ", ".join(f"{name} {two_digits(base.seconds / run.seconds)} times as fast" for name, run in same.items())
    return f"a product of {size} x {size} x {size} in FP32 runs at {speed(base)}; {ratios}"


def _alignment(record: GemmRecord) -> str:
    """Compare, for each format, sizes that are no multiple of 8 with those that are."""
    parts = []
    for format in dict.fromkeys(case.format for case, _ in products(record)):
        own = [(case, run) for case, run in products(record) if case.format == format]
        aligned = [run.tflops for case, run in own if case.k % 8 == 0 and case.n % 8 == 0]
        others = [run.tflops for case, run in own if case.k % 8 or case.n % 8]
        if aligned and others:
            share = median(others) / median(aligned)
            parts.append(f"{format.name} at {share:.0%}")
    return f"sizes that are no multiple of 8 run, in the middle, {', '.join(parts)} of the speed of those that are"


def _batch(record: GemmRecord) -> str:
    """Compare the smallest batch with the largest: what a row costs alone, and among many."""
    parts = []
    few, many = (find(case.m for case, _ in products(record)) for find in (min, max))
    for format in dict.fromkeys(case.format for case, _ in products(record)):
        taken = {case.m: run.seconds for case, run in products(record) if case.format == format}
        if few in taken and many in taken:
            parts.append(f"{two_digits(taken[many] / taken[few])} in {format.name}")
    rows = "row takes" if few == 1 else "rows take"
    return f"{many} rows take so many times as long as {few} {rows}: {', '.join(parts)}"


def _bandwidth(record: GemmRecord) -> str:
    """Compare copies by format, and the fused activation with the one by hand."""
    seconds = {(run.case.op, run.case.format.name): run.seconds for run in record.runs
               if isinstance(run.case, ElementwiseCase)}  # fmt: skip
    gains = {name: seconds["copy", "FP32"] / taken for (op, name), taken in seconds.items() if op == "copy"}
    parts = [
        f"{name} copies {two_digits(gain)} times as fast as FP32" for name, gain in gains.items() if name != "FP32"
    ]
    for (op, name), taken in seconds.items():
        if op == "hardswish" and ("hardswish by hand", name) in seconds:
            ratio = seconds["hardswish by hand", name] / taken
            parts.append(f"in {name} one kernel is {two_digits(ratio)} times as fast as the same by hand in four")
    return "; ".join(parts) or _extremes(record)


def _kernel(record: GemmRecord) -> str:
    """Compare our best tile with torch at each size."""
    parts = []
    for size in dict.fromkeys(case.m for case, _ in products(record)):
        same = [(case.kernel, run) for case, run in products(record) if case.m == size]
        torch_s = [run for kernel, run in same if not kernel]
        ours = sorted(((run.seconds, kernel) for kernel, run in same if kernel))
        if torch_s and ours:
            parts.append(f"{torch_s[0].seconds / ours[0][0]:.0%} of cuBLAS at {size} (tiles {ours[0][1]})")
    return f"our own kernel reaches {', '.join(parts)}" if parts else _extremes(record)


def _extremes(record: GemmRecord) -> str:
    ranked = sorted(record.runs, key=lambda run: run.tflops)
    last, first = ranked[0], ranked[-1]
    return f"the fastest is {first.case.label} with {speed(first)}, the slowest {last.case.label} with {speed(last)}"


SENTENCES: dict[str, Callable[[GemmRecord], str]] = {
    "size": _size,
    "ceilings": _size,
    "alignment": _alignment,
    "batch": _batch,
    "bandwidth": _bandwidth,
    "kernel": _kernel,
}
