"""A game: a scale moved by hand against the dynamic scaler."""
