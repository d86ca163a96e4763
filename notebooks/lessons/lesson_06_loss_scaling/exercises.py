"""Exercises of the lesson."""

from .advance import EXERCISE as _advance
from .clip import EXERCISE as _clip
from .order import EXERCISE as _order
from .repair import EXERCISE as _repair
from .static_step import EXERCISE as _static_step
from .unscale import EXERCISE as _unscale

EXERCISES = (_static_step, _unscale, _advance, _clip, _order, _repair)
