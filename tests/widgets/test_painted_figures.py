"""Figures of the pictures that runs painted, and their sentences."""

from dataclasses import replace

import pytest

from labkit import widgets
from labkit.train import recorded


def test_pictures_of_runs_of_two_lengths_name_both():
    whole = recorded("painted_picture", "FP32", 0)
    short = replace(recorded("painted_picture", "FP16", 0), steps=whole.steps[:10])
    sentence = widgets.pictures_sentence([whole, short])
    assert "after 1,000 steps" in sentence
    assert "after 10 steps" in sentence


def test_pictures_of_no_runs_have_no_sentence():
    with pytest.raises(ValueError, match="expected at least one record"):
        widgets.pictures_sentence([])


# Pictures of a run, and the target after them.
COLUMNS = 7


@pytest.fixture(scope="module")
def panels():
    """The panels of the pictures of FP32, and below them those of FP16."""
    records = [recorded("painted_picture", recipe, 0) for recipe in ("FP32", "FP16")]
    axes = widgets.pictures_figure(records).axes
    return [axes[:COLUMNS], axes[COLUMNS:]]


def pictures(row):
    return [panel.images[0].get_array() for panel in row]


def test_pictures_of_a_run_are_titled_with_their_steps(panels):
    steps = [f"step {step:,}" for step in range(0, 1001, 200)]
    assert [panel.get_title() for panel in panels[0]] == [*steps, "wanted"]


def test_each_row_of_pictures_ends_with_the_target(panels):
    fp32, fp16 = map(pictures, panels)
    assert (fp32[-1] == fp16[-1]).all()


def test_fp32_paints_the_target_and_fp16_does_not(panels):
    errors = []
    for *_, painted, target in map(pictures, panels):
        errors.append(float(abs(painted - target).mean()))
    assert errors[0] < 0.06
    assert errors[1] > 0.15


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([], "these are of none"),
        (["painted_picture", "digits"], "draws runs of one task"),
        (["digits"], "expected records with pictures, got none in FP32 of digits"),
    ],
)
def test_runs_without_common_pictures_are_refused(tasks, message):
    records = [recorded(task, "FP32", 0) for task in tasks]
    with pytest.raises(ValueError, match=message):
        widgets.pictures_figure(records)
