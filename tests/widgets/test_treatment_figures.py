"""Figures of treated trainings, and their sentences."""

from types import SimpleNamespace

from labkit import widgets


def test_the_sentence_of_a_treatment_without_steps():
    treatment = SimpleNamespace(losses=(), scales=(), score=0.5, steps=0, error="")
    sentence = "It did no steps. Score at the end: 0.50."
    assert widgets.treatment_sentence(treatment) == sentence
    assert widgets.treatment_figure(treatment).get_supxlabel() == sentence


def test_a_treatment_names_one_skipped_step_in_the_singular():
    treatment = SimpleNamespace(losses=(2.0, 1.0), score=0.5, steps=1, error="")
    assert " 1 step was skipped. " in widgets.treatment_sentence(treatment)
