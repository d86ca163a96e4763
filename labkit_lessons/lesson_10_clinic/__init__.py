"""Lesson 10: consultations, in which a training that fails is examined, diagnosed and repaired."""

from .cases import CONSULTATIONS, look, treat
from .treatment import Consultation, Treatment

__all__ = ["CONSULTATIONS", "Consultation", "Treatment", "look", "treat"]
