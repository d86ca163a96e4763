"""The size of errors."""

import numpy as np

from labkit.testing.bound import Floats


def root_mean_square(values: Floats) -> float:
    """Return the root mean square of values, 0 for none."""
    if not values.size:
        return 0.0
    return float(np.sqrt((values * values).mean()))
