"""Lesson 12: three tasks at which FP16 fails, and the leader board of their repairs."""

from .cases import FAILING, PROJECT_TASKS
from .leader_board import enter, show

__all__ = ["FAILING", "PROJECT_TASKS", "enter", "show"]
