def my_advance(state, found_inf, config):
    import sys

    sys.exit(1)
