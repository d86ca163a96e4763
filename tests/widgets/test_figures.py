"""Figures and tables of records: their numbers, their texts, and their look on both themes."""

import io
import math
import sys
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from IPython.core.formatters import DisplayFormatter
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb, to_rgba
from matplotlib.image import imread
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from labkit import widgets
from labkit.bench import ElementwiseCase, GemmCase, GemmRecord, GemmRun, measure, sweeps
from labkit.bench.cases import QUICK
from labkit.formats import BF16, FP16, FP32
from labkit.instrument import snapshot
from labkit.machine.device import device_report
from labkit.train import RunRecord, StepRecord, record_path, recorded, train
from labkit.widgets import (
    race_figure,
    recipe_table,
    roofline_figure,
    static_underflow,
    sum_errors_figure,
    sweep_figure,
)
from labkit.widgets.base.figures import THEMED, png
from labkit.widgets.driven.controller import Button
from labkit.widgets.scaler_timeline.widget import static_timeline
from labkit.widgets.underflow.widget import WHY_STATIC


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


def test_missing_records_are_named_in_both_panels(data):
    for figure in (sweep_figure("size"), roofline_figure()):
        for axes in figure.axes:
            assert not axes.lines
            assert words(axes) == "not recorded yet: `make gpu` on a machine with a GPU records it"
        assert "not recorded yet" in figure.get_supxlabel()


def test_records_of_a_gpu_and_a_cpu_have_a_panel_each(data):
    data(SIZE, replace(SIZE, kind="cpu", device="A CPU"))
    left, right = sweep_figure("size").axes
    assert title(left) == "Recorded: A stand-in, torch 2.0, driver 1.0, 2026-01-02"
    assert title(right).startswith("Recorded: A CPU")
    # One line for each format.
    assert len(left.lines) == 3


def test_the_newest_record_of_a_sweep_is_drawn(data):
    data(SIZE)
    data(replace(SIZE, device="A newer one", date="2026-02-02T00:00:00+00:00"), record("batch"))
    assert [entry.device for entry in widgets.recorded_gemm("size", "cuda")] == [
        "A newer one",
        "A stand-in",
    ]
    assert "A newer one" in title(sweep_figure("size").axes[0])


def test_a_sweep_without_a_timed_case_says_so(data):
    data(record("batch"))
    assert "Nothing of this sweep could be timed on A stand-in." in words(
        sweep_figure("batch").axes[0]
    )


def test_a_record_of_another_sweep_is_refused():
    with pytest.raises(
        ValueError, match=r"a picture of the sweep 'batch'; `here` is of 'size'. Measure 'batch'."
    ):
        sweep_figure("batch", SIZE)


def test_sentence_of_each_sweep_follows_from_its_times():
    """2 * 128^3 FLOP in 4 microseconds are 1.05 TFLOP/s."""
    case = GemmCase(64, 64, 64, FP16, "NT")
    rows = ((1, 2e-6), (256, 5e-6))
    odd = [
        (GemmCase(64, 64, k, FP16, "NT"), 1e-6 if k == 64 else 4e-6 * k / 64) for k in range(57, 65)
    ]
    ops = [
        timed(ElementwiseCase(op, 1000, FP16), s)
        for op, s in (("hardswish", 1e-6), ("hardswish by hand", 3e-6))
    ]
    kernels = [
        timed(case, 8e-6),
        timed(replace(case, kernel="slow"), 2e-5),
        timed(replace(case, kernel="good"), 1e-5),
    ]
    for sweep, runs, expected in (
        (
            "size",
            SIZE.runs,
            "a product of 128 x 128 x 128 in FP32 runs at 1.05 TFLOP/s; BF16 2 times as fast, "
            "FP16 4 times as fast.",
        ),
        (
            "alignment",
            [timed(*pair) for pair in odd],
            "sizes that are not multiples of 8 reach 25% (FP16) of the median speed of those that "
            "are.",
        ),
        (
            "batch",
            [timed(GemmCase(m, 64, 64, FP16, "NT"), seconds) for m, seconds in rows],
            "256 rows take 2.5 times (FP16) as long as 1 row.",
        ),
        (
            "bandwidth",
            [*COPIES, *ops],
            "FP16 copies 2 times as fast as FP32; in FP16 one kernel is 3 times as fast as "
            "the same by hand in four.",
        ),
        ("kernel", kernels, "our own kernel reaches 80% of cuBLAS at 64 (tiles good)."),
        (
            "layers",
            [square(64, FP16, 1e-6), square(64, FP32, 2e-6)],
            "the fastest is FP16 NT 64x64x64 with 524 "
            "GFLOP/s, the slowest FP32 NT 64x64x64 with 262 GFLOP/s.",
        ),
    ):
        assert widgets.sweep_sentence(record(sweep, *runs)) == f"On A stand-in, {expected}"


@pytest.mark.parametrize("sweep", ["alignment", "batch", "bandwidth"])
def test_a_sweep_without_a_comparison_names_its_extremes(sweep):
    """A sweep may end before the cases that its sentence compares."""
    run = timed(ElementwiseCase("copy", 1000, FP16), 1e-6) if sweep == "bandwidth" else SIZE.runs[0]
    sentence = widgets.sweep_sentence(record(sweep, run))
    assert sentence.startswith(f"On A stand-in, the fastest is {run.case.label} with ")


def test_fp32_alone_is_not_compared():
    sentence = widgets.sweep_sentence(record("size", SIZE.runs[0]))
    assert sentence == "On A stand-in, a product of 64 x 64 x 64 in FP32 runs at 524 GFLOP/s."


def test_figures_of_measured_sweeps_can_be_drawn(data):
    measured = {
        name: measure(name, "cpu", extent=QUICK, rounds=1) for name in sweeps(device_report("cpu"))
    }
    for sweep, found in measured.items():
        figure = sweep_figure(sweep, found)
        right = figure.axes[1]
        assert title(right).startswith("Measured here: "), sweep
        assert right.lines or right.patches, sweep
        assert figure.get_supxlabel(), sweep
        # Labels that do not fit, or marks that matplotlib does not know, would fail here.
        figure.canvas.draw()
    assert title(roofline_figure(here=[measured["ceilings"], measured["size"]]).axes[1]).startswith(
        "Measured here"
    )
    with pytest.raises(ValueError, match="expected a copy and a product"):
        roofline_figure(here=[measured["size"]])


def test_roof_is_drawn_from_copies_and_products_of_one_device(data):
    """1 GB/s of copies and 1.05 TFLOP/s of FP32 products meet at 1049 FLOP for each byte."""
    data(record("ceilings", *COPIES, *SIZE.runs[1:]), SIZE, replace(SIZE, device="Another"))
    figure = roofline_figure(["size"])
    left, right = figure.axes
    assert "not recorded yet" in words(right)
    assert title(left).startswith("Recorded: A stand-in")
    assert figure.get_supxlabel().replace("\n", " ") == (
        "A stand-in copies 1 GB/s. A case waits for memory below these FLOP per byte: FP32 1000, "
        "BF16 2100, FP16 4200. So do 7 of these 7 cases."
    )
    roofs = [line for line in left.lines if line.get_marker() in ("", "None")]
    assert len(roofs) == 3
    heights = roofs[0].get_ydata()
    # Left of its ridge, the height of a roof is bandwidth times intensity.
    assert heights[0] == pytest.approx(0.25e9 / 1e12, rel=0.01)
    points = sum(len(line.get_xdata()) for line in left.lines if line.get_ls() == "None")
    # No case of the other device is drawn.
    assert points == len(SIZE.runs[1:]) + len(SIZE.runs)


def test_published_numbers_replace_missing_gpu_records():
    for sweep in ("size", "bandwidth", "alignment"):
        left, right = sweep_figure(sweep, card="V100").axes
        assert title(left).startswith("Published by others: V100")
        assert {line.get_marker() for line in left.lines} - {"None", ""} == {"H"}
        assert title(right).startswith("Recorded: ")
        # The marker "H" is that of published numbers.
        assert "H" not in {line.get_marker() for line in right.lines}


def test_a_roofline_of_a_card_has_the_numbers_of_its_data_sheet():
    figure = roofline_figure(card="T4")
    dotted = [line for line in figure.axes[0].lines if line.get_linestyle() == ":"]
    assert sorted(round(max(line.get_ydata())) for line in dotted) == [8, 65]
    assert "T4 moves 320 GB/s" in figure.get_supxlabel()


def test_gains_figure_states_measured_and_promised_gains():
    figure = widgets.gains_figure("A100")
    words = " ".join(figure.get_supxlabel().split())
    assert "training 0.94 to 5.2 times (1.7 in the middle) as fast as TF32" in words
    assert "Its data sheet promises 16 over FP32 and 2 over TF32" in words


def test_an_unknown_card_is_refused():
    with pytest.raises(ValueError, match="expected a card of"):
        widgets.gains_figure("A1000")


def test_generations_figure_names_the_first_and_last_gain():
    words = " ".join(widgets.generations_figure().get_supxlabel().split())
    assert "ResNet-50 2.26 to 1.04" in words
    assert "BERT-large 4.75 to 1.86" in words


def test_generations_figure_warns_that_the_reference_may_be_tf32():
    assert "may be TF32" in widgets.generations_figure().get_supxlabel()


def test_gains_figure_says_that_fp16_was_not_compared():
    figure = widgets.gains_figure("GB200")
    assert "no speed of FP16" in figure.axes[0].texts[0].get_text()


RECIPES = ("FP32", "FP16", "FP16 static too high")
RECORDS = [recorded("segmentation", recipe, seed) for recipe in RECIPES for seed in (0, 1)]


def test_a_race_states_its_metrics_and_its_provenance() -> None:
    figure = race_figure(RECORDS)
    first = RECORDS[0]
    provenance = (
        f"Recorded: segmentation, on {first.device} with torch {first.versions['torch']}, "
        f"{first.date[:10]}"
    )
    assert figure.get_suptitle() == provenance
    assert figure.get_supxlabel().replace("\n", " ") == widgets.race_sentence(RECORDS)
    fp32 = [r.metric for r in RECORDS if r.recipe == "FP32"]
    assert f"FP32 {sum(fp32) / 2:.2f};" in widgets.race_sentence(RECORDS)
    losses, metrics = figure.axes
    # Each run is a line.
    assert len(losses.lines) == len(RECORDS)
    assert [label.get_text() for label in metrics.get_yticklabels()] == [
        "FP32",
        "FP16",
        "FP16 static too high",
    ]


def test_a_race_of_no_records_or_two_devices_is_refused() -> None:
    for records, words in (
        ([RECORDS[0], replace(RECORDS[1], device="another")], "and torch"),
        ([], "these are none"),
    ):
        with pytest.raises(ValueError, match=f"one task, device .*{words}"):
            race_figure(records)
    with pytest.raises(ValueError, match="expected at least one record"):
        widgets.race_sentence([])


def test_race_states_the_speed_of_one_device() -> None:
    timed = [replace(r, step_seconds=0.1 if r.recipe == "FP32" else 0.05) for r in RECORDS]
    speeds = f"Steps a second on {RECORDS[0].device}: FP32 10, FP16 20 (2 times FP32)"
    assert speeds in widgets.race_sentence(timed)
    assert speeds in race_figure(timed).get_supxlabel().replace("\n", " ")
    # The shipped records were not timed, and speeds of two devices are not compared.
    assert "Steps a second" not in widgets.race_sentence(RECORDS)
    elsewhere = [replace(timed[0], device="Tesla T4"), *timed[1:]]
    assert "Steps a second" not in widgets.race_sentence(elsewhere)


def test_lines_of_a_race_differ_in_colour_and_width() -> None:
    named = [replace(RECORDS[0], recipe=name) for name in ("FP32", "BF16 no master", "FP8", "O2")]
    lines = race_figure(named).axes[0].lines
    assert len({line.get_color() for line in lines}) == 4
    widths = [line.get_linewidth() for line in lines]
    assert widths == sorted(set(widths), reverse=True)


def test_losses_of_a_short_race_are_means_of_its_steps() -> None:
    short = [replace(r, steps=r.steps[:4]) for r in RECORDS[:2]]
    losses = race_figure(short).axes[0]
    assert losses.get_ylabel() == "loss (mean of 4 steps)"
    for line, run in zip(losses.lines, short, strict=True):
        (mean,) = line.get_ydata()
        assert mean == pytest.approx(sum(step.loss for step in run.steps) / 4)


STEP = StepRecord(1, 0.5, 1.0, False, True)
RECORD = RunRecord("toy", "FP32", 0, (STEP,), 0.9, "accuracy", 1.0, "CPU", {"torch": "2"}, "")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with records of three seeds.

    FP32 has 0.90, 0.91 and 0.92; O1 is as good, O3 worse; one run of BF16 broke; 60% of FP16's
    gradients underflow in its first step.
    """
    metrics = {"FP32": 0.90, "O1": 0.895, "O3": 0.40, "BF16": 0.90, "FP16": 0.91}
    for recipe, metric in metrics.items():
        for seed in range(3):
            loss = math.nan if recipe == "BF16" and seed == 2 else 0.5
            step = replace(STEP, loss=loss, underflow=0.6 if recipe == "FP16" else None)
            put(tmp_path, recipe, seed, metric=metric + 0.01 * seed, steps=(step,))
    return tmp_path


def put(folder: Path, recipe: str, seed: int, **fields: Any) -> None:
    record = replace(RECORD, recipe=recipe, seed=seed, **fields)
    record.save(record_path(folder, "toy", recipe, seed))


def test_each_cell_is_the_verdict_of_its_records(folder: Path) -> None:
    table = recipe_table(["toy"], ["O1", "O3", "BF16", "O2"], folder=folder)
    assert [table.verdict("toy", r) for r in table.recipes] == ["as good", "worse", "broken", ""]
    assert repr(table).splitlines()[1:3] == ["O1      as good    ", "O3      worse      "]
    assert (
        recipe_table(["toy"], ["O3"], seeds=(1,), folder=folder).verdict("toy", "O3") == "one seed"
    )
    assert (
        table.sentence
        == "Of 3 pairs of recipe and task: 1 as good, 1 worse, 1 broken. 1 are not run yet."
    )


def test_a_table_uses_all_common_seeds_unless_seeds_are_given(folder: Path) -> None:
    put(folder, "FP32", 7)
    put(folder, "O1", 7, metric=0.89)
    found = [
        recipe_table(["toy"], ["O1"], seeds, folder).difference("toy", "O1")
        for seeds in (None, (0, 1))
    ]
    assert [difference.seeds for difference in found if difference is not None] == [4, 2]


def test_table_states_its_rule_and_margin(folder: Path) -> None:
    for seed in range(3):
        put(folder, "O2", seed, metric=0.898 + 0.01 * seed)
    html = recipe_table(["toy"], ["O2"], folder=folder)._repr_html_()
    rule = "the 90% interval of the difference lies inside the margin of 0.02"
    for words in (rule, "3 seeds, margin 0.02", ">0.00<"):
        assert words in html
    assert ">-0.00<" not in html


def test_table_states_underflow_and_range_of_the_reference(folder: Path) -> None:
    table = recipe_table(["toy"], ["O1"], folder=folder)
    assert table.lost("toy") == pytest.approx(0.6)
    html = table._repr_html_()
    for words in ("60%", "0.90 to 0.92", "Recorded on CPU with torch 2."):
        assert words in html


def test_a_record_of_another_device_is_refused(folder: Path) -> None:
    put(folder, "O1", 0, device="Tesla T4")
    with pytest.raises(ValueError, match=r"expected a record of CPU .*, got one of Tesla T4"):
        recipe_table(["toy"], ["O1"], folder=folder)


def test_empty_cell_names_the_command_that_fills_it(folder: Path) -> None:
    table = recipe_table(["toy"], ["O1", "FP16 static"], folder=folder)
    assert (
        table.missing()
        == f'labkit compare toy --recipes FP32 "FP16 static" --seeds 0 1 2 --folder {folder}'
    )
    assert recipe_table(["toy"], ["O1"], folder=folder).missing() == ""
    # Without FP32 there is nothing to compare with.
    for seed in range(3):
        record_path(folder, "toy", "FP32", seed).unlink()
    assert recipe_table(["toy"], ["O1"], folder=folder).verdict("toy", "O1") == ""


@pytest.fixture
def snap():
    spread = torch.exp2(torch.linspace(-34, -6, 400))
    return snapshot({"conv": spread, "head": spread * 2.0**20}, step=0, kind="weight gradients")


def bars(figure):
    """Return colour -> total height of its bars, in percent."""
    heights = dict.fromkeys(widgets.FATE_COLOURS.values(), 0.0)
    for container in figure.axes[0].containers:
        for patch in container:
            red, green, blue, _ = (round(255 * channel) for channel in patch.get_facecolor())
            heights[f"#{red:02X}{green:02X}{blue:02X}"] += patch.get_height()
    return heights


def test_figure_names_its_layer(snap):
    loaded = "matplotlib.pyplot" in sys.modules
    for options, *says in (({}, WHY_STATIC, "at scale 2⁰"), ({"layer": "head"}, "of head,")):
        figure = static_underflow(snap, **options)
        shown = " ".join(text.get_text() for text in figure.texts).replace("\n", " ")
        assert [words for words in says if words not in shown] == []
        png(figure)
    assert ("matplotlib.pyplot" in sys.modules) == loaded
    with pytest.raises(KeyError):
        static_underflow(snap, layer="haed")


def test_bars_have_the_heights_of_the_fractions(snap):
    widget = widgets.UnderflowHistogram(snap)
    for k in (0, 6, 30):
        widget.log2_scale = k
        drawn = bars(static_underflow(snap, FP16, k))
        # At 2^30 some of layer head lies beyond the axis, so overflow may be drawn shorter, never
        # taller.
        for name, colour in widgets.FATE_COLOURS.items():
            wanted = pytest.approx(100 * widget.fractions[name])
            assert drawn[colour] == wanted or (
                name == "overflowed" and drawn[colour] <= 100 * widget.fractions[name]
            )


class Images(HTMLParser):
    """Collects the attributes of the first drawing."""

    def handle_starttag(self, tag, attributes):
        self.found = getattr(self, "found", None) or (dict(attributes) if tag == "svg" else {})


def test_pictures_of_runs_of_two_lengths_name_both():
    whole = recorded("painted_picture", "FP32", 0)
    short = replace(recorded("painted_picture", "FP16", 0), steps=whole.steps[:10])
    sentence = widgets.pictures_sentence([whole, short])
    assert "after 1,000 steps" in sentence
    assert "after 10 steps" in sentence


def test_pictures_of_no_runs_have_no_sentence():
    with pytest.raises(ValueError, match="expected at least one record"):
        widgets.pictures_sentence([])


def test_the_sentence_of_a_treatment_without_steps():
    treatment = SimpleNamespace(losses=(), scales=(), score=0.5, steps=0, error="")
    assert widgets.treatment_sentence(treatment) == "It did no steps. Score at the end: 0.50."
    assert widgets.treatment_figure(treatment).get_supxlabel()


def test_a_treatment_names_one_skipped_step_in_the_singular():
    treatment = SimpleNamespace(losses=(2.0, 1.0), score=0.5, steps=1, error="")
    assert " 1 step was skipped. " in widgets.treatment_sentence(treatment)


def test_a_figure_of_a_lesson_has_a_text_alternative():
    """IPython shows an image whose label contains the sentence of the figure."""
    races = [recorded("digits", recipe, 0) for recipe in ("FP32", "O1")]
    painted = [recorded("painted_picture", recipe, 0) for recipe in ("FP32", "FP16")]
    for figure, sentence in (
        (race_figure(races), widgets.race_sentence(races)),
        (widgets.pictures_figure(painted), widgets.pictures_sentence(painted)),
        (sum_errors_figure(widgets.sum_errors((64,))), "Same inputs, emulated to the bit"),
        (sweep_figure("size"), widgets.sweep_sentence(widgets.recorded_gemm("size", "cpu")[0])),
        (roofline_figure(), "A case waits for memory"),
    ):
        shown, _ = DisplayFormatter().format(figure)
        page = Images()
        page.feed(shown["text/html"])
        assert sentence in page.found["aria-label"]
        assert page.found["role"] == "img"
        assert "max-width: 100%" in page.found["style"]
        # A notebook stores its figures, so they must be small.
        assert len(shown["text/html"]) < 400_000
        assert shown["image/png"]


def test_pictures_of_a_run_are_a_row_that_ends_with_the_target():
    records = [recorded("painted_picture", recipe, 0) for recipe in ("FP32", "FP16")]
    axes = widgets.pictures_figure(records).axes
    drawn = [panel.images[0].get_array() for panel in axes]
    assert [panel.get_title() for panel in axes[:7]] == [
        *(f"step {step:,}" for step in range(0, 1001, 200)),
        "wanted",
    ]
    # The last picture of both rows is the target.
    assert (drawn[6] == drawn[13]).all()
    fp32, fp16 = (float(abs(drawn[row * 7 + 5] - drawn[6]).mean()) for row in (0, 1))
    assert fp32 < 0.06
    assert fp16 > 0.15


@cache
def mapped():
    """A short training with the exponents of its gradients."""
    watch = ("activation gradients",)
    return train(
        "painted_picture", "FP16 dynamic", steps=20, measure_every=0, watch=watch, watch_every=10
    )


def test_the_map_of_scales_has_the_path_of_the_run():
    record = mapped()
    (axes,) = widgets.scale_map_figure(record).axes
    (image,), (path, *_) = axes.images, axes.lines
    shades = image.get_array()
    assert shades.shape[:2] == (41, 2)
    # The opacity is the share of lost gradients: nearly all at a scale of 1, none at 2^20. At 2^40
    # some overflow.
    assert shades[0, 0, 3] > 0.99
    assert shades[20, 0, 3] < 0.01
    assert shades[40, 0, 3] == 0.7
    assert list(path.get_ydata()) == [np.log2(step.scale) for step in record.steps]
    assert "Safe scales: at first from 2^1" in widgets.scale_map_sentence(record)
    with pytest.raises(ValueError, match="expected snapshots of one kind"):
        widgets.scale_map_figure(recorded("digits", "FP32", 0))


def test_runs_without_pictures_or_of_two_tasks_are_refused():
    painted = recorded("painted_picture", "FP32", 0)
    digits = recorded("digits", "FP32", 0)
    for records, message in (
        ([], "these are of none"),
        ([painted, digits], "draws runs of one task"),
        ([digits], "expected records with pictures, got none in FP32 of digits"),
    ):
        with pytest.raises(ValueError, match=message):
            widgets.pictures_figure(records)


# The least contrast of text (WCAG 2.1, 1.4.3), here also required of lines.
LEAST = 4.5
# An opacity up to which an artist is a zone or a grid in the background.
FAINT = 0.5
PAGES = {"white": (1.0, 1.0, 1.0), "#111": to_rgb("#111111")}


def luminance(colour):
    """Return the relative luminance (WCAG 2.2)."""
    channels = np.array(to_rgb(colour))
    return float(
        np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
        @ (0.2126, 0.7152, 0.0722)
    )


def contrast(one, other):
    """Return the contrast of two colours (WCAG 2.2), from 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_colours_of_a_theme_have_enough_contrast():
    for of_png, colours in THEMED.items():
        for colour, page in zip(colours, PAGES.values(), strict=True):
            assert contrast(colour, page) >= LEAST, (of_png, colour)


def inks(figure):
    """Yield (description, colour) of texts, lines, markers and bars, without the background."""
    for artist in figure.findobj(
        lambda a: a.get_visible() and (a.get_alpha() is None or np.min(a.get_alpha()) > FAINT)
    ):
        if isinstance(artist, Text) and artist.get_text().strip():
            yield f"text {artist.get_text()!r}", artist.get_color()
        elif isinstance(artist, Line2D) and len(artist.get_xdata()):
            marker_colours = (
                [artist.get_markeredgecolor()]
                if artist.get_marker() not in ("None", "", None)
                else []
            )
            for colour in [artist.get_color(), *marker_colours]:
                yield "line", colour
        elif isinstance(artist, LineCollection):
            for colour in artist.get_colors():
                yield "lines", colour[:3]
        elif isinstance(artist, Rectangle) and artist.get_facecolor()[3] > 0.5:
            yield "bar", artist.get_facecolor()[:3]


def figure_of_all_fates():
    gradients = {"conv": torch.exp2(torch.linspace(-34, 17, 400))}
    return static_underflow(snapshot(gradients, step=0, kind="weight gradients"))


def figure_after_three_steps(widget):
    widget.controller.handle(Button.START)
    for _ in range(3):
        widget.controller.tick()
    figure = widget.figure("why it is still")
    widget.close()
    return figure


def figure_of_presets():
    board = widgets.ScalerPresets()
    return static_timeline(board.replays, board.trace)


FIGURES = {
    "race": lambda: race_figure(
        [recorded("segmentation", name, 0) for name in ("FP32", "FP16", "FP16 static")]
    ),
    "pictures": lambda: widgets.pictures_figure(
        [recorded("painted_picture", name, 0) for name in ("FP32", "FP16", "FP16 static")]
    ),
    "map": lambda: widgets.scale_map_figure(mapped()),
    "roofline": roofline_figure,
    "alignment": lambda: sweep_figure("alignment"),
    "layers": lambda: sweep_figure("layers"),
    "published": widgets.gains_figure,
    "generations": widgets.generations_figure,
    "sums": sum_errors_figure,
    "underflow": figure_of_all_fates,
    "presets": figure_of_presets,
    "bench": lambda: figure_after_three_steps(
        widgets.Workbench("digits", "FP16 static", steps=3, device="cpu")
    ),
    "game": lambda: figure_after_three_steps(widgets.BeatTheScaler(steps=3, device="cpu")),
}


@pytest.mark.parametrize("name", FIGURES)
def test_colours_have_enough_contrast_on_a_white_page(name):
    figure = FIGURES[name]()
    corner = imread(io.BytesIO(png(figure)))[0, 0]
    assert corner.tolist() == [1, 1, 1, 1]
    found = {(what, to_rgba(colour)[:3]) for what, colour in inks(figure)}
    assert len(found) > 3
    assert [what for what, colour in found if contrast(colour, PAGES["white"]) < LEAST] == []


@pytest.mark.parametrize("name", FIGURES)
def test_every_dark_colour_has_one_for_a_dark_theme(name):
    """A colour that the table lacks would stay dark on the black page of an SVG."""
    known = {to_rgba(colour)[:3] for colour in THEMED}
    unknown = [
        (what, colour)
        for what, colour in inks(FIGURES[name]())
        if contrast(colour, PAGES["#111"]) < 3 and to_rgba(colour)[:3] not in known
    ]
    assert unknown == []
