import sys

for n in [n for n in sys.modules if n.startswith("labkit")]:
    del sys.modules[n]
from labkit.grading import EXERCISES

my_advance = EXERCISES["scaling.advance"].reference
