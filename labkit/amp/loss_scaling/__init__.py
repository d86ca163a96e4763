"""Loss scaling: the scaler as a pure state machine, the rules of six frameworks, unscaling, clipping, diagnosis."""
