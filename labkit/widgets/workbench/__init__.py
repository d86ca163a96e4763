"""What does each knob of a recipe do to a training that runs? Turn them, and fork."""
