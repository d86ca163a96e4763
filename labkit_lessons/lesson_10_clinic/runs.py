"""Judgement of consultations: the diagnosis must fit the run, and the training must learn, in 16
bits, from all data.

Idea: the answer is a training. `treat` runs it in the sandbox of learners' code and returns
numbers, which are judged here. A diagnosis has two parts, where and how much, and is right or wrong
as a whole, so that a guess of one part gets no feedback.
"""

from __future__ import annotations

import ast
import hashlib
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

from labkit.grading.difference import show
from labkit.grading.exercise import Case, Outcome
from labkit.grading.sandbox.wire import Instance
from labkit.train import one_thread

from .cases import CONSULTATIONS
from .replay import (
    ALIKE,
    LENGTH,
    RATES,
    TEXTS,
    Replay,
    beginning,
    bent,
    quantile,
    rebuilt,
    replay,
)
from .treatment import Treatment

Diagnosis = tuple[str, float | int | str]
EIGHTHS = 8  # of an octave, in which a stored diagnosis is looked up
COST = 2**15  # of scrypt: with r = 8 and p = 3, about 0.3 s and 32 MiB
NEAR = 0.1  # by so much, as a share, may a number be off; it is read with three digits


@dataclass(frozen=True)
class StoredDiagnosis:
    """Stands for the right diagnosis where learners are handed the lab: sealed, to be opened by one
    that is near it.

    A key is derived from a place and an eighth of an octave by scrypt, salted for each release, in
    about 0.3 s. `sealed` holds, by a digest of each key that opens it, the right diagnosis. A
    search over all places and all sizes takes some minutes; no table that was made for another
    release helps.
    """

    salt: bytes
    sealed: dict[str, bytes]
    cost: int = COST

    def key(self, places: tuple[str, ...], said: tuple[str, object]) -> bytes:
        """Return the key that belongs to a diagnosis."""
        return _derived(self.salt, self.cost, repr((places, said[0], _size(said[1]))))

    def opened(self, key: bytes) -> Diagnosis | None:
        """Return the right diagnosis; None where this key does not open it."""
        sealed = self.sealed.get(hashlib.sha256(b"name" + key).hexdigest())
        return (
            None
            if sealed is None
            else cast(Diagnosis, ast.literal_eval(_masked(sealed, key).decode().strip()))
        )


def stored_diagnosis(
    right: Diagnosis, places: tuple[str, ...], salt: bytes, cost: int | None = None
) -> StoredDiagnosis:
    """Return what tells a right diagnosis from a wrong one, and does not say which is right."""
    place, amount = right
    stored = StoredDiagnosis(salt, {}, cost or COST)
    sizes: list[object] = [amount]
    if isinstance(amount, float) and amount:
        at, above = (
            math.floor(EIGHTHS * math.log2(share * abs(amount))) for share in (1 - NEAR, 1 + NEAR)
        )
        sizes = [
            math.copysign(2.0 ** ((n + 0.5) / EIGHTHS), amount) for n in range(at - 1, above + 2)
        ]
    for size in sizes:
        key = stored.key(places, (place, size))
        stored.sealed[hashlib.sha256(b"name" + key).hexdigest()] = _masked(
            repr(right).encode().ljust(64), key
        )
    return stored


@dataclass(frozen=True, eq=False)
class Diagnosed:
    """The outcome of a diagnosis: whether it fits, as a whole.

    Attributes:
        places: The words among which a diagnosis names one.
    """

    right: Diagnosis | StoredDiagnosis
    places: tuple[str, ...]

    def __call__(self, answer: object, case: Case) -> object:
        """Say whether a diagnosis fits."""
        if not isinstance(answer, Instance):
            return answer
        said = answer.fields["diagnosis"]
        if not (isinstance(said, tuple) and len(said) == 2 and said[0] in self.places):
            places = ", ".join(map(repr, self.places))
            return Outcome(False, f"a diagnosis is one of {places}, and how much; not {show(said)}")
        known_by: object = (said[0], _exactly(said[1]))
        if isinstance(self.right, StoredDiagnosis):
            key = self.right.key(self.places, said)
            opened = self.right.opened(key)
            fits = opened is not None and _fits(opened, said)
            known_by = hashlib.sha256(
                key + repr(known_by).encode()
            ).hexdigest()  # as slow to guess as the right one
        else:
            fits = _fits(self.right, said)
        wrong = "does not fit, in one part or in both; look at the run again"
        return Outcome(
            fits, f"{show(said)} {'fits' if fits else wrong}", () if fits else (known_by,)
        )

    def sealed(self, salt: bytes) -> Diagnosed:
        """Return the outcome for learners, which does not say which diagnosis is right
        (labkit.classroom.release).
        """
        assert not isinstance(self.right, StoredDiagnosis)
        return Diagnosed(stored_diagnosis(self.right, self.places, salt), self.places)


def _fits(right: Diagnosis, said: tuple[str, object]) -> bool:
    return said[0] == right[0] and _near(right[1], said[1])


@lru_cache(maxsize=256)
def _derived(salt: bytes, cost: int, what: str) -> bytes:
    return hashlib.scrypt(what.encode(), salt=salt, n=cost, r=8, p=3, maxmem=2**27, dklen=64)


def _masked(content: bytes, key: bytes) -> bytes:
    """Return the bytes, xor a stream that the key gives: 64 of them."""
    stream = hashlib.sha512(b"mask" + key).digest()
    return bytes(one ^ other for one, other in zip(content, stream, strict=True))


def _size(amount: object) -> str:
    """Return an eighth of an octave in which a number lies, read with three digits; what is none,
    as it is written.
    """
    if not isinstance(amount, float | int):
        return _exactly(amount)
    number = float(_read(amount))
    if number == 0 or not math.isfinite(number):
        return str(abs(number))
    return f"{math.copysign(1, number):+.0f} {math.floor(EIGHTHS * math.log2(abs(number)))}"


def _near(right: float | int | str, said: object) -> bool:
    if not isinstance(right, float):
        return _exactly(right) == _exactly(said)
    return isinstance(said, float | int) and abs(float(_read(said)) - right) <= NEAR * abs(right)


def _exactly(amount: object) -> str:
    """Write an amount so that equal ones are written alike: 11 and 11.0."""
    return f"= {int(amount) if isinstance(amount, float) and amount.is_integer() else amount!r}"


def _read(amount: object) -> str:
    """Write a number with three digits; what is none, in a way that no number is written."""
    try:
        # -0.0 + 0.0 is 0.0
        return f"{amount + 0.0:.2e}" if isinstance(amount, float | int) else "none"
    except OverflowError:
        return "inf"


def treated(name: str, answer: object, case: Case) -> object:
    """Judge a training by its weights and losses; the facts are the names of the observations that
    refuse it.
    """
    if not isinstance(answer, Instance):
        return answer
    seen, seed = Treatment(**answer.fields), int(str(case[0]))  # type: ignore[arg-type]
    score, found = math.nan, _of_returned(name, seen)
    if not found.keys() & {"parameters", "number of losses"}:
        assert seen.states is not None
        with one_thread():
            run = replay(name, seed, seen.states, seen.losses)
            score = CONSULTATIONS[name].score(rebuilt(name, seed, seen.states[-1], seen.buffers))
        found |= _of_replay(name, run, len(seen.losses))
    limit, metric = CONSULTATIONS[name].limit, CONSULTATIONS[name].metric
    if not score >= limit:
        found["score"] = f"expected {metric} to be at least {limit}, got {score:.2f}"
    good = f"score: {metric} is {score:.2f}, at least {limit}"
    says = "; ".join(f"{kind}: {text}" for kind, text in found.items()) or good
    return Outcome(not found, says, tuple(found))


def _of_returned(name: str, seen: Treatment) -> dict[str, str]:
    """Return what is wrong with what came back, before anything is replayed: observation -> what it
    says.
    """
    asked = CONSULTATIONS[name]
    given = sum(len(batch[0]) for batch in asked.batches(asked.steps, 0))
    broken = next((step for step, loss in enumerate(seen.losses) if not math.isfinite(loss)), None)
    narrow = seen.states is not None and bool(
        (seen.states[-1].half().float() == seen.states[-1]).all()
    )
    first, _ = beginning(name, asked.steps, 0)
    size, kept = (
        sum(p.numel() for p in first.parameters()),
        [buffer.shape for buffer in first.buffers()],
    )
    wrong_form = seen.states is None or seen.states.dim() != 2 or seen.states.shape[1] != size
    problems = {
        "finite losses": broken is not None
        and f"the loss is no finite number, first in step {broken}",
        "number of losses": len(seen.losses) != asked.steps
        and f"it returns {len(seen.losses)} losses of {asked.steps} steps",
        "parameters": (wrong_form or [buffer.shape for buffer in seen.buffers] != kept)
        and "the model has other parameters than it came with",
        "examples": seen.examples < given - TEXTS[name].unread
        and f"{given - seen.examples} of {given} examples never went through the model: "
        "leave none out",
        "format of products": seen.half < asked.half
        and f"{seen.half:.0%} of its products are computed in {asked.format}: repair the "
        "fault, and leave the rest",
        "format of weights": (
            not set(seen.weights) <= set(asked.weights) or (narrow and "float32" in seen.weights)
        )
        and f"its weights are {' and '.join(seen.weights)} in the end"
        + (", and each is a number of FP16" if narrow else ""),
        "loss scale": asked.scaled
        and sum(scale > 1 for scale in seen.scales) < len(seen.losses) - asked.skips
        and "its loss is not scaled: the scaler is switched off, or its scale is 1",
        "autograd function": bool(asked.decided)
        and seen.decided < asked.steps
        and f"a function of yours was applied to {asked.decided} {seen.decided} times in "
        f"{asked.steps} steps",
    }
    return {kind: text for kind, text in problems.items() if text}


def _of_replay(name: str, run: Replay, losses: int) -> dict[str, str]:
    """Return what is wrong with the steps and losses of a training, as its weights show them."""
    asked, text = CONSULTATIONS[name], TEXTS[name]
    low, high = quantile(run.noises, 0.2), quantile(run.noises, 0.7)
    least, most = text.noise
    length = quantile(run.lengths, 0.5)
    rates, ends = run.rates, (run.rates[:1] + run.rates[-1:]) or [0.0, 0.0]
    falls = (
        bool(rates)
        and rates[0] >= 0.99 * RATES[0]
        and rates[-1] <= 1.01 * RATES[1]
        and bent(rates) <= 0.02
    )
    step, got, right = run.wrong_losses[0] if run.wrong_losses else (0, 0.0, 0.0)
    taken = len(run.taken)
    problems = {
        "first weights": not run.begins
        and "its first weights are not those of the model that it got",
        "losses": bool(run.wrong_losses)
        and f"{len(run.wrong_losses)} of {losses} losses are not those of its weights: step "
        f"{step} returns {got:.4g}, and its weights have {right:.4g}",
        "updates": run.lost > 0
        and f"{run.lost} changes of the weights are no step of the text's optimizer on its batches",
        "steps": taken < asked.steps - asked.skips
        and f"{taken} of {asked.steps} steps were taken: a step that is left out, or caught, "
        "repairs nothing",
        "clipping": any(abs(one - 1) > LENGTH for one in run.clipped)
        and f"a step is {max(run.clipped):.2f} times as long as clipping leaves it",
        "penalty": 2 * run.bare > max(1, taken)
        and f"{run.bare} of {taken} steps are those of the loss without its penalty",
        "learning rate": text.rate is not None
        and taken > 0
        and abs(length - 1) > LENGTH
        and f"its steps are {length:.2f} times as long as a learning rate of {text.rate:g} "
        "makes them",
        "schedule": text.rate is None
        and not falls
        and f"the learning rate goes from {ends[0]:.3g} to {ends[1]:.3g} over the steps that "
        "are taken; it should fall to 0 over them",
        "all parameters": bool(run.partly)
        and f"{' and '.join(run.partly)} did not move as the gradients say",
        "format of steps": taken > 0
        and not (least <= low and high <= most)
        and f"its steps lie {quantile(run.noises, 0.5):.3g} roundings of FP16 from those of "
        f"FP32: this is not {'BF16' if text.bfloat16 else 'FP16'}",
        "rounding of steps": bool(run.alike)
        and not text.bfloat16
        and quantile(run.alike, 0.5) < ALIKE
        and "its steps differ from those of FP32, but not as products in FP16 do: this is not FP16",
    }
    return {kind: says for kind, says in problems.items() if says}
