def my_advance(state, found_inf, config):
    import time

    time.sleep(10**6)
