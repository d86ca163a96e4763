"""Lesson 11d: a small mixture of experts, trained on digits, and attention that is computed block
by block.
"""

from .attention import blockwise_attention
from .mixture import Mixture, trained_mixture

__all__ = ["Mixture", "blockwise_attention", "trained_mixture"]
