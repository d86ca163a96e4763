"""Training of one model by several processes: the engine under DDP and FSDP2."""
