"""Loss scalers on a recorded training."""
