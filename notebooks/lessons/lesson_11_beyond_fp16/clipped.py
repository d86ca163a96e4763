"""Which texts does GSPO clip?

The point: what counts is the *mean* of a text's log-ratios, as a ratio again, and the two limits differ.
"""

from __future__ import annotations

import math
from random import Random

from labkit.grading.exercise import Case, Check, Exercise, mistake, wrong

Texts = list[list[float]]
LOW, HIGH = 3e-4, 4e-4  # Source: arXiv:2507.18071, 5.1


def reference(learner: Texts, sampler: Texts, low: float, high: float) -> list[int]:
    """Return the places of texts whose ratio, exp of the mean of learner - sampler, is not within 1 - low and 1 + high.

    >>> reference([[-1.0, -2.0], [-1.0, -2.0]], [[-1.0, -2.0], [-1.0, -2.001]], LOW, HIGH)
    [1]
    """
    ratios = [math.exp(mean) for mean in _means(learner, sampler)]
    return [at for at, ratio in enumerate(ratios) if ratio < 1 - low or ratio > 1 + high]


def _means(learner: Texts, sampler: Texts) -> list[float]:
    both = zip(learner, sampler, strict=True)
    return [sum(a - b for a, b in zip(mine, theirs, strict=True)) / len(mine) for mine, theirs in both]


def _texts(random: Random, means: list[float], low: float, high: float) -> list[Case]:
    """Return one call: a text for each mean of log-ratios, in any order; single tokens differ far more."""
    learner, sampler = [], []
    for mean in random.sample(means, len(means)):
        theirs = [random.uniform(-4, -0.1) for _ in range(random.choice((1, 2, 8, 100)))]
        noise = [random.uniform(-0.01, 0.01) for _ in theirs]
        off = mean - sum(noise) / len(noise)
        sampler.append(theirs)
        learner.append([x + y + off for x, y in zip(theirs, noise, strict=True)])
    return [(learner, sampler, low, high)]


def _published(random: Random) -> list[Case]:
    """Both sides of each limit, and what lies between the two."""
    means = [0.0, 1e-4, -2.9e-4, -3.1e-4, -3.5e-4, 3.5e-4, 3.9e-4, 4.1e-4, random.uniform(1e-3, 1e-2)]
    return _texts(random, means, LOW, HIGH) + _texts(random, [-x for x in means], HIGH, LOW)


def _wide(random: Random) -> list[Case]:
    """Limits so wide that a ratio and its logarithm are told apart."""
    return _texts(random, [0.26, 0.24, 0.199, -0.21, -0.23, -0.288, 0.0], 0.2, 0.28)


def _equal(random: Random) -> list[Case]:
    """Equal log-probabilities: the ratio is 1, which no limit of 0 clips; a text twice; and no texts at all."""
    text = [random.uniform(-4, -0.1) for _ in range(4)]
    far = [x - 0.01 for x in text]
    return [([text, text], [text, text], 0.0, 0.0), ([text] * 3, [far, text, far], LOW, HIGH), ([], [], LOW, HIGH)]


@mistake
def adds_up(learner: Texts, sampler: Texts, low: float, high: float) -> list[int]:
    """This is what the sum of the log-ratios gives. GSPO takes their mean: long texts are judged as short ones."""
    sums = [mean * len(mine) for mean, mine in zip(_means(learner, sampler), learner, strict=True)]
    return [at for at, total in enumerate(sums) if not 1 - low <= math.exp(total) <= 1 + high]


@mistake
def leaves_the_logarithm(learner: Texts, sampler: Texts, low: float, high: float) -> list[int]:
    """This is what the mean itself gives, between -low and high. The limits are of a ratio: take its exp."""
    return [at for at, mean in enumerate(_means(learner, sampler)) if mean < -low or mean > high]


@mistake
def token_by_token(learner: Texts, sampler: Texts, low: float, high: float) -> list[int]:
    """This is the texts of which some token's ratio is outside. GSPO looks at the text as a whole."""
    found = [reference([[a] for a in m], [[b] for b in t], low, high) for m, t in zip(learner, sampler, strict=True)]
    return [at for at, outside in enumerate(found) if outside]


@mistake
def names_those_that_stay(learner: Texts, sampler: Texts, low: float, high: float) -> list[int]:
    """This is the texts inside both limits. Asked are the others."""
    return sorted(set(range(len(learner))) - set(reference(learner, sampler, low, high)))


# fmt: off
MISTAKES = (
    adds_up,
    wrong("turned round", "this is what sampler - learner gives: the ratio upside down.",
          lambda learner, sampler, low, high: reference(sampler, learner, low, high)),
    leaves_the_logarithm,
    wrong("exchanges the limits", "this is what 1 - high and 1 + low give. `low` is the limit below 1.",
          lambda learner, sampler, low, high: reference(learner, sampler, high, low)),
    token_by_token,
    wrong("looks above alone", "this is what the upper limit alone clips. A text that became less probable is "
          "clipped as well.", lambda learner, sampler, low, high: reference(learner, sampler, 1.0, high)),
    names_those_that_stay,
)
# fmt: on

EXERCISE = Exercise(
    id="beyond.clipped",
    title="Which texts are clipped?",
    entry="my_clipped",
    difficulty=2,
    minutes=8,
    reference=reference,
    checks=(
        Check("the published limits, from both sides", 2, _published),
        Check("wide limits: a ratio is not its logarithm", 2, _wide),
        Check("equal programs, and no texts", 1, _equal),
    ),
    mistakes=MISTAKES,
)
