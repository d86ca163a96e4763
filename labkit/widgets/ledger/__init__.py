"""The forward pass under autocast, operation by operation."""
