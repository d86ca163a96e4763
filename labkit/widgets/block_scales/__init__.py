"""Numbers in blocks of 8 or 4 bits that share a scale."""
