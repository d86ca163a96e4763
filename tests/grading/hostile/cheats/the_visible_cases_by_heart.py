seen = {}


def check(*a):
    pass


def my_advance(state, found_inf, config):
    return seen[state, found_inf, config]
