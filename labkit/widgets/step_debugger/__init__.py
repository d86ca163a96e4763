"""One training step, stage by stage and tensor by tensor."""
