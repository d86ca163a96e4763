"""The map of safe scales of a run."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from labkit import widgets
from labkit.train import recorded, train


@cache
def painted_with_gradients():
    """A short training with the exponents of its gradients."""
    watch = ("activation gradients",)
    return train(
        "painted_picture", "FP16 dynamic", steps=20, measure_every=0, watch=watch, watch_every=10
    )


@pytest.fixture(scope="module")
def axes():
    (axes,) = widgets.scale_map_figure(painted_with_gradients()).axes
    return axes


def test_the_map_has_a_row_for_each_scale_and_a_column_for_each_snapshot(axes):
    (image,) = axes.images
    assert image.get_array().shape[:2] == (41, 2)


@pytest.mark.parametrize(
    ("log2_scale", "low", "high"),
    [
        (0, 0.99, 1.0),
        (20, 0.0, 0.01),
        # Some overflow.
        (40, 0.7, 0.7),
    ],
)
def test_the_opacity_is_the_share_of_lost_gradients(axes, log2_scale, low, high):
    (image,) = axes.images
    opacity = image.get_array()[log2_scale, 0, 3]
    assert low <= opacity <= high


def test_the_map_has_the_path_of_the_scale(axes):
    path, *_ = axes.lines
    scales = [step.scale for step in painted_with_gradients().steps]
    assert list(path.get_ydata()) == list(np.log2(scales))


def test_the_sentence_states_the_safe_scales():
    sentence = widgets.scale_map_sentence(painted_with_gradients())
    assert "Safe scales: at first from 2^1" in sentence


def test_a_run_without_exponents_of_gradients_is_refused():
    with pytest.raises(ValueError, match="expected snapshots of one kind"):
        widgets.scale_map_figure(recorded("digits", "FP32", 0))


def test_exponents_without_the_steps_of_their_run_are_refused():
    with pytest.raises(ValueError, match="expected a record with steps"):
        widgets.scale_map_figure(replace(painted_with_gradients(), steps=()))
