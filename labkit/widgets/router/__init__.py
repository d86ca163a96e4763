"""A router of a mixture of experts whose scores are rounded."""
