"""Figures of treated trainings, and their sentences."""

import warnings
from types import SimpleNamespace

import pytest

from labkit import widgets


def test_the_sentence_of_a_treatment_without_steps():
    treatment = SimpleNamespace(losses=(), scales=(), score=0.5, steps=0, error="")
    sentence = "It did no steps. Score at the end: 0.50."
    assert widgets.treatment_sentence(treatment) == sentence
    assert widgets.treatment_figure(treatment).get_supxlabel() == sentence


def test_a_treatment_names_one_skipped_step_in_the_singular():
    treatment = SimpleNamespace(losses=(2.0, 1.0), score=0.5, steps=1, error="")
    assert " 1 step was skipped. " in widgets.treatment_sentence(treatment)


@pytest.mark.parametrize(
    ("scales", "limits"), [((4.0, 2.0, 0.0, 0.0), (0, 3)), ((0.0, 0.0), (-1, 1))]
)
def test_a_scale_that_has_fallen_to_zero_is_drawn(scales, limits):
    steps = len(scales)
    treatment = SimpleNamespace(losses=(1.0,) * steps, scales=scales, score=0, steps=0, error="")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = widgets.treatment_figure(treatment)
    assert figure.axes[1].get_ylim() == limits
