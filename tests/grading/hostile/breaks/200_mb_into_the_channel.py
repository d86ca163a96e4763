import os

for n in range(3, 64):
    try:
        for _ in range(200):
            os.write(n, b"[" * (1 << 20))
    except OSError:
        pass
