"""Loss scaling: the scaler as a pure state machine, unscaling, clipping and diagnosis.

The scaler has the rules of six frameworks.
"""
