"""Four processes on one training, started from a notebook."""
