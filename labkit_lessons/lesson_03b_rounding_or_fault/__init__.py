"""Lesson 03b: six kernels, one of which has a fault."""

from .cases import SIX, six_operands

__all__ = ["SIX", "six_operands"]
