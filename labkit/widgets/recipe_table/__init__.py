"""Which recipe does a task bear? A table of verdicts."""
