"""Figures and tables of records: titles say whose they are, sentences what they show, and nothing is made up."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from labkit.bench import ElementwiseCase, GemmCase, GemmRecord, GemmRun, measure, sweeps
from labkit.bench.cases import QUICK
from labkit.formats import BF16, FP16, FP32
from labkit.machine.device import device_report
from labkit.train import RunRecord, StepRecord, record_path, recorded
from labkit.widgets import (
    gains_figure,
    race_figure,
    race_sentence,
    recipe_table,
    recorded_gemm,
    roofline_figure,
    sweep_figure,
    sweep_sentence,
)

ROOT = Path(__file__).parents[2]
SWEEPS = list(sweeps(device_report("cpu")))


def timed(case, seconds):
    return GemmRun(case, seconds, seconds, seconds, 1, 0.25)


def record(sweep, *runs, kind="cuda", device="A stand-in", date="2026-01-02T03:04:05+00:00"):
    versions = {"torch": "2.0", **({"driver": "1.0"} if kind == "cuda" else {})}
    return GemmRecord(sweep, "What?", runs, device, kind, "a told clock", versions, date)


def square(n, format, seconds):
    return timed(GemmCase(n, n, n, format, "NT"), seconds)


SIZE = record("size", square(64, FP32, 1e-6), square(128, FP32, 4e-6), square(128, BF16, 2e-6), square(128, FP16, 1e-6))
COPIES = [timed(ElementwiseCase("copy", 1000, format), seconds) for format, seconds in ((FP32, 8e-6), (FP16, 4e-6))]


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A data folder of our own; what is put in is on record."""
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path))

    def put(*records):
        for each in records:
            file = tmp_path / "gemm" / each.device.replace(" ", "-") / f"{each.sweep}.json"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(each.to_json())

    return put


def words(axes):
    return " ".join(" ".join(text.get_text() for text in axes.texts).split())


def title(axes):
    return " ".join(axes.get_title(loc="left").split())


# What was not recorded is not shown


def test_without_records_both_panels_say_so(data):
    for figure in (sweep_figure("size"), roofline_figure()):
        for axes in figure.axes:
            assert not axes.lines
            assert words(axes) == "not recorded yet: `make gpu` on a machine with a GPU records it"
        assert "not recorded yet" in figure.get_supxlabel()


def test_what_was_recorded_names_device_driver_versions_and_date(data):
    data(SIZE, replace(SIZE, kind="cpu", device="A CPU"))
    left, right = sweep_figure("size").axes
    assert title(left) == "Recorded: A stand-in, torch 2.0, driver 1.0, 2026-01-02"
    assert title(right).startswith("Recorded: A CPU")
    assert len(left.lines) == 3, "a line for each format"
    data(replace(SIZE, device="A newer one", date="2026-02-02T00:00:00+00:00"), record("batch"))
    assert [each.device for each in recorded_gemm("size", "cuda")] == ["A newer one", "A stand-in"]
    assert "A newer one" in title(sweep_figure("size").axes[0])
    assert "Nothing of this sweep could be timed on A stand-in." in words(sweep_figure("batch").axes[0])
    with pytest.raises(ValueError, match=r"a picture of the sweep 'batch'; `here` is of 'size'. Measure 'batch'."):
        sweep_figure("batch", SIZE)


# Sentences, with numbers that a person can check


def test_each_sweep_has_a_sentence_that_a_person_can_check():
    """2 * 128^3 FLOP in 4 microseconds are 1.05 TFLOP/s."""
    case, rows = GemmCase(64, 64, 64, FP16, "NT"), ((1, 2e-6), (256, 5e-6))
    odd = [(GemmCase(64, 64, k, FP16, "NT"), 1e-6 if k == 64 else 4e-6 * k / 64) for k in range(57, 65)]
    ops = [timed(ElementwiseCase(op, 1000, FP16), s) for op, s in (("hardswish", 1e-6), ("hardswish by hand", 3e-6))]
    kernels = [timed(case, 8e-6), timed(replace(case, kernel="slow"), 2e-5), timed(replace(case, kernel="good"), 1e-5)]
    for sweep, runs, said in (
        ("size", SIZE.runs, "a product of 128 x 128 x 128 in FP32 runs at 1.05 TFLOP/s; BF16 2 times as fast, "
         "FP16 4 times as fast."),
        ("alignment", [timed(*each) for each in odd], "sizes that are no multiple of 8 run, in the middle, FP16 at 25% "
         "of the speed of those that are."),
        ("batch", [timed(GemmCase(m, 64, 64, FP16, "NT"), seconds) for m, seconds in rows], "256 rows take so many "
         "times as long as 1 row takes: 2.5 in FP16."),
        ("bandwidth", [*COPIES, *ops], "FP16 copies 2 times as fast as FP32; in FP16 one kernel is 3 times as fast as "
         "the same by hand in four."),
        ("kernel", kernels, "our own kernel reaches 80% of cuBLAS at 64 (tiles good)."),
        ("layers", [square(64, FP16, 1e-6), square(64, FP32, 2e-6)], "the fastest is FP16 NT 64x64x64 with 524 "
         "GFLOP/s, the slowest FP32 NT 64x64x64 with 262 GFLOP/s."),
    ):  # fmt: skip
        assert sweep_sentence(record(sweep, *runs)) == f"On A stand-in, {said}"


# Every picture


@pytest.fixture(scope="module")
def measured():
    return {name: measure(name, "cpu", extent=QUICK, rounds=1) for name in SWEEPS}


def test_every_sweep_can_be_drawn_as_measured_here(measured, data):
    for sweep in SWEEPS:
        figure = sweep_figure(sweep, measured[sweep])
        right = figure.axes[1]
        assert title(right).startswith("Measured here: "), sweep
        assert right.lines or right.patches, sweep
        assert figure.get_supxlabel(), sweep
        figure.canvas.draw()  # labels that do not fit, or marks that matplotlib does not know, would fail here


def test_the_roof_is_drawn_where_copies_and_products_say(data):
    """1 GB/s of copies and 1.05 TFLOP/s of FP32 products meet at 1049 FLOP for each byte."""
    data(record("ceilings", *COPIES, *SIZE.runs[1:]), SIZE)
    figure = roofline_figure(["size"])
    left, right = figure.axes
    assert "not recorded yet" in words(right)
    assert title(left).startswith("Recorded: A stand-in")
    assert figure.get_supxlabel().replace("\n", " ") == (
        "A stand-in copies 1 GB/s; below so many FLOP a byte a case waits for memory: FP32 1000, BF16 2100, "
        "FP16 4200. So do 7 of these 7 cases."
    )
    roofs = [line for line in left.lines if line.get_marker() in ("", "None")]
    assert len(roofs) == 3
    heights = roofs[0].get_ydata()
    assert heights[0] == pytest.approx(0.25e9 / 1e12, rel=0.01), "the slope: bandwidth times intensity"


def test_a_roof_of_this_machine_needs_its_ceilings(measured, data):
    right = roofline_figure(here=[measured["ceilings"], measured["size"]]).axes[1]
    assert title(right).startswith("Measured here")
    with pytest.raises(ValueError, match="expected a copy and a product"):
        roofline_figure(here=[measured["size"]])


def test_records_of_two_devices_never_share_a_roof(data):
    other = replace(SIZE, device="Another")
    data(record("ceilings", *COPIES, *SIZE.runs), SIZE, other)
    left = roofline_figure(["size"]).axes[0]
    points = sum(len(line.get_xdata()) for line in left.lines if line.get_ls() == "None")
    assert points == 2 * len(SIZE.runs)


# What others published stands where no GPU is on record, and is never called ours


def test_without_a_gpu_on_record_a_panel_shows_what_is_published_of_the_chosen_card():
    for sweep in ("size", "bandwidth", "alignment"):
        left, right = sweep_figure(sweep, card="V100").axes
        assert title(left).startswith("Published by others: V100")
        assert {line.get_marker() for line in left.lines} - {"None", ""} == {"H"}
        assert title(right).startswith("Recorded: ")
        assert "H" not in {line.get_marker() for line in right.lines}, "the mark of the published is theirs alone"


def test_the_roofline_of_a_card_is_its_data_sheet():
    figure = roofline_figure(card="T4")
    left, _ = figure.axes
    dotted = [line for line in left.lines if line.get_linestyle() == ":"]
    assert sorted(round(max(line.get_ydata())) for line in dotted) == [8, 65]
    assert "T4 moves 320 GB/s" in figure.get_supxlabel()


def test_gains_are_stated_with_their_range_and_reference():
    figure = gains_figure("A100")
    words = " ".join(figure.get_supxlabel().split())
    assert "training 0.94 to 5.2 times (1.7 in the middle) as fast as TF32" in words
    assert "Its data sheet promises 16 over FP32 and 2 over TF32" in words
    with pytest.raises(ValueError, match="expected a card of"):
        gains_figure("A1000")


RECIPES = ("FP32", "FP16", "FP16 static too high")
RECORDS = [recorded("segmentation", recipe, seed) for recipe in RECIPES for seed in (0, 1)]


def test_it_says_what_it_shows_and_where_that_was_made() -> None:
    figure = race_figure(RECORDS)
    first = RECORDS[0]
    where = f"Recorded: segmentation, on {first.device} with torch {first.versions['torch']}, {first.date[:10]}"
    assert figure.get_suptitle() == where
    assert figure.get_supxlabel().replace("\n", " ") == race_sentence(RECORDS)
    fp32 = [r.metric for r in RECORDS if r.recipe == "FP32"]
    assert f"FP32 {sum(fp32) / 2:.2f};" in race_sentence(RECORDS)
    losses, metrics = figure.axes
    assert len(losses.lines) == len(RECORDS), "each run is a line"
    assert [label.get_text() for label in metrics.get_yticklabels()] == ["FP32", "FP16", "FP16 static too high"]


def test_steps_a_second_are_stated_for_timed_runs_of_one_device() -> None:
    timed = [replace(r, step_seconds=0.1 if r.recipe == "FP32" else 0.05) for r in RECORDS]
    told = f"Steps a second on {RECORDS[0].device}: FP32 10, FP16 20 (2 times FP32)"
    assert told in race_sentence(timed)
    assert told in race_figure(timed).get_supxlabel().replace("\n", " ")
    assert "Steps a second" not in race_sentence(RECORDS), "nobody timed what is on record"
    elsewhere = [replace(timed[0], device="Tesla T4"), *timed[1:]]
    assert "Steps a second" not in race_sentence(elsewhere), "two devices are never on one scale"


def test_a_recipe_has_the_colour_of_its_format_and_one_that_lies_below_another_is_wider() -> None:
    named = [replace(RECORDS[0], recipe=name) for name in ("FP32", "BF16 no master", "FP8", "O2")]
    lines = race_figure(named).axes[0].lines
    assert len({line.get_color() for line in lines}) == 4
    widths = [line.get_linewidth() for line in lines]
    assert widths == sorted(widths, reverse=True)
    assert len(set(widths)) == 4


def test_what_does_not_belong_into_one_picture_is_refused() -> None:
    with pytest.raises(ValueError, match="one task, device and torch"):
        race_figure([RECORDS[0], replace(RECORDS[1], device="another")])
    with pytest.raises(ValueError, match="one task, device and torch; these are none"):
        race_figure([])
    with pytest.raises(ValueError, match="no records"):
        race_sentence([])


RECORD = RunRecord(
    "toy", "FP32", 0, (StepRecord(1, 0.5, 1.0, False, True),), 0.9, "accuracy", 1.0, "CPU", {"torch": "2"}, ""
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """FP32 at 0.90, 0.91, 0.92; O1 as good; O3 worse; BF16 broken once; FP16 loses 60% at its first step."""
    metrics = {"FP32": 0.90, "O1": 0.895, "O3": 0.40, "BF16": 0.90, "FP16": 0.91}
    for recipe, metric in metrics.items():
        for seed in range(3):
            broken = recipe == "BF16" and seed == 2
            lost = 0.6 if recipe == "FP16" else None
            step = StepRecord(1, math.nan if broken else 0.5, 1.0, False, True, lost)
            made = replace(RECORD, recipe=recipe, seed=seed, metric=metric + 0.01 * seed, steps=(step,))
            made.save(record_path(tmp_path, "toy", recipe, seed))
    return tmp_path


def test_each_cell_is_the_verdict_of_its_records(folder: Path) -> None:
    table = recipe_table(["toy"], ["O1", "O3", "BF16", "O2"], folder=folder)
    assert [table.verdict("toy", r) for r in table.recipes] == ["as good", "worse", "broken", ""]
    assert repr(table).splitlines()[1:3] == ["O1      as good    ", "O3      worse      "]
    assert recipe_table(["toy"], ["O3"], seeds=(1,), folder=folder).verdict("toy", "O3") == "one seed"
    assert table.sentence == "Of 3 pairs of recipe and task: 1 as good, 1 worse, 1 broken. 1 are not run yet."


def test_the_table_says_its_rule_its_margin_and_no_minus_zero(folder: Path) -> None:
    for seed in range(3):
        replace(RECORD, recipe="O2", seed=seed, metric=0.898 + 0.01 * seed).save(record_path(folder, "toy", "O2", seed))
    html = recipe_table(["toy"], ["O2"], folder=folder)._repr_html_()
    assert "the 90% interval of the difference lies inside the margin of 0.02" in html
    assert "accuracy, margin 0.02" in html
    assert ">0.00<" in html
    assert ">-0.00<" not in html


def test_all_recorded_seeds_are_read_by_default(folder: Path) -> None:
    replace(RECORD, recipe="FP32", seed=7).save(record_path(folder, "toy", "FP32", 7))
    replace(RECORD, recipe="O1", seed=7, metric=0.89).save(record_path(folder, "toy", "O1", 7))
    found = [recipe_table(["toy"], ["O1"], seeds, folder).difference("toy", "O1") for seeds in (None, (0, 1))]
    assert [difference.seeds for difference in found if difference is not None] == [4, 2]


def test_an_empty_cell_says_which_command_fills_it_and_a_full_table_nothing(folder: Path) -> None:
    table = recipe_table(["toy"], ["O1", "FP16 static"], folder=folder)
    assert table.missing() == f'labkit compare toy --recipes FP32 "FP16 static" --seeds 0 1 2 --folder {folder}'
    assert recipe_table(["toy"], ["O1"], folder=folder).missing() == ""
    for seed in range(3):
        record_path(folder, "toy", "FP32", seed).unlink()
    assert recipe_table(["toy"], ["O1"], folder=folder).verdict("toy", "O1") == "", "nothing to compare with"


def test_losses_of_fp16_without_a_scale_are_shown_below(folder: Path) -> None:
    table = recipe_table(["toy"], ["O1"], folder=folder)
    assert table.lost("toy") == pytest.approx(0.6)
    html = table._repr_html_()
    assert "60%" in html
    assert "0.90 to 0.92" in html
    assert "Recorded on CPU with torch 2." in html

    replace(RECORD, recipe="O1", device="Tesla T4").save(record_path(folder, "toy", "O1", 0))
    with pytest.raises(ValueError, match=r"expected a record of CPU .*, got one of Tesla T4"):
        recipe_table(["toy"], ["O1"], folder=folder)
