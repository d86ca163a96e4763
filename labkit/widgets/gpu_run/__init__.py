"""Measurements of the learner's own GPU, started from a notebook."""
