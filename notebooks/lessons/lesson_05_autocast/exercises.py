"""Exercises of the lesson."""

from .cache import EXERCISE as _cache
from .dtypes import EXERCISE as _dtypes
from .linear import EXERCISE as _linear
from .lists import EXERCISE as _lists
from .softmax import EXERCISE as _softmax

EXERCISES = (_lists, _dtypes, _linear, _softmax, _cache)
