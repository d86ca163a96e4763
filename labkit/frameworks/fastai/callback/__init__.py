"""Callbacks of the training loop: `core` has their events, `fp16` mixed precision."""
