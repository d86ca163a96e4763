"""The underflow histogram."""
