import os

for n in range(3, 64):
    try:
        os.write(n, b"Q" * 999 + b"\n")
    except OSError:
        pass
