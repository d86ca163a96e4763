"""What changes a training loop without being in it? Callbacks: `core` has their events, `fp16` mixed precision."""
