"""Exercises of the lesson."""

from .block import EXERCISE as _block
from .clipped import EXERCISE as _clipped
from .frozen import EXERCISE as _frozen
from .history import EXERCISE as _history
from .keep import EXERCISE as _keep
from .mx_scale import EXERCISE as _mx_scale
from .orders import EXERCISE as _orders
from .unit import EXERCISE as _unit

EXERCISES = (_mx_scale, _history, _block, _frozen, _clipped, _orders, _keep, _unit)
