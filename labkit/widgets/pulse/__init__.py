"""A check that widgets work: a message to the kernel and back."""
