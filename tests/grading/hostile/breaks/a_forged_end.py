import os

for n in range(3, 64):
    try:
        os.write(n, b'E"scaling.advance"\n')
    except OSError:
        pass
