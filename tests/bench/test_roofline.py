"""The roofline model by numbers worked out by hand, and published numbers with their sources."""

import csv
import re
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from labkit.bench import (
    ElementwiseCase,
    GemmCase,
    GemmRun,
    Roofline,
    cards,
    data_sheet,
    gains,
    published,
    roofline,
)
from labkit.bench.cases import intensity
from labkit.formats import FP16, FP32, FP64
from labkit.machine.published import KINDS


def timed(case, seconds):
    return GemmRun(case, seconds, seconds, seconds, 1, 0.0)


def table(name):
    with (Path(__file__).parents[2] / "data" / name).open(newline="", encoding="utf-8") as opened:
        return list(csv.DictReader(opened))


ROWS = table("published.csv")
COPY = timed(ElementwiseCase("copy", 10**9, FP32), 8.0)  # 8 * 10^9 bytes in 8 s: 1 GB/s
LARGE = timed(GemmCase(1000, 1000, 1000, FP32), 0.2)  # 2 * 10^9 FLOP in 0.2 s: 10 GFLOP/s


def test_the_fastest_of_each_counts():
    slower = timed(ElementwiseCase("copy", 10**9, FP32), 80.0)
    small = timed(GemmCase(10, 10, 10, FP32), 1.0)
    half = timed(GemmCase(1000, 1000, 1000, FP16), 0.1)
    fused = timed(ElementwiseCase("hardswish", 10**9, FP32), 0.001)  # no copy: sets no ceiling
    roof = roofline([slower, COPY, small, LARGE, half, fused])
    assert roof == Roofline(1e9, {FP32: roof.peak(FP32), FP16: roof.peak(FP16)})
    assert roof.peak(FP32) == pytest.approx(1e10)
    assert roof.peak(FP16) == pytest.approx(2e10)


def test_a_run_is_measured_by_the_peak_and_by_its_own_ceiling():
    """With m rows, a product of FP32 n = k = 1000 does about m / 2 FLOP for each byte, as long as m
    is small.
    """
    roof = roofline([COPY, LARGE])
    one = GemmCase(1, 1000, 1000, FP32)
    assert intensity(one) == pytest.approx(0.5, rel=0.01)
    assert roof.bound(one) == "bandwidth"
    assert roof.bound(GemmCase(100, 1000, 1000, FP32)) == "compute"
    assert roof.of_ceiling(LARGE) == 1.0
    assert roof.of_ceiling(COPY) == 1.0
    # 4,008,000 bytes at half the bandwidth
    assert roof.of_ceiling(timed(one, 0.008016)) == pytest.approx(0.5)
    fused = timed(ElementwiseCase("hardswish", 10**9, FP32), 16.0)
    assert roof.of_ceiling(fused) == 0.5, (
        "its few operations need no Tensor Core: bytes are what counts"
    )
    assert roof.bound(fused.case) == "bandwidth"
    with pytest.raises(
        ValueError, match="no product of FP64 was measured for this roofline; it has FP32"
    ):
        roof.ridge(FP64)
    for runs in ([COPY], [LARGE], []):
        with pytest.raises(ValueError, match="expected a copy and a product"):
            roofline(runs)


def test_worked_example_the_data_sheet_of_a_v100():
    """125 TFLOP/s in FP16, 15.7 in FP32 and 900 GB/s: "8x in theory", and a ridge at 139 FLOP a
    byte.
    """
    roof = data_sheet("V100")
    assert roof is not None
    assert roof.peak(FP16) == 125e12
    assert roof.peak(FP32) == 15.7e12
    assert roof.peak(FP64) == 7.8e12
    assert roof.peak(FP16) / roof.peak(FP32) == pytest.approx(8, rel=0.01)
    assert roof.ridge(FP16) == pytest.approx(139, rel=0.01)


def test_every_row_says_what_where_and_when():
    """Of speeds the value over the reference; of times the other way round; of memory
    what is left.
    """
    assert len(ROWS) == len(published()) == len({tuple(row.values()) for row in ROWS})
    for row in ROWS:
        assert row["kind"] in KINDS
        assert all(
            row[name] for name in ("card", "gpu", "format", "workload", "value", "unit", "source")
        ), row
        assert re.fullmatch(r"20\d\d(-\d\d(-\d\d)?)?", row["date"]), row
        assert re.search(r"\w+\.\w+/|arXiv|whitepaper|/\w+", row["source"]), row
        if row["ratio"] and row["reference_value"]:
            quotient = float(row["value"]) / float(row["reference_value"])
            wanted = 1 / quotient if re.match(r"(ms|s) per", row["unit"]) else quotient
            assert float(row["ratio"]) == pytest.approx(wanted, rel=0.005), row


def test_no_product_beats_its_card_s_data_sheet():
    """Within 10%: clocks are boosted; FP64 has Tensor Cores on an A100, twice the plain peak. Else
    a row is wrong.
    """
    for row in published("product"):
        roof = data_sheet(row.card)
        peaks = {format.name: peak for format, peak in roof.peaks.items()} if roof else {}
        if row.format in peaks:
            assert row.value * 1e12 <= 1.1 * peaks[row.format] * (
                2 if row.format == "FP64" else 1
            ), row


@pytest.mark.parametrize(
    ("format", "intensity"),
    [("FP32", 2 / 12), ("FP16", 2 / 6), ("FP8", 2 / 4), ("NVFP4", 2 / 3.125)],
)
def test_intensity_counts_the_bytes_of_the_format(format, intensity):
    """In a product of one number by one number, both operands and the result move; 8 and 4 bits
    give 16.
    """
    row = replace(published("product")[0], format=format, m=1, n=1, k=1)
    assert row.intensity == pytest.approx(intensity)


def test_gains_name_what_was_compared(tmp_path, monkeypatch):
    assert set(gains("training", "V100")) == {"FP32"}, "a V100 has no TF32"
    assert set(gains("training", "A100")) == {"FP32", "TF32", "FP32 or TF32"}
    assert gains("training", "T4") == {}
    with pytest.raises(ValueError, match=r"expected a card of GTX 1660 Ti, .*P100.*got 'V1000'"):
        published(card="V1000")
    with pytest.raises(ValueError, match=r"expected a kind of .*got 'products'"):
        published("products")
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path))
    assert published() == []
    assert cards() == []
    assert gains("training", "V100") == {}
    assert data_sheet("V100") is None


def test_the_claims_quote_what_the_rows_give():
    evidence = {row["id"]: row["evidence"] for row in table("claims.csv")}
    unets = {
        card: [
            row.ratio
            for row in published("inference", card)
            if "UNet" in row.workload and row.ratio
        ]
        for card in ("V100", "A100")
    }

    def middle(kind: str, card: str, wide: str) -> float:
        return median(gains(kind, card)[wide])

    def ends(kind: str, card: str) -> tuple[float, float]:
        ratios = gains(kind, card)["FP32"]
        return ratios[0], ratios[-1]

    quoted = {
        "C12": [
            middle("training", "V100", "FP32"),
            *ends("training", "V100"),
            middle("training", "A100", "TF32"),
        ],
        "C13": [
            *ends("product", "V100"),
            *ends("product", "A100"),
            middle("product", "RTX 3090", "FP32"),
        ],
        "C14": [*map(median, unets.values()), min(unets["A100"]), max(unets["V100"])],
        "C16": [median(gains("alignment", "H100")["not aligned"])],
    }
    for claim, numbers in quoted.items():
        assert evidence[claim].startswith("published: ")
        told = [float(number) for number in re.findall(r"\d+(?:\.\d+)?", evidence[claim])]
        for number in numbers:
            assert any(abs(number - each) <= 0.02 * number + 0.011 for each in told), (
                claim,
                number,
                evidence[claim],
            )
