"""How far off was a guess? On a logarithmic line: what counts is how many times too much or too little.

Idea: a question about a size is answered by a number on a line of powers of ten. People are wrong by factors, so the
distance is a factor too, and the reply depends only on its side.

Invariant: the truth is measured when the learner has committed, not written down before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from labkit.widgets.base.number_words import short

SIDES = ("less", "near", "more")


@dataclass(frozen=True)
class Ruler:
    """A logarithmic line from `low` to `high`, both above 0; a guess is near that is off by at most the factor `near`.

    unit   what is written behind a number, as "%" or " steps"
    """

    low: float
    high: float
    unit: str = ""
    near: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high < math.inf or not self.near > 1:
            raise ValueError(f"a ruler runs from low > 0 up to high, with near > 1; it was given as {self}")

    def read(self, said: str) -> float:
        """Return the number that was said.

        Raises:
            ValueError: it is no number, or not on the line.

        >>> Ruler(0.01, 100, "%").read("2.5")
        2.5
        """
        try:
            number = float(said)
        except ValueError:
            number = math.nan
        if not self.low <= number <= self.high:
            raise ValueError(f"{said!r} is no number from {short(self.low)} to {short(self.high)}{self.unit}")
        return number

    def side(self, guess: float, truth: float) -> str:
        """Return where a guess lies: "less", "near" or "more" than the truth.

        >>> [Ruler(0.01, 100).side(guess, 24.0) for guess in (1.0, 12.0, 50.0)]
        ['less', 'near', 'more']
        """
        if max(guess / truth, truth / guess) <= self.near:
            return "near"
        return "less" if guess < truth else "more"

    def distance(self, guess: float, truth: float) -> str:
        """Say how far a guess is from the truth, which is above 0.

        >>> Ruler(0.01, 100, "%").distance(1.0, 24.2)
        'you said 1%, it was 24.2%: 24 times more.'
        >>> Ruler(1, 100).distance(100.0, 40.0)
        'you said 100, it was 40: 2.5 times less.'
        >>> Ruler(1, 1e12).distance(1024.0, 2.0**22)
        'you said 1,024, it was 4,190,000: 4,096 times more.'
        """
        factor = max(guess / truth, truth / guess)
        measured = _written(float(f"{truth:.3g}"))
        said = f"you said {_written(guess)}{self.unit}, it was {measured}{self.unit}"
        if factor < 1.05:
            return f"{said}."
        times = f"{factor:,.0f}" if factor >= 10 else f"{factor:.2g}"
        return f"{said}: {times} times {'more' if truth > guess else 'less'}."


def _written(number: float) -> str:
    """Write a number as the line beside it does: `decimal` in base.js is the twin."""
    return f"{number:,.0f}" if number == int(number) and number < 1e7 else short(number)
