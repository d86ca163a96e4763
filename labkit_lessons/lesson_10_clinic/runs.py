"""Judgement of consultations: a diagnosis must fit the run; a training must learn from all data.

The answer to a consultation is a training. `treat` runs it in the sandbox of learners' code and
returns numbers, which are judged here. A diagnosis has two parts, a place and an amount. It is
right or wrong as a whole, so that a guess of one part gets no feedback.
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

# A place and an amount.
Diagnosis = tuple[str, float | int | str]
# A stored diagnosis is found by its place and the eighth of an octave that holds its amount.
EIGHTHS = 8
# The cost of scrypt: with r = 8 and p = 3, a key takes about 0.3 s and 32 MiB.
COST = 2**15
# The relative error that an amount may have. Amounts are read with three digits.
NEAR = 0.1


@dataclass(frozen=True)
class StoredDiagnosis:
    """The right diagnosis in a learner's lab, encrypted so that a diagnosis near it decrypts it.

    scrypt derives a key from a place and an eighth of an octave, with a salt for each release, in
    about 0.3 s. A search over all places and sizes takes some minutes, and a table for one release
    is of no use for another.

    Attributes:
        salt: The salt of the release.
        sealed: The encrypted diagnosis, by a digest of each key that decrypts it.
        cost: The cost of scrypt.
    """

    salt: bytes
    sealed: dict[str, bytes]
    cost: int = COST

    def key(self, places: tuple[str, ...], diagnosis: tuple[str, object]) -> bytes:
        """Return the key of a diagnosis among these places."""
        place, amount = diagnosis
        return _derived(self.salt, self.cost, repr((places, place, _size(amount))))

    def opened(self, key: bytes) -> Diagnosis | None:
        """Return the right diagnosis, or None if this key does not decrypt it."""
        sealed = self.sealed.get(_digest(key))
        if sealed is None:
            return None
        text = _masked(sealed, key).decode().strip()
        return cast(Diagnosis, ast.literal_eval(text))


def stored_diagnosis(
    right: Diagnosis, places: tuple[str, ...], salt: bytes, cost: int | None = None
) -> StoredDiagnosis:
    """Return the encrypted form of a right diagnosis.

    Args:
        right: The right diagnosis.
        places: The places among which a diagnosis names one.
        salt: The salt of the release.
        cost: The cost of scrypt; `COST` by default.
    """
    place, amount = right
    stored = StoredDiagnosis(salt, {}, cost or COST)
    amounts: list[object] = [amount]
    if isinstance(amount, float) and amount:
        # The middle of each eighth of an octave that an amount near the right one can lie in, and
        # one more at both ends, since three digits round across a limit.
        lowest = math.floor(EIGHTHS * math.log2((1 - NEAR) * abs(amount)))
        highest = math.floor(EIGHTHS * math.log2((1 + NEAR) * abs(amount)))
        amounts = [
            math.copysign(2.0 ** ((eighth + 0.5) / EIGHTHS), amount)
            for eighth in range(lowest - 1, highest + 2)
        ]
    content = repr(right).encode().ljust(64)
    for each in amounts:
        key = stored.key(places, (place, each))
        stored.sealed[_digest(key)] = _masked(content, key)
    return stored


def _digest(key: bytes) -> str:
    return hashlib.sha256(b"name" + key).hexdigest()


@dataclass(frozen=True, eq=False)
class Diagnosed:
    """The outcome of a diagnosis: whether it fits, as a whole.

    Attributes:
        right: The right diagnosis; in a learner's lab, its encrypted form.
        places: The places among which a diagnosis names one.
    """

    right: Diagnosis | StoredDiagnosis
    places: tuple[str, ...]

    def __call__(self, answer: object, case: Case) -> object:
        """Return whether the diagnosis in an answer fits; return a failed answer as it is."""
        if not isinstance(answer, Instance):
            return answer
        diagnosis = answer.fields["diagnosis"]
        if (
            not isinstance(diagnosis, tuple)
            or len(diagnosis) != 2
            or diagnosis[0] not in self.places
        ):
            places = ", ".join(map(repr, self.places))
            return Outcome(
                False, f"a diagnosis is one of {places}, and how much; not {show(diagnosis)}"
            )
        # Two wrong diagnoses are the same known mistake if this fact is equal.
        fact: object = (diagnosis[0], _exactly(diagnosis[1]))
        if isinstance(self.right, StoredDiagnosis):
            key = self.right.key(self.places, diagnosis)
            right = self.right.opened(key)
            fits = right is not None and _fits(right, diagnosis)
            # The digest is as slow to guess as the right diagnosis.
            fact = hashlib.sha256(key + repr(fact).encode()).hexdigest()
        else:
            fits = _fits(self.right, diagnosis)
        if fits:
            return Outcome(True, f"{show(diagnosis)} fits", ())
        wrong = "does not fit, in one part or in both; look at the run again"
        return Outcome(False, f"{show(diagnosis)} {wrong}", (fact,))

    def sealed(self, salt: bytes) -> Diagnosed:
        """Return the outcome with an encrypted diagnosis, as labkit.classroom.release stores it."""
        assert not isinstance(self.right, StoredDiagnosis)
        return Diagnosed(stored_diagnosis(self.right, self.places, salt), self.places)


def _fits(right: Diagnosis, diagnosis: tuple[str, object]) -> bool:
    return diagnosis[0] == right[0] and _is_near(right[1], diagnosis[1])


@lru_cache(maxsize=256)
def _derived(salt: bytes, cost: int, what: str) -> bytes:
    return hashlib.scrypt(what.encode(), salt=salt, n=cost, r=8, p=3, maxmem=2**27, dklen=64)


def _masked(content: bytes, key: bytes) -> bytes:
    """Return 64 bytes combined by xor with a stream from the key; twice gives them back."""
    stream = hashlib.sha512(b"mask" + key).digest()
    return bytes(a ^ b for a, b in zip(content, stream, strict=True))


def _size(amount: object) -> str:
    """Return the sign of a number and its eighth of an octave; another amount as its text."""
    if not isinstance(amount, float | int):
        return _exactly(amount)
    number = _rounded(amount)
    if number == 0 or not math.isfinite(number):
        return str(abs(number))
    eighth = math.floor(EIGHTHS * math.log2(abs(number)))
    return f"{math.copysign(1, number):+.0f} {eighth}"


def _is_near(right: float | int | str, amount: object) -> bool:
    if not isinstance(right, float):
        return _exactly(right) == _exactly(amount)
    if not isinstance(amount, float | int):
        return False
    return abs(_rounded(amount) - right) <= NEAR * abs(right)


def _exactly(amount: object) -> str:
    """Return the text of an amount, the same for 11 and 11.0."""
    if isinstance(amount, float) and amount.is_integer():
        return f"= {int(amount)}"
    return f"= {amount!r}"


def _rounded(amount: float) -> float:
    """Return a number rounded to three digits; inf for a whole number beyond float64."""
    try:
        return float(f"{float(amount):.2e}")
    except OverflowError:
        return math.inf


def treated(name: str, answer: object, case: Case) -> object:
    """Return the judgement of a training by its weights and losses.

    Args:
        name: The name of the consultation.
        answer: What `treat` returned, as an `Instance`; a failed answer is returned as it is.
        case: The arguments of the call; the first one is the seed.

    Returns:
        An `Outcome` whose facts are the names of the observations that refuse the training.
    """
    if not isinstance(answer, Instance):
        return answer
    treatment = Treatment(**answer.fields)  # type: ignore[arg-type]
    seed = int(str(case[0]))
    score = math.nan
    problems = _problems_of_result(name, treatment)
    can_be_replayed = not problems.keys() & {"parameters", "number of losses"}
    if can_be_replayed:
        assert treatment.states is not None
        with one_thread():
            run = replay(name, seed, treatment.states, treatment.losses)
            last = rebuilt(name, seed, treatment.states[-1], treatment.buffers)
            score = CONSULTATIONS[name].score(last)
        problems |= _problems_of_replay(name, run, len(treatment.losses))
    limit = CONSULTATIONS[name].limit
    metric = CONSULTATIONS[name].metric
    # A score of NaN fails, too.
    if not score >= limit:
        problems["score"] = f"expected {metric} to be at least {limit}, got {score:.2f}"
    if not problems:
        return Outcome(True, f"score: {metric} is {score:.2f}, at least {limit}", ())
    text = "; ".join(f"{observation}: {problem}" for observation, problem in problems.items())
    return Outcome(False, text, tuple(problems))


def _problems_of_result(name: str, treatment: Treatment) -> dict[str, str]:
    """Return the problems of a training that show before it is replayed, by observation."""
    consultation = CONSULTATIONS[name]
    steps = consultation.steps
    losses = treatment.losses
    problems: dict[str, str] = {}

    for step, loss in enumerate(losses):
        if not math.isfinite(loss):
            problems["finite losses"] = f"the loss is no finite number, first in step {step}"
            break
    if len(losses) != steps:
        problems["number of losses"] = f"it returns {len(losses)} losses of {steps} steps"

    model, _ = beginning(name, steps, 0)
    size = sum(parameter.numel() for parameter in model.parameters())
    shapes = [buffer.shape for buffer in model.buffers()]
    states = treatment.states
    has_states = states is not None and states.dim() == 2 and states.shape[1] == size
    if not has_states or [buffer.shape for buffer in treatment.buffers] != shapes:
        problems["parameters"] = "the model has other parameters than it came with"

    examples = sum(len(batch[0]) for batch in consultation.batches(steps, 0))
    if treatment.examples < examples - TEXTS[name].unread:
        problems["examples"] = (
            f"{examples - treatment.examples} of {examples} examples never went through the model: "
            "leave none out"
        )
    if treatment.half < consultation.half:
        problems["format of products"] = (
            f"{treatment.half:.0%} of its products are computed in {consultation.format}: repair "
            "the fault, and leave the rest"
        )

    # FP32 weights that are all numbers of FP16 were rounded after each step.
    are_rounded = states is not None and bool((states[-1].half().float() == states[-1]).all())
    has_other_formats = not set(treatment.weights) <= set(consultation.weights)
    if has_other_formats or (are_rounded and "float32" in treatment.weights):
        text = f"its weights are {' and '.join(treatment.weights)} in the end"
        if are_rounded:
            text += ", and each is a number of FP16"
        problems["format of weights"] = text

    scaled = sum(scale > 1 for scale in treatment.scales)
    if consultation.scaled and scaled < len(losses) - consultation.skips:
        problems["loss scale"] = (
            "its loss is not scaled: the scaler is switched off, or its scale is 1"
        )
    if consultation.decided and treatment.decided < steps:
        problems["autograd function"] = (
            f"a function of yours was applied to {consultation.decided} {treatment.decided} times "
            f"in {steps} steps"
        )
    return problems


def _problems_of_replay(name: str, run: Replay, losses: int) -> dict[str, str]:
    """Return the problems of a training that its replay shows, by observation.

    Args:
        name: The name of the consultation.
        run: The replay of the training from its weights.
        losses: The number of losses that the training returned.
    """
    consultation = CONSULTATIONS[name]
    text = TEXTS[name]
    taken = len(run.taken)
    problems: dict[str, str] = {}

    if not run.begins:
        problems["first weights"] = "its first weights are not those of the model that it got"
    if run.wrong_losses:
        step, returned, right = run.wrong_losses[0]
        problems["losses"] = (
            f"{len(run.wrong_losses)} of {losses} losses are not those of its weights: step {step} "
            f"returns {returned:.4g}, and its weights have {right:.4g}"
        )
    if run.lost > 0:
        problems["updates"] = (
            f"{run.lost} changes of the weights are no step of the text's optimizer on its batches"
        )
    if taken < consultation.steps - consultation.skips:
        problems["steps"] = (
            f"{taken} of {consultation.steps} steps were taken: a step that is left out, or "
            "caught, repairs nothing"
        )
    if any(abs(ratio - 1) > LENGTH for ratio in run.clipped):
        problems["clipping"] = (
            f"a step is {max(run.clipped):.2f} times as long as clipping leaves it"
        )
    if 2 * run.bare > max(1, taken):
        problems["penalty"] = (
            f"{run.bare} of {taken} steps are those of the loss without its penalty"
        )

    length = quantile(run.lengths, 0.5)
    if text.rate is not None and taken > 0 and abs(length - 1) > LENGTH:
        problems["learning rate"] = (
            f"its steps are {length:.2f} times as long as a learning rate of {text.rate:g} makes "
            "them"
        )
    if text.rate is None and not _falls_to_zero(run.rates):
        first, last = (run.rates[0], run.rates[-1]) if run.rates else (0.0, 0.0)
        problems["schedule"] = (
            f"the learning rate goes from {first:.3g} to {last:.3g} over the steps that are taken; "
            "it should fall to 0 over them"
        )
    if run.partly:
        problems["all parameters"] = f"{' and '.join(run.partly)} did not move as the gradients say"

    # Rounding to 16 bits moves a step by a known number of roundings from a step in FP32.
    least, most = text.noise
    has_noise = least <= quantile(run.noises, 0.2) and quantile(run.noises, 0.7) <= most
    if taken > 0 and not has_noise:
        problems["format of steps"] = (
            f"its steps lie {quantile(run.noises, 0.5):.3g} roundings of FP16 from those of FP32: "
            f"this is not {'BF16' if text.bfloat16 else 'FP16'}"
        )
    if run.alike and not text.bfloat16 and quantile(run.alike, 0.5) < ALIKE:
        problems["rounding of steps"] = (
            "its steps differ from those of FP32, but not as products in FP16 do: this is not FP16"
        )
    return problems


def _falls_to_zero(rates: list[float]) -> bool:
    """Return whether learning rates fall in a straight line from the first to the last of RATES."""
    if not rates:
        return False
    return rates[0] >= 0.99 * RATES[0] and rates[-1] <= 1.01 * RATES[1] and bent(rates) <= 0.02
