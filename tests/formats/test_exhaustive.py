"""Rounding of all 2^32 FP32 patterns to each storage format.

A format takes minutes, so only `make test-all` runs all patterns. To write the results into
`data/proofs/rounding_all_fp32.json`, run this file as a script:

    .venv/bin/python tests/formats/test_exhaustive.py FP16 BF16 E5M2 E4M3
"""

import json
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

from labkit.formats import BF16, E4M3, E5M2, FORMATS, FP16, round_to
from labkit.interop import round_tensor

PATTERNS = 2**32
# Temporary arrays of this many elements are small enough for malloc to reuse its memory; larger
# ones would be mapped and unmapped by the operating system each time.
PIECE = 2**12
RECORD = Path(__file__).parents[2] / "data" / "proofs" / "rounding_all_fp32.json"
ORACLES = {
    FP16: np.float16,
    BF16: ml_dtypes.bfloat16,
    E5M2: ml_dtypes.float8_e5m2,
    E4M3: ml_dtypes.float8_e4m3fn,
}


def count_mismatches(format, first, last):
    """Return how often round_to and round_tensor differ from the oracle for patterns first to last.

    Results must have the same bits, except that all NaNs are equal.
    """
    patterns = np.arange(first, last, dtype=np.uint64).astype(np.uint32)
    values = patterns.view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = values.astype(ORACLES[format]).astype(np.float32)
    nan = np.isnan(wanted)
    bits = wanted.view(np.uint32)
    counts = []
    for got in (round_to(values, format), round_tensor(torch.from_numpy(values), format).numpy()):
        counts.append(
            int(np.count_nonzero(np.where(nan, ~np.isnan(got), got.view(np.uint32) != bits)))
        )
    return counts


def mismatches_of_all(format):
    total = np.zeros(2, np.int64)
    for first in range(0, PATTERNS, PIECE):
        total += count_mismatches(format, first, first + PIECE)
    return {"round_to": int(total[0]), "round_tensor": int(total[1])}


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("format", ORACLES, ids=lambda row: row.name)
def test_all_fp32_patterns_round_as_the_oracle(format):
    assert mismatches_of_all(format) == {"round_to": 0, "round_tensor": 0}


def test_a_sample_of_fp32_patterns_rounds_as_the_oracle():
    for format in ORACLES:
        # About 128 pieces; 12345 makes the last bits of their starts differ.
        for first in range(0, PATTERNS, PATTERNS // 128 + 12345):
            assert count_mismatches(format, first, first + PIECE) == [0, 0], (format, first)


def test_recorded_runs_had_no_mismatch():
    recorded = json.loads(RECORD.read_text())
    assert set(recorded) == {format.name for format in ORACLES}
    for entry in recorded.values():
        assert entry["patterns"] == PATTERNS
        assert entry["mismatches"] == {"round_to": 0, "round_tensor": 0}


def main():
    torch.set_num_threads(1)
    for name in sys.argv[1:]:
        format = FORMATS[name]
        started = datetime.now(UTC)
        mismatches = mismatches_of_all(format)
        entry = {
            "patterns": PATTERNS,
            "mismatches": mismatches,
            "oracle": f"float32.astype({np.dtype(ORACLES[format]).name})",
            "rounding": "nearest-even, overflow to infinity (E4M3: to NaN)",
            "versions": {package: version(package) for package in ("numpy", "ml_dtypes", "torch")},
            "machine": f"{platform.system()} {platform.machine()}, CPU",
            "date": started.isoformat(timespec="seconds"),
            "seconds": round((datetime.now(UTC) - started).total_seconds()),
        }
        RECORD.parent.mkdir(parents=True, exist_ok=True)
        known = json.loads(RECORD.read_text()) if RECORD.exists() else {}
        RECORD.write_text(json.dumps(known | {name: entry}, indent=2, sort_keys=True) + "\n")
        print(name, mismatches)


if __name__ == "__main__":
    main()
