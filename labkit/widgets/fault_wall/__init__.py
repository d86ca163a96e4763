"""Known faults of mixed precision as a wall of cards."""
