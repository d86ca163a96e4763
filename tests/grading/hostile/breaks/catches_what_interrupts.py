def my_advance(state, found_inf, config):
    while True:
        try:
            while True:
                pass
        except BaseException:
            pass
