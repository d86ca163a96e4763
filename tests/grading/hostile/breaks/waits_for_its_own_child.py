def my_advance(state, found_inf, config):
    import os
    import time

    if os.fork() == 0:
        time.sleep(10**6)
    os.wait()
