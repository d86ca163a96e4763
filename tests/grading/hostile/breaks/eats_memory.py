def my_advance(state, found_inf, config):
    return bytearray(1 << 33)
