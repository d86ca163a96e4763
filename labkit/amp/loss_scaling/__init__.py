"""Loss scaling: the scaler as a pure state machine, unscaling, clipping and diagnosis."""
