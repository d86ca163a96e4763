"""Passport of a GPU: one file with the results of a card, item by item, for the maintainers.

`make` writes it (`labkit gpu --passport FILE`), `read` reports what differs from expectation
(`labkit gpu --read FILE`). An item that raises, hangs or ends its process affects only its own
line.
"""

from labkit.gpu.passport.make import SECONDS, lines, make
from labkit.gpu.passport.read import parse, read_file, report

__all__ = ["SECONDS", "lines", "make", "parse", "read_file", "report"]
