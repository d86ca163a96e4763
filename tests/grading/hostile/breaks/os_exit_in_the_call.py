def my_advance(state, found_inf, config):
    import os

    os._exit(0)
