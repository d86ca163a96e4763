"""Examination of trainings, with remedies: `diagnose` a running one, `find_pitfalls` a record."""

from typing import Any

from labkit.clinic.diagnose import claims, diagnose
from labkit.clinic.pitfalls import find_pitfalls
from labkit.course import moved_to_lessons
from labkit.machine import Finding, Report, Status
from labkit.moved import moved

__all__ = ["Finding", "Report", "Status", "claims", "diagnose", "find_pitfalls"]


def __getattr__(name: str) -> Any:
    """Return what moved to a lesson, with a DeprecationWarning."""
    return moved(__name__, name, moved_to_lessons(__name__))
