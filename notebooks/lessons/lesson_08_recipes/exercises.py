"""Exercises of the lesson."""

from .cheapest import EXERCISE as _cheapest
from .epsilon import EXERCISE as _epsilon
from .levels import EXERCISE as _levels
from .lines import EXERCISE as _lines
from .verdict import EXERCISE as _verdict
from .which import EXERCISE as _which

EXERCISES = (_levels, _which, _lines, _epsilon, _verdict, _cheapest)
