"""Exercises of the lesson."""

from .backward import EXERCISE as _backward
from .block import EXERCISE as _block
from .intensity import EXERCISE as _intensity
from .padding import EXERCISE as _padding
from .standstill import EXERCISE as _standstill

EXERCISES = (_standstill, _block, _padding, _intensity, _backward)
