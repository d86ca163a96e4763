"""Quiz: the same questions before and after the course."""
