"""Exercises of the lesson."""

from .agree import EXERCISE as _agree
from .parts import EXERCISE as _parts
from .predivide import EXERCISE as _predivide

EXERCISES = (_agree, _predivide, _parts)
