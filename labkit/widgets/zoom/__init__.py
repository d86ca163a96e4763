"""The gradient zoom."""
