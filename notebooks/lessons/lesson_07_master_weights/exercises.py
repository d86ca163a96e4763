"""Exercises of the lesson."""

from .ema import EXERCISE as _ema
from .flat import EXERCISE as _flat
from .groups import EXERCISE as _groups
from .memory import EXERCISE as _memory
from .step import EXERCISE as _step

EXERCISES = (_step, _memory, _groups, _flat, _ema)
