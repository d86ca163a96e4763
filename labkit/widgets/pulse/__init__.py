"""Are widgets alive here? A message there and back."""
