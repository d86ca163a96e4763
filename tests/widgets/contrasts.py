"""Contrast of colours (WCAG 2.2)."""

from typing import Any

import numpy as np
from matplotlib.colors import to_rgb

# The least contrast of text (1.4.3).
LEAST = 4.5


def luminance(colour: Any) -> float:
    """Return the relative luminance of a colour that matplotlib knows."""
    channels = np.array(to_rgb(colour))
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ (0.2126, 0.7152, 0.0722))


def contrast(one: Any, other: Any) -> float:
    """Return the contrast of two colours, from 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
