"""The number line."""
