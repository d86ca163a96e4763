def my_advance(state, found_inf, config):
    return ["x" * 900_000 for _ in range(5)]
