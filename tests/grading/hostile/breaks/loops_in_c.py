def my_advance(state, found_inf, config):
    return sum(range(10**13))
