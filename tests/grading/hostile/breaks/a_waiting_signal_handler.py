import signal

for s in range(1, 32):
    try:
        signal.signal(s, lambda *a: None)
    except (OSError, ValueError):
        pass


def my_advance(state, found_inf, config):
    while True:
        pass
