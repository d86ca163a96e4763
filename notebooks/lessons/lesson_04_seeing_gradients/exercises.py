"""Exercises of the lesson."""

from .binades import EXERCISE as _binades
from .culprit import EXERCISE as _culprit
from .fate import EXERCISE as _fate
from .lost import EXERCISE as _lost
from .window import EXERCISE as _window

EXERCISES = (_binades, _fate, _lost, _window, _culprit)
