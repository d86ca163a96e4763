"""Exercises of the lesson."""

from .digits import EXERCISE as _digits
from .drift import EXERCISE as _drift
from .targets import EXERCISE as _targets

EXERCISES = (_targets, _drift, _digits)
