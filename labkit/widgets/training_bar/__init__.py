"""A progress bar of a training or a race, with a button that stops it."""
