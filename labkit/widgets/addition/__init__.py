"""The addition player."""
