"""Exercises of the lesson."""

from .smallest import EXERCISE as _smallest

EXERCISES = (_smallest,)
