"""Can you keep casts of weights, and notice when a weight changes?

The point: a weight that is used twice in a forward pass needs one cast, and an in-place edit in between makes it stale.
torch counts a tensor's edits in `_version`; its own autocast does not look, and returns the old cast.

Oracle in the tests: casting anew every time, which must give the same tensors.
"""

from __future__ import annotations

from random import Random

import torch
from torch import Tensor

from labkit.grading.exercise import Case, Check, Exercise, mistake, wrong

Event = tuple[str, str]
Answer = tuple[list[Tensor], int]


def reference(weights: dict[str, Tensor], events: list[Event]) -> Answer:
    """Return the FP16 casts that were used, in order, and how many were made.

    >>> reference({"w": torch.ones(1)}, [("use", "w"), ("use", "w"), ("edit", "w"), ("use", "w")])[1]
    2
    """
    return _play(weights, events, lambda weight: (id(weight), weight._version))


def _play(weights: dict[str, Tensor], events: list[Event], key: object, *, forgets: str = "one") -> Answer:
    """Play the events with a cache under `key`; `forgets` says what an edit throws away besides ("one": nothing)."""
    cache: dict[object, Tensor] = {}
    used: list[Tensor] = []
    casts = 0
    for kind, name in events:
        if kind == "edit":
            weights[name].mul_(0.5)
            if forgets == "all":
                cache.clear()
        elif kind == "close":
            if forgets != "never":
                cache.clear()
        else:
            at = key(weights[name]) if callable(key) else key
            if at not in cache:
                cache[at] = weights[name].half()
                casts += 1
            used.append(cache[at])
    return used, casts


def _weights(random: Random) -> dict[str, Tensor]:
    """Return FP32 weights that FP16 must round, some of them among its subnormal numbers."""
    sizes = (1.0, 1.0, 2.0**-20, 2.0**-22, 2.0**-24)
    return {name: torch.tensor([random.randrange(1, 999) / 7 * s for s in sizes]) for name in ("w1", "w2")}


def _events(random: Random, *words: str) -> list[Case]:
    """Events in short: "1" uses w1, "e1" edits it, "c" closes the autocast region."""
    named = {"1": ("use", "w1"), "2": ("use", "w2"), "e1": ("edit", "w1"), "e2": ("edit", "w2"), "c": ("close", "")}
    return [(_weights(random), [named[word] for word in line.split()]) for line in words]


def _again(random: Random) -> list[Case]:
    """Two weights; none used; and nine, which are all kept."""
    names = [f"layer{i}.weight" for i in range(9)]
    nine = {name: _weights(random)["w1"] for name in names}
    return [*_events(random, "1 1 1", "1 2 1 2 2 1", ""), (nine, [("use", name) for name in names * 2])]


def _edited(random: Random) -> list[Case]:
    return _events(random, "1 1 e1 1 1", "1 2 e1 1 2", "e1 1 2 e2 e2 1 2")


def _long(random: Random) -> list[Case]:
    words = ("1", "2", "e1", "e2", "1", "2", "c")
    return _events(random, *(" ".join(random.choice(words) for _ in range(30)) for _ in range(3)))


@mistake
def never_closes(weights: dict[str, Tensor], events: list[Event]) -> Answer:
    """This is what keeping casts beyond the region gives: they hold memory until the end of the run."""
    return _play(weights, events, lambda weight: (id(weight), weight._version), forgets="never")


# fmt: off
MISTAKES = (
    wrong("never looks again", "this is a cache that does not see edits, as torch's does not: after an edit the "
          "layer computes with the old weight.", lambda weights, events: _play(weights, events, id)),
    wrong("casts every time", "this is no cache: a cast for every use.",
          lambda weights, events: _play(weights, events, lambda weight: object())),
    wrong("forgets everything at an edit", "this is what emptying the cache at every edit gives: weights that did "
          "not change are cast again.", lambda weights, events: _play(weights, events, id, forgets="all")),
    wrong("one place for all", "this is what keeping one cast for all weights gives: the second weight is computed "
          "with the first.", lambda weights, events: _play(weights, events, "the")),
    wrong("keyed on the version alone", "this is what a key without the weight gives: two weights of the same "
          "version share a cast.", lambda weights, events: _play(weights, events, lambda weight: weight._version)),
    never_closes,
)
# fmt: on

EXERCISE = Exercise(
    id="autocast.cache",
    title="A cache that sees edits",
    entry="my_casts",
    difficulty=2,
    minutes=10,
    reference=reference,
    checks=(
        Check("a weight that is used again is not cast again", 1, _again),
        Check("an edited weight is cast anew, the other one is not", 2, _edited),
        Check("closing the region empties the cache", 1, lambda random: _events(random, "1 1 c 1 1", "1 2 c e1 1 2 1")),
        Check("long mixtures", 2, _long),
    ),
    mistakes=MISTAKES,
    may_change=("weights",),
    provides={"torch": torch},
)
