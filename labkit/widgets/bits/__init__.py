"""What do the bits of a number mean? Click one and see."""
