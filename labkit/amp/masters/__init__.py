"""Where do the weights live between two steps? FP32 masters, one by one or flat, in groups, or none at all."""
