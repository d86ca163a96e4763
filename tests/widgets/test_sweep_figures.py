"""Figures of measured, recorded and published sweeps of products, and their sentences."""

from dataclasses import replace
from functools import cache

import pytest

from labkit import widgets
from labkit.bench import ElementwiseCase, GemmCase, GemmRecord, GemmRun, measure, sweeps
from labkit.bench.cases import QUICK
from labkit.formats import BF16, FP16, FP32
from labkit.machine.device import device_report
from labkit.widgets import roofline_figure, sweep_figure


def timed(case, seconds):
    return GemmRun(case, seconds, seconds, seconds, 1, 0.25)


def record(sweep, *runs, kind="cuda", device="A stand-in", date="2026-01-02T03:04:05+00:00"):
    versions = {"torch": "2.0", **({"driver": "1.0"} if kind == "cuda" else {})}
    return GemmRecord(sweep, "What?", runs, device, kind, "a fake clock", versions, date)


def square(n, format, seconds):
    return timed(GemmCase(n, n, n, format, "NT"), seconds)


SIZE = record(
    "size",
    square(64, FP32, 1e-6),
    square(128, FP32, 4e-6),
    square(128, BF16, 2e-6),
    square(128, FP16, 1e-6),
)
COPIES = [
    timed(ElementwiseCase("copy", 1000, format), seconds)
    for format, seconds in ((FP32, 8e-6), (FP16, 4e-6))
]


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Use an empty data folder, and return a function that writes records into it."""
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path))

    def put(*records):
        for entry in records:
            file = tmp_path / "gemm" / entry.device.replace(" ", "-") / f"{entry.sweep}.json"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(entry.to_json())

    return put


def words(axes):
    return " ".join(" ".join(text.get_text() for text in axes.texts).split())


def title(axes):
    return " ".join(axes.get_title(loc="left").split())


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize("draw", [lambda: sweep_figure("size"), roofline_figure])
def test_missing_records_are_named_in_both_panels(draw):
    figure = draw()
    for axes in figure.axes:
        assert not axes.lines
        assert words(axes) == "not recorded yet: `make gpu` on a machine with a GPU records it"
    assert [title(axes) for axes in figure.axes] == ["A GPU", "A CPU"]
    assert "not recorded yet" in figure.get_supxlabel()


def test_records_of_a_gpu_and_a_cpu_have_a_panel_each(data):
    data(SIZE, replace(SIZE, kind="cpu", device="A CPU"))
    left, right = sweep_figure("size").axes
    assert title(left) == "Recorded: A stand-in, torch 2.0, driver 1.0, 2026-01-02"
    assert title(right).startswith("Recorded: A CPU")


def test_a_sweep_of_sizes_has_a_line_for_each_format(data):
    data(SIZE)
    assert len(sweep_figure("size").axes[0].lines) == 3


NEWER = replace(SIZE, device="A newer one", date="2026-02-02T00:00:00+00:00")


def test_recorded_sweeps_have_the_newest_first(data):
    data(SIZE, NEWER, record("batch"))
    assert [entry.device for entry in widgets.recorded_gemm("size", "cuda")] == [
        "A newer one",
        "A stand-in",
    ]


def test_the_newest_record_of_a_sweep_is_drawn(data):
    data(SIZE, NEWER)
    assert "A newer one" in title(sweep_figure("size").axes[0])


def test_a_sweep_without_a_timed_case_says_so(data):
    data(record("batch"))
    left = sweep_figure("batch").axes[0]
    assert "Nothing of this sweep could be timed on A stand-in." in words(left)
    assert title(left).startswith("Recorded: A stand-in")


def test_a_record_of_another_sweep_is_refused():
    with pytest.raises(
        ValueError, match=r"a picture of the sweep 'batch'; `here` is of 'size'. Measure 'batch'."
    ):
        sweep_figure("batch", SIZE)


CASE = GemmCase(64, 64, 64, FP16, "NT")
# K = 64 is a multiple of 8; the others take four times as long for each of their columns.
ALIGNMENT = [timed(CASE, 1e-6)]
for columns in range(57, 64):
    ALIGNMENT.append(timed(GemmCase(64, 64, columns, FP16, "NT"), 4e-6 * columns / 64))
BATCH = [
    timed(GemmCase(1, 64, 64, FP16, "NT"), 2e-6),
    timed(GemmCase(256, 64, 64, FP16, "NT"), 5e-6),
]
HARDSWISH = [
    timed(ElementwiseCase("hardswish", 1000, FP16), 1e-6),
    timed(ElementwiseCase("hardswish by hand", 1000, FP16), 3e-6),
]
KERNELS = [
    timed(CASE, 8e-6),
    timed(replace(CASE, kernel="slow"), 2e-5),
    timed(replace(CASE, kernel="good"), 1e-5),
]


@pytest.mark.parametrize(
    ("sweep", "runs", "expected"),
    [
        (
            "size",
            # 2 * 128^3 FLOP in 4 microseconds are 1.05 TFLOP/s.
            SIZE.runs,
            "a product of 128 x 128 x 128 in FP32 runs at 1.05 TFLOP/s; BF16 2 times as fast, "
            "FP16 4 times as fast.",
        ),
        (
            "alignment",
            ALIGNMENT,
            "sizes that are not multiples of 8 reach 25% (FP16) of the median speed of those that "
            "are.",
        ),
        ("batch", BATCH, "256 rows take 2.5 times (FP16) as long as 1 row."),
        (
            "bandwidth",
            [*COPIES, *HARDSWISH],
            "FP16 copies 2 times as fast as FP32; in FP16 one kernel is 3 times as fast as "
            "the same by hand in four.",
        ),
        ("kernel", KERNELS, "our own kernel reaches 80% of cuBLAS at 64 (tiles good)."),
        (
            "layers",
            [square(64, FP16, 1e-6), square(64, FP32, 2e-6)],
            "the fastest is FP16 NT 64x64x64 with 524 "
            "GFLOP/s, the slowest FP32 NT 64x64x64 with 262 GFLOP/s.",
        ),
    ],
)
def test_sentence_of_each_sweep_follows_from_its_times(sweep, runs, expected):
    assert widgets.sweep_sentence(record(sweep, *runs)) == f"On A stand-in, {expected}"


@pytest.mark.parametrize("sweep", ["alignment", "batch", "bandwidth"])
def test_a_sweep_without_a_comparison_names_its_extremes(sweep):
    """A sweep may end before the cases that its sentence compares."""
    run = timed(ElementwiseCase("copy", 1000, FP16), 1e-6) if sweep == "bandwidth" else SIZE.runs[0]
    sentence = widgets.sweep_sentence(record(sweep, run))
    assert sentence.startswith(f"On A stand-in, the fastest is {run.case.label} with ")


def test_extremes_of_copies_are_those_of_their_bandwidth():
    """Copies have no FLOP, so their speeds in FLOP/s are equal."""
    slow, fast = (
        timed(ElementwiseCase("copy", 1000, format), seconds)
        for format, seconds in ((BF16, 4e-6), (FP16, 2e-6))
    )
    for runs in ((slow, fast), (fast, slow)):
        assert widgets.sweep_sentence(record("bandwidth", *runs)) == (
            "On A stand-in, the fastest is FP16 copy, 1,000 elements with 2 GB/s, the slowest "
            "BF16 copy, 1,000 elements with 1 GB/s."
        )


def test_fp32_alone_is_not_compared():
    sentence = widgets.sweep_sentence(record("size", SIZE.runs[0]))
    assert sentence == "On A stand-in, a product of 64 x 64 x 64 in FP32 runs at 524 GFLOP/s."


@cache
def measured(sweep):
    """Return a quick record of a sweep on this CPU."""
    return measure(sweep, "cpu", extent=QUICK, rounds=1)


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize("sweep", sweeps(device_report("cpu")))
def test_figures_of_measured_sweeps_can_be_drawn(sweep):
    figure = sweep_figure(sweep, measured(sweep))
    right = figure.axes[1]
    assert title(right).startswith("Measured here: ")
    assert right.lines or right.patches
    # Labels that do not fit, or marks that matplotlib does not know, would fail here.
    figure.canvas.draw()


# --- rooflines ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("data")
def test_a_roofline_of_measured_sweeps_says_so():
    figure = roofline_figure(here=[measured("ceilings"), measured("size")])
    assert title(figure.axes[1]).startswith("Measured here")


def test_a_roofline_without_a_copy_is_refused():
    with pytest.raises(ValueError, match="expected a copy and a product"):
        roofline_figure(here=[measured("size")])


@pytest.fixture
def roofline(data):
    """The roofline of a device that copies 1 GB/s, beside a sweep of another device."""
    data(record("ceilings", *COPIES, *SIZE.runs[1:]), SIZE, replace(SIZE, device="Another"))
    return roofline_figure(["size"])


def test_a_roofline_has_a_roof_for_each_format(roofline):
    roofs = [line for line in roofline.axes[0].lines if line.get_marker() in ("", "None")]
    assert len(roofs) == 3
    # Left of its ridge, the height of a roof is bandwidth times intensity.
    assert roofs[0].get_ydata()[0] == pytest.approx(0.25e9 / 1e12, rel=0.01)


def test_a_roofline_has_the_cases_of_one_device(roofline):
    left = roofline.axes[0]
    assert title(left).startswith("Recorded: A stand-in")
    points = sum(len(line.get_xdata()) for line in left.lines if line.get_ls() == "None")
    assert points == len(SIZE.runs[1:]) + len(SIZE.runs)


def test_the_sentence_of_a_roofline_states_where_cases_wait_for_memory(roofline):
    """1 GB/s of copies and 1.05 TFLOP/s of FP32 products meet at 1049 FLOP for each byte."""
    assert roofline.get_supxlabel().replace("\n", " ") == (
        "A stand-in copies 1 GB/s. A case waits for memory below these FLOP per byte: FP32 1000, "
        "BF16 2100, FP16 4200. So do 7 of these 7 cases."
    )


# --- published numbers ----------------------------------------------------------------------------

# The marker of published numbers.
PUBLISHED = "H"


@pytest.mark.parametrize("sweep", ["size", "bandwidth", "alignment"])
def test_published_numbers_replace_missing_gpu_records(sweep):
    left, _ = sweep_figure(sweep, card="V100").axes
    assert title(left).startswith("Published by others: V100")
    assert {line.get_marker() for line in left.lines} - {"None", ""} == {PUBLISHED}


@pytest.mark.parametrize("sweep", ["size", "bandwidth", "alignment"])
def test_records_of_a_cpu_are_not_replaced(sweep):
    _, right = sweep_figure(sweep, card="V100").axes
    assert title(right).startswith("Recorded: ")
    assert PUBLISHED not in {line.get_marker() for line in right.lines}


def test_a_roofline_of_a_card_has_the_numbers_of_its_data_sheet():
    figure = roofline_figure(card="T4")
    dotted = [line for line in figure.axes[0].lines if line.get_linestyle() == ":"]
    assert sorted(round(max(line.get_ydata())) for line in dotted) == [8, 65]
    assert "T4 moves 320 GB/s" in figure.get_supxlabel()


def test_gains_figure_states_measured_and_promised_gains():
    sentence = " ".join(widgets.gains_figure("A100").get_supxlabel().split())
    assert "training 0.94 to 5.2 times (1.7 in the middle) as fast as TF32" in sentence
    assert "Its data sheet promises 16 over FP32 and 2 over TF32" in sentence


def test_an_unknown_card_is_refused():
    with pytest.raises(ValueError, match="expected a card of"):
        widgets.gains_figure("A1000")


def test_generations_figure_names_the_first_and_last_gain():
    sentence = " ".join(widgets.generations_figure().get_supxlabel().split())
    assert "ResNet-50 2.26 to 1.04" in sentence
    assert "BERT-large 4.75 to 1.86" in sentence


def test_generations_figure_warns_that_the_reference_may_be_tf32():
    assert "may be TF32" in widgets.generations_figure().get_supxlabel()


def test_gains_figure_says_that_fp16_was_not_compared():
    figure = widgets.gains_figure("GB200")
    assert "no speed of FP16" in figure.axes[0].texts[0].get_text()
