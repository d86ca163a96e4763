"""Many processes, one model: the engine under DDP and FSDP2."""
