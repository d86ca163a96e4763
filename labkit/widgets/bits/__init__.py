"""The bit explorer."""
