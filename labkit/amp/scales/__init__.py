"""How do numbers fit into 8 or 4 bits? Each operand of a matrix product gets a scale of its own."""
