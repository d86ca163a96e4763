"""Figures with an axis of steps: where the curves of losses end, and how they are named."""

import math

import pytest

from labkit.widgets.base.figures import Curve, Panel, steps_figure


def texts_of(values):
    """Return the texts in a panel with one loss, and the annotation of its end."""
    panel = Panel("Loss", "loss", [Curve(values, "#0072B2", "FP16")])
    axes, *_ = steps_figure([panel], len(values), "", "").axes
    ends = [text for text in axes.texts if hasattr(text, "xy")]
    return [text.get_text() for text in axes.texts], ends


@pytest.mark.parametrize(
    ("values", "place"),
    [((1.0, 0.5, 0.25), (3, 0.25)), ((1.0, 0.5, 0.0), (2, 0.5)), ((1.0, math.nan), (1, 1.0))],
)
def test_a_loss_is_named_at_its_last_value_on_the_axis(values, place):
    """A logarithmic axis has no place for 0, at which a name would not be drawn."""
    _, (end,) = texts_of(values)
    assert end.get_text() == "FP16"
    assert tuple(end.xy) == place


def test_the_first_loss_that_is_not_finite_is_named():
    texts, _ = texts_of((1.0, math.inf, math.nan))
    assert " FP16: inf from step 2" in texts
