"""Judgement of diagnoses in consultations, and their encrypted form for learners' labs.

A diagnosis has two parts, a place and an amount. It is right or wrong as a whole, so that a guess
of one part gets no feedback.
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

# A place and an amount.
Diagnosis = tuple[str, float | int | str]
# A stored diagnosis is found by its place and the eighth of an octave that holds its amount.
EIGHTHS = 8
# The cost of scrypt: with r = 8 and p = 3, a key takes about 0.3 s and 32 MiB.
COST = 2**15
# The length of an encrypted diagnosis in bytes, that of a SHA-512 digest.
CONTENT_BYTES = 64
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
        ciphertexts: The encrypted diagnosis, by a digest of each key that decrypts it.
        cost: The cost of scrypt.
    """

    salt: bytes
    ciphertexts: dict[str, bytes]
    cost: int = COST

    def key(self, places: tuple[str, ...], diagnosis: tuple[str, object]) -> bytes:
        """Return the key of a diagnosis among these places."""
        place, amount = diagnosis
        return _scrypt_key(self.salt, self.cost, repr((places, place, _size(amount))))

    def decrypt(self, key: bytes) -> Diagnosis | None:
        """Return the right diagnosis, or None if this key does not decrypt it."""
        ciphertext = self.ciphertexts.get(_digest(key))
        if ciphertext is None:
            return None
        text = _xor_with_stream(ciphertext, key).decode().strip()
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
    ciphertexts: dict[str, bytes] = {}
    stored = StoredDiagnosis(salt, ciphertexts, cost or COST)
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
    # All have one length, so that it says nothing.
    content = repr(right).encode().ljust(CONTENT_BYTES)
    for near_amount in amounts:
        key = stored.key(places, (place, near_amount))
        ciphertexts[_digest(key)] = _xor_with_stream(content, key)
    return stored


def _digest(key: bytes) -> str:
    # The prefix differs from that of the stream, so that the digest says nothing about it.
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
            right = self.right.decrypt(key)
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
def _scrypt_key(salt: bytes, cost: int, text: str) -> bytes:
    return hashlib.scrypt(text.encode(), salt=salt, n=cost, r=8, p=3, maxmem=2**27, dklen=64)


def _xor_with_stream(content: bytes, key: bytes) -> bytes:
    """Encrypt or decrypt `CONTENT_BYTES` bytes, by an exclusive or with a stream from the key."""
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
