"""Where do small updates go? Weights that stand still in FP16."""
