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
    cards,
    data_sheet,
    gains,
    published,
    ring_table,
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
# 8 * 10^9 bytes in 8 s: 1 GB/s.
COPY = timed(ElementwiseCase("copy", 10**9, FP32), 8.0)
# 2 * 10^9 FLOP in 0.2 s: 10 GFLOP/s.
LARGE = timed(GemmCase(1000, 1000, 1000, FP32), 0.2)
# A product with one row: half a FLOP for each byte.
ONE_ROW = GemmCase(1, 1000, 1000, FP32)


@pytest.mark.parametrize(
    ("sizes", "format", "says"),
    [
        ((2.5, 1, 1), FP32, "m: expected an int, got 2.5"),
        ((1, 1, True), FP32, "k: expected an int, got True"),
        ((1, 1, 1), "FP32", "format: expected a Format, got 'FP32'"),
    ],
)
def test_a_case_of_wrong_types_is_refused(sizes, format, says):
    with pytest.raises(TypeError, match=says):
        GemmCase(*sizes, format)


@pytest.mark.parametrize(
    ("weights", "ranks", "says"),
    [
        (1000, 1, "expected 2 ranks or more, which exchange gradients, got 1"),
        (1000, 0, "expected 2 ranks or more"),
        (0, 8, "expected gradients to exchange, got 0 bytes"),
    ],
)
def test_a_ring_that_exchanges_nothing_is_refused(weights, ranks, says):
    with pytest.raises(ValueError, match=says):
        ring_table(weights, ranks)


def test_a_ring_of_half_a_rank_is_refused():
    with pytest.raises(TypeError, match=r"ranks: expected an int, got 2\.5"):
        ring_table(1000, 2.5)


def test_columns_of_many_weights_stay_apart():
    last_line = ring_table(10**9, 8).splitlines()[-1]
    # 32 GB take more than a thousand milliseconds through Ethernet
    assert last_line.split()[3:7] == ["5600.20", "ms", "2800.20", "ms"]


@pytest.mark.parametrize("size", range(3))
def test_a_case_without_elements_is_refused(size):
    sizes = [8, 8, 8]
    sizes[size] = 0
    with pytest.raises(ValueError, match="expected sizes of 1 or more"):
        GemmCase(*sizes)


def test_the_fastest_copy_and_products_are_the_ceilings():
    slower = timed(ElementwiseCase("copy", 10**9, FP32), 80.0)
    small = timed(GemmCase(10, 10, 10, FP32), 1.0)
    half = timed(GemmCase(1000, 1000, 1000, FP16), 0.1)
    # Only copies set a ceiling of bandwidth.
    hardswish = timed(ElementwiseCase("hardswish", 10**9, FP32), 0.001)
    roof = roofline([slower, COPY, small, LARGE, half, hardswish])
    assert roof.bandwidth == 1e9
    assert roof.peaks == pytest.approx({FP32: 1e10, FP16: 2e10})


@pytest.fixture
def roof():
    """The roofline of COPY and LARGE, with a ridge at 10 FLOP for each byte."""
    return roofline([COPY, LARGE])


def test_a_product_of_few_rows_is_limited_by_bandwidth(roof):
    assert intensity(ONE_ROW) == pytest.approx(0.5, rel=0.01)
    assert roof.bound(ONE_ROW) == "bandwidth"


def test_a_product_of_many_rows_is_limited_by_compute(roof):
    assert roof.bound(GemmCase(100, 1000, 1000, FP32)) == "compute"


def test_an_element_wise_operation_is_limited_by_bandwidth(roof):
    assert roof.bound(ElementwiseCase("hardswish", 10**9, FP32)) == "bandwidth"


def test_the_bound_of_an_element_wise_operation_needs_no_product(roof):
    assert roof.bound(ElementwiseCase("hardswish", 10**9, FP16)) == "bandwidth"


@pytest.mark.parametrize(
    ("run", "share"),
    [
        (LARGE, 1.0),
        (COPY, 1.0),
        # 4,008,000 bytes at half the bandwidth
        (timed(ONE_ROW, 0.008016), 0.5),
        # 8 * 10^9 bytes at half the bandwidth
        (timed(ElementwiseCase("hardswish", 10**9, FP32), 16.0), 0.5),
    ],
    ids=["large product", "copy", "one row", "element-wise"],
)
def test_a_run_has_a_share_of_its_own_ceiling(run, share, roof):
    assert roof.of_ceiling(run) == pytest.approx(share)


def test_a_format_without_a_product_has_no_ridge(roof):
    message = "no product of FP64 was measured for this roofline; it has FP32"
    with pytest.raises(ValueError, match=message):
        roof.ridge(FP64)


@pytest.mark.parametrize("runs", [[COPY], [LARGE], []], ids=["copy", "product", "none"])
def test_a_roofline_needs_a_copy_and_a_product(runs):
    with pytest.raises(ValueError, match="expected a copy and a product"):
        roofline(runs)


def test_worked_example_the_data_sheet_of_a_v100():
    """With 900 GB/s the ridge of FP16 is at 139 FLOP for each byte."""
    roof = data_sheet("V100")
    assert roof is not None
    assert roof.peak(FP16) == 125e12
    assert roof.peak(FP32) == 15.7e12
    assert roof.peak(FP64) == 7.8e12
    assert roof.peak(FP16) / roof.peak(FP32) == pytest.approx(8, rel=0.01)
    assert roof.ridge(FP16) == pytest.approx(139, rel=0.01)


REQUIRED = ("card", "gpu", "format", "workload", "value", "unit", "source")


def test_all_published_rows_are_read_and_none_twice():
    assert len(published()) == len(ROWS)
    assert len({tuple(row.values()) for row in ROWS}) == len(ROWS)


def test_every_row_has_a_kind_a_date_and_a_source():
    for row in ROWS:
        assert row["kind"] in KINDS
        assert [name for name in REQUIRED if not row[name]] == [], row
        assert re.fullmatch(r"20\d\d(-\d\d(-\d\d)?)?", row["date"]), row
        assert re.search(r"\w+\.\w+/|arXiv|whitepaper|/\w+", row["source"]), row


def is_time(row):
    """Return whether the value of a row is a time, of which less is better."""
    return re.match(r"(ms|s) per", row["unit"]) is not None


WITH_A_RATIO = [row for row in ROWS if row["ratio"] and row["reference_value"]]
TIMES = [row for row in WITH_A_RATIO if is_time(row)]
SPEEDS = [row for row in WITH_A_RATIO if not is_time(row)]


def test_a_ratio_of_speeds_is_that_of_its_values():
    assert SPEEDS
    for row in SPEEDS:
        ratio = float(row["value"]) / float(row["reference_value"])
        assert float(row["ratio"]) == pytest.approx(ratio, rel=0.005), row


def test_a_ratio_of_times_is_inverted():
    assert TIMES
    for row in TIMES:
        ratio = float(row["reference_value"]) / float(row["value"])
        assert float(row["ratio"]) == pytest.approx(ratio, rel=0.005), row


def test_no_product_beats_its_card_s_data_sheet():
    compared = 0
    for row in published("product"):
        roof = data_sheet(row.card)
        if roof is None:
            continue
        peaks = {format.name: peak for format, peak in roof.peaks.items()}
        if row.format not in peaks:
            continue
        # A boosted clock gives up to 10% more than the data sheet.
        limit = 1.1 * peaks[row.format]
        if row.format == "FP64":
            # The data sheet has the peak without Tensor Cores, which an A100 doubles.
            limit *= 2
        assert row.value * 1e12 <= limit, row
        compared += 1
    assert compared


@pytest.mark.parametrize(
    ("format", "intensity"),
    [("FP32", 2 / 12), ("FP16", 2 / 6), ("FP8", 2 / 4), ("NVFP4", 2 / 3.125)],
)
def test_intensity_counts_the_bytes_of_the_format(format, intensity):
    """A product of two numbers moves both and the result; formats of 8 and 4 bits give 16 bits."""
    row = replace(published("product")[0], format=format, m=1, n=1, k=1)
    assert row.intensity == pytest.approx(intensity)


def test_a_product_without_sides_has_neither_side_nor_intensity():
    row = replace(published("product")[0], m=0, n=0, k=0)
    assert (row.side, row.intensity) == (0, 0)


# A V100 has no TF32, and the table has no training on a T4.
@pytest.mark.parametrize(
    ("card", "references"),
    [("V100", {"FP32"}), ("A100", {"FP32", "TF32", "FP32 or TF32"}), ("T4", set())],
)
def test_gains_name_the_format_that_was_compared(card, references):
    assert set(gains("training", card)) == references


def test_an_unknown_card_is_refused():
    with pytest.raises(ValueError, match=r"expected a card of GTX 1660 Ti, .*P100.*got 'V1000'"):
        published(card="V1000")


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match=r"expected a kind of .*got 'products'"):
        published("products")


def test_an_empty_folder_of_data_has_nothing_published(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path))
    assert published() == []
    assert cards() == []
    assert gains("training", "V100") == {}
    assert data_sheet("V100") is None


def median_gain(kind, card, reference):
    return median(gains(kind, card)[reference])


def smallest_and_largest_gain(kind, card):
    ratios = gains(kind, card)["FP32"]
    return ratios[0], ratios[-1]


def gains_of_unets(card):
    rows = published("inference", card)
    return [row.ratio for row in rows if "UNet" in row.workload and row.ratio]


# Claim -> the numbers that its evidence states.
STATED = {
    "C12": [
        median_gain("training", "V100", "FP32"),
        *smallest_and_largest_gain("training", "V100"),
        median_gain("training", "A100", "TF32"),
    ],
    "C13": [
        *smallest_and_largest_gain("product", "V100"),
        *smallest_and_largest_gain("product", "A100"),
        median_gain("product", "RTX 3090", "FP32"),
    ],
    "C14": [
        median(gains_of_unets("V100")),
        median(gains_of_unets("A100")),
        min(gains_of_unets("A100")),
        max(gains_of_unets("V100")),
    ],
    "C16": [median_gain("alignment", "H100", "not aligned")],
}


@pytest.mark.parametrize("claim", STATED)
def test_evidence_of_a_claim_states_the_numbers_of_the_rows(claim):
    evidence = {row["id"]: row["evidence"] for row in table("claims.csv")}[claim]
    assert evidence.startswith("published: ")
    stated = [float(number) for number in re.findall(r"\d+(?:\.\d+)?", evidence)]
    for number in STATED[claim]:
        # The evidence has two significant digits, or two decimal places.
        tolerance = 0.02 * number + 0.011
        assert min(abs(number - each) for each in stated) <= tolerance, (number, evidence)
