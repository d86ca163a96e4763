"""How far is a training or a race? A bar, a line and a stop button."""
