"""Exercises of the lesson."""

from .clip import EXERCISE as _clip
from .eval import EXERCISE as _eval
from .function import EXERCISE as _function
from .gains import EXERCISE as _gains
from .mask import EXERCISE as _mask
from .overflow import EXERCISE as _overflow
from .penalty import EXERCISE as _penalty
from .region import EXERCISE as _region
from .schedule import EXERCISE as _schedule
from .unscale import EXERCISE as _unscale

EXERCISES = (_clip, _unscale, _region, _schedule, _function, _mask, _gains, _eval, _penalty, _overflow)
