"""Master weights in FP32, single or flat, in groups, and training without them."""
