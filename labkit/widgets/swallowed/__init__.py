"""Swallowed updates."""
