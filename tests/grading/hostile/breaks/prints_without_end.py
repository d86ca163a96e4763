print("x" * (1 << 26))
