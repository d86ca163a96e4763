"""Exercises of the lesson."""

from .bytes import EXERCISE as _bytes
from .decode import EXERCISE as _decode
from .first_gap import EXERCISE as _first_gap
from .next_up import EXERCISE as _next_up
from .ulp import EXERCISE as _ulp

EXERCISES = (_decode, _ulp, _first_gap, _next_up, _bytes)
