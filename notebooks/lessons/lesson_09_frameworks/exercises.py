"""Exercises of the lesson."""

from .callback import EXERCISE as _callback
from .casts import EXERCISE as _casts
from .repair import EXERCISE as _repair
from .skips import EXERCISE as _skips
from .translate import EXERCISE as _translate

EXERCISES = (_translate, _repair, _skips, _callback, _casts)
