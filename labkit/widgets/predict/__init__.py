"""Predictions: a question, a committed answer, and a reply."""
