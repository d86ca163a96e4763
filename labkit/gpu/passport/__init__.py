"""The passport of a GPU: one file with what a card did, item by item, to be sent to the maintainers of the lab.

`make` writes it (`labkit gpu --passport FILE`), `read` says what differs from expectation (`labkit gpu --read FILE`).
An item that raises, hangs or ends its process costs its own line and no other.
"""

from labkit.gpu.passport.make import SECONDS, lines, make
from labkit.gpu.passport.read import parse, read_file, report

__all__ = ["SECONDS", "lines", "make", "parse", "read_file", "report"]
