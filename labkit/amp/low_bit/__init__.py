"""Matrix products with 8-bit and 4-bit operands, each with a scale of its own."""
