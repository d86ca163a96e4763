"""Widget of a router of experts: its scores are rounded, and some tokens get other experts.

A router gives each expert a score, and a token goes to the experts with the largest scores.
Rounding moves each score a little, and makes some of them equal. The page computes all numbers
(choosing.js). Python computes the same ones for the property `changed`.

Invariant: the logits are FP32 numbers, drawn by a counter-based generator, so that the page and
Python have the same ones. Of equal scores the lower expert wins, as in `torch.sort(stable=True)`.

Source: arXiv:2412.19437, 2.1.2 (sigmoid scores, the 8 best of 256 experts).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from statistics import NormalDist
from typing import Any

import numpy as np
import traitlets
from numpy.typing import NDArray

from labkit.formats import BF16, E4M3, E5M2, FP16, FP32, round_to
from labkit.widgets.base.figures import still, why_still
from labkit.widgets.base.widget import LabWidget, limited

TOKENS = 900
EXPERTS = (8, 64, 256)
CHOSEN = (1, 2, 4, 8)
SPREADS = (0.05, 0.1, 0.2, 0.5, 1.0, 1.5, 2.0, 3.0)
FORMATS = {row.name: row for row in (FP32, FP16, BF16, E4M3, E5M2)}
ROUNDED = ("scores", "logits")
# The number of intervals in the table of quantiles.
INTERVALS = 512
# This is 2^32 divided by the golden ratio. It is added to an index before it is mixed, since the
# mixed bits of 0 are 0.
GOLDEN = np.uint32(0x9E3779B9)
HOW = "to turn the knobs, or go on in code: board.format = 'FP16'; print(board.changed.mean())"


@cache
def quantiles() -> tuple[float, ...]:
    """Return `INTERVALS` + 1 quantiles of the normal distribution, in ascending order.

    A uniformly distributed random number is a position in this table, and interpolation between two
    quantiles makes a normally distributed number of it. The ends would be infinite; they are the
    quantiles of a quarter of an interval.

    >>> len(quantiles()), quantiles()[256]
    (513, 0.0)
    """
    normal = NormalDist()
    inner = [round(normal.inv_cdf(i / INTERVALS), 6) for i in range(1, INTERVALS)]
    end = round(normal.inv_cdf(0.25 / INTERVALS), 6)
    return (end, *inner, -end)


def _mixed(key: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return 32 bits, each of which depends on all bits of the key.

    Source: MurmurHash3, A. Appleby, fmix32 (public domain).
    """
    x = key ^ (key >> np.uint32(16))
    x = x * np.uint32(0x85EBCA6B)
    x = x ^ (x >> np.uint32(13))
    x = x * np.uint32(0xC2B2AE35)
    return np.asarray(x ^ (x >> np.uint32(16)))


def router_logits(experts: int, spread: float, tokens: int = TOKENS) -> NDArray[np.float32]:
    """Return normal logits of the first tokens, [token, expert], of standard deviation `spread`.

    >>> logits = router_logits(256, 2.0)
    >>> logits.shape, bool(abs(logits.std() - 2) < 0.01)
    ((900, 256), True)
    """
    keys = _mixed(np.arange(tokens, dtype=np.uint32) + GOLDEN)
    counters = _mixed(np.arange(experts, dtype=np.uint32) + GOLDEN)
    bits = _mixed(keys[:, np.newaxis] ^ counters)
    place = bits / 2.0**32 * INTERVALS
    below = place.astype(np.int64)
    table = np.asarray(quantiles())
    normal = table[below] + (place - below) * (table[below + 1] - table[below])
    return np.asarray(spread * normal, np.float32)


def chosen_experts(scores: NDArray[np.floating[Any]], chosen: int) -> NDArray[np.bool_]:
    """Return which experts have the largest scores, [token, expert].

    Of experts with equal scores, the lower number is taken.

    >>> chosen_experts(np.array([[0.5, 0.75, 0.5, 0.25]]), 2).tolist()
    [[True, True, False, False]]
    """
    order = np.argsort(-scores, axis=1, kind="stable")[:, :chosen]
    is_chosen = np.zeros(scores.shape, bool)
    np.put_along_axis(is_chosen, order, True, axis=1)
    return is_chosen


class RouterScores(LabWidget, folder="router"):
    """A router of experts with rounded scores: which tokens get other experts, and why.

    Args:
        format: The format of the rounded scores: "FP32", "FP16", "BF16", "E4M3" or "E5M2".
        experts: The number of experts: 8, 64 or 256.
        chosen: The number of experts for a token: 1, 2, 4 or 8.
        spread: The standard deviation of the logits, one of `SPREADS`.
        rounded: What is rounded: "scores" (the sigmoid of each logit) or "logits".

    Traits to read and set: all of these, and `token` (0 to 899). To read: `changed` (for each
    token, whether rounding changes its set of experts), and `sentence`, which the page sets when it
    shows the widget.

    Raises:
        TraitError: A trait is set to a value that is not one of its choices.

    >>> board = RouterScores("BF16")
    >>> print(f"{board.changed.mean():.3f}")
    0.142
    """

    format = traitlets.Unicode("BF16").tag(sync=True)
    experts = traitlets.Int(256).tag(sync=True)
    chosen = traitlets.Int(8).tag(sync=True)
    spread = traitlets.Float(1.0).tag(sync=True)
    rounded = traitlets.Unicode("scores").tag(sync=True)
    token = traitlets.Int(0).tag(sync=True)
    sentence = traitlets.Unicode().tag(sync=True)
    _choices = traitlets.Dict().tag(sync=True)

    def __init__(
        self,
        format: str = "BF16",
        *,
        experts: int = 256,
        chosen: int = 8,
        spread: float = 1.0,
        rounded: str = "scores",
    ) -> None:
        super().__init__(
            format=format, experts=experts, chosen=chosen, spread=spread, rounded=rounded
        )
        self._choices = {
            "tokens": TOKENS,
            "experts": EXPERTS,
            "chosen": CHOSEN,
            "spreads": SPREADS,
            "formats": tuple(FORMATS),
            "quantiles": quantiles(),
        }

    @property
    def changed(self) -> NDArray[np.bool_]:
        """For each token, whether rounding changes its set of experts, [token]."""
        exact = router_logits(self.experts, self.spread)
        if self.rounded == "scores":
            exact = (1 / (1 + np.exp(-exact.astype(np.float64)))).astype(np.float32)
        after = np.asarray(round_to(exact, FORMATS[self.format]))
        different = chosen_experts(exact, self.chosen) != chosen_experts(after, self.chosen)
        return np.asarray(different.any(axis=1))

    @limited("format", "experts", "chosen", "spread", "rounded", "token")
    def _names(self) -> Mapping[str, Collection[Any]]:
        return {
            "format": FORMATS,
            "experts": EXPERTS,
            "chosen": CHOSEN,
            "spread": SPREADS,
            "rounded": ROUNDED,
            "token": range(TOKENS),
        }

    def still(self) -> dict[str, Any]:
        share = self.changed.mean()
        text = (
            f"{self.experts} experts, {self.chosen} for each token; logits with a "
            f"standard deviation of {self.spread:g}.\nWith the {self.rounded} rounded to "
            f"{self.format}, {share:.1%} of {TOKENS} tokens get another set.\n"
        )
        return still(text, why_still(HOW, "These numbers stand"))
