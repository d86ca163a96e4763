"""Which gradients fall off the bottom of a format? A histogram and the loss scale."""
