"""Exercises of the lesson."""

from .epsilon import EXERCISE as _epsilon
from .kahan import EXERCISE as _kahan
from .nearest_even import EXERCISE as _nearest_even
from .smallest_update import EXERCISE as _smallest_update
from .stochastic import EXERCISE as _stochastic

EXERCISES = (_nearest_even, _smallest_update, _stochastic, _kahan, _epsilon)
