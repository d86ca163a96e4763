"""Can a hand at the slider beat the dynamic scaler? A game."""
