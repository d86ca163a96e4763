"""Predictions: questions that are answered before the lesson shows what happens.

A prediction is a row of data: a question, and for each choice the reply, which says why people
expect that. A number is chosen on a logarithmic ruler, since people are wrong by factors; its
choices are less, near and more.

Invariant: the browser never holds the answer before the learner has committed; a true number is
measured after that; what was committed stays. The exception is a page without a kernel, which
replies by itself (`Predict.page_state`).
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import traitlets

from labkit.course import lessons, slug
from labkit.records.handout import guesses_first
from labkit.records.journal import current_journal, last_answers, save_answer
from labkit.widgets.base.figures import still
from labkit.widgets.base.number_words import short
from labkit.widgets.base.widget import LabWidget
from labkit.widgets.predict.waiting import answer_came, wait_for

SIDES = ("less", "near", "more")
GUESS_FIRST = "LABKIT_GUESS_FIRST"


@dataclass(frozen=True)
class Ruler:
    """A logarithmic line from `low` to `high`, both above 0.

    A guess is near if it is off by at most the factor `near`.

    Attributes:
        unit: what is written behind a number, as "%" or " steps".
    """

    low: float
    high: float
    unit: str = ""
    near: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high < math.inf or not self.near > 1:
            raise ValueError(f"a ruler: expected 0 < low < high and near > 1, got {self}")

    def read(self, said: str) -> float:
        """Return the number that was chosen.

        Raises:
            ValueError: it is not a number, or not on the line.

        >>> Ruler(0.01, 100, "%").read("2.5")
        2.5
        """
        try:
            number = float(said)
        except ValueError:
            number = math.nan
        if not self.low <= number <= self.high:
            raise ValueError(
                f"{said!r} is not a number from {short(self.low)} to {short(self.high)}{self.unit}"
            )
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
        measured = _number_text(float(f"{truth:.3g}"))
        said = f"you said {_number_text(guess)}{self.unit}, it was {measured}{self.unit}"
        # with two digits, "1.0 times more" would say nothing
        if factor < 1.05:
            return f"{said}."
        times = f"{factor:,.0f}" if factor >= 10 else f"{factor:.2g}"
        return f"{said}: {times} times {'more' if truth > guess else 'less'}."


def _number_text(number: float) -> str:
    """Write a number as `decimal` of base/number_words.js does."""
    return f"{number:,.0f}" if number == int(number) and number < 1e7 else short(number)


@dataclass(frozen=True)
class Prediction:
    """A question with a few choices, or with a ruler for a number.

    Attributes:
        question: one or two sentences.
        choices: choice -> its reply, in the order shown; with a ruler "less", "near" and "more".
        answer: the choice that is right; with a ruler "near".
        ruler: the line on which the number lies, or None.
    """

    question: str
    choices: Mapping[str, str]
    answer: str = "near"
    ruler: Ruler | None = None

    def __post_init__(self) -> None:
        if self.answer not in self.choices:
            raise ValueError(
                f"the answer {self.answer!r} is none of the choices {list(self.choices)}"
            )
        if self.ruler and (tuple(self.choices), self.answer) != (SIDES, "near"):
            raise ValueError(
                f"a number has the replies {list(SIDES)} and is right when near; these "
                f"are {self.choices}"
            )


def reply(prediction: Prediction, choice: str) -> str:
    """Return what a learner who commits to `choice` reads.

    Raises:
        ValueError: it is none of the choices.

    >>> reply(Prediction("1 + 1?", {"2": "It is.", "3": "One too many."}, answer="2"), "3")
    'Not quite: 2. One too many.'
    """
    if choice not in prediction.choices:
        raise ValueError(f"{choice!r} is none of the choices; they are {list(prediction.choices)}")
    verdict = "Yes." if choice == prediction.answer else f"Not quite: {prediction.answer}."
    return f"{verdict} {prediction.choices[choice]}"


def reply_to_number(prediction: Prediction, choice: str, truth: float) -> str:
    """Return what a learner who commits to the number `choice` reads, when `truth` was measured.

    Raises:
        ValueError: it is not on the prediction's ruler, or the truth is not above 0 and finite.
        TypeError: the prediction asks for no number.
    """
    ruler = prediction.ruler
    if ruler is None:
        raise TypeError(
            f"this prediction asks for one of {list(prediction.choices)}, not for a number"
        )
    if not 0 < truth < math.inf:
        raise ValueError(
            f"the truth was measured as {truth}: on a logarithmic line there is no such number"
        )
    guess = ruler.read(choice)
    side = ruler.side(guess, truth)
    verdict = "Yes" if side == "near" else "Not quite"
    return f"{verdict}: {ruler.distance(guess, truth)} {prediction.choices[side]}"


class Predict(LabWidget, folder="predict"):
    """Widget that asks a `Prediction`; `predict(id)` returns one.

    `choice` and `answered` follow what the learner does.

    `measure` is called when a number has been committed, and returns the true one. Texts that
    answer a prediction do not open before it is answered if the environment variable
    LABKIT_GUESS_FIRST is "1", or if it is unset and the lab was released with `--guess-first`.
    """

    # as a part of classes: labkit-answer-ID of texts, labkit-waits-ID of outputs; "" for a
    # prediction without an id
    slug = traitlets.Unicode("").tag(sync=True)
    # texts that answer it stay shut until the learner commits; the variable GUESS_FIRST, or else
    # the handout, says so
    guess_first = traitlets.Bool(False).tag(sync=True)
    question = traitlets.Unicode().tag(sync=True)
    # empty where a number is asked for
    choices = traitlets.List(traitlets.Unicode()).tag(sync=True)
    # low, high and unit of its line; {} if there are choices
    ruler = traitlets.Dict().tag(sync=True)
    # "" until the learner commits
    choice = traitlets.Unicode("").tag(sync=True)
    # the reply, "" until then
    answered = traitlets.Unicode("").tag(sync=True)
    # the right choice, "" until then
    answer = traitlets.Unicode("").tag(sync=True)
    right = traitlets.Bool(False).tag(sync=True)
    truth = traitlets.Float(0.0).tag(sync=True)  # what was measured, 0 until then

    def __init__(self, prediction: Prediction, measure: Callable[[], float] | None = None) -> None:
        ruler = prediction.ruler
        if (ruler is None) != (measure is None):
            wanted = "a number: write predict(id, measure), where measure() returns it"
            raise TypeError(
                "this prediction asks for "
                f"{wanted if ruler else 'a choice: write predict(id) alone'}"
            )
        if GUESS_FIRST in os.environ:
            guess_first = os.environ[GUESS_FIRST] == "1"
        else:
            guess_first = guesses_first()
        self._prediction = prediction
        self._measure = measure
        shown = {"low": ruler.low, "high": ruler.high, "unit": ruler.unit} if ruler else {}
        super().__init__(
            question=prediction.question,
            choices=[] if ruler else list(prediction.choices),
            ruler=shown,
            guess_first=guess_first,
        )

    def accepts(self, choice: str) -> bool:
        """Return whether this is one of the choices, or a number on the ruler."""
        ruler = self._prediction.ruler
        try:
            return choice in self.choices if ruler is None else ruler.read(choice) > 0
        except ValueError:
            return False

    @traitlets.observe("choice")
    def _commit(self, change: Mapping[str, Any]) -> None:
        choice = change["new"]
        ruler = self._prediction.ruler
        if ruler is None or self._measure is None:
            self.answer = self._prediction.answer
            self.right = choice == self._prediction.answer
            self.answered = reply(self._prediction, choice)
            return
        guess = ruler.read(choice)
        try:
            truth = float(self._measure())
            said = reply_to_number(self._prediction, choice, truth)
        except Exception as error:
            # a lesson's own code: an error out of a message of the browser is not seen
            lost = f"The true one could not be measured: {error}."
            self.right = False
            self.answered = f"Noted. {lost} Run the cells above, then this one again."
            return
        self.truth = truth
        self.right = ruler.side(guess, truth) == "near"
        self.answered = said

    def page_state(self) -> dict[str, Any]:
        """Add the replies and the measured number: a page has no kernel to ask."""
        ruler = self._prediction.ruler
        choices = self._prediction.choices
        if ruler is None or self._measure is None:
            texts = {choice: reply(self._prediction, choice) for choice in choices}
            return {
                **super().page_state(),
                "_replies": {"choices": texts, "answer": self._prediction.answer},
            }
        try:
            truth = float(self._measure())
        except Exception:
            # a lesson's own code
            truth = 0.0
        known = truth if 0 < truth < math.inf else 0.0
        texts = {
            **choices,
            "lost": (
                "Noted. The number was not measured when this page was written; the lab "
                "measures it."
            ),
        }
        return {
            **super().page_state(),
            "_replies": {"choices": texts, "near": ruler.near, "truth": known},
        }

    def still(self) -> dict[str, Any]:
        lines = "\n".join(f"  ( ) {choice}" for choice in self.choices)
        if ruler := self._prediction.ruler:
            lines = (
                f"  ____{ruler.unit}   (a number from {short(ruler.low)} to {short(ruler.high)})"
            )
        return still(
            f"{self.question}\n{lines}", "(Widgets do not run here: note your answer, then go on.)"
        )


def predictions() -> dict[str, Prediction]:
    """Return the predictions of all lessons by id, from the predictions.toml of each."""
    stored = {id: row for lesson in lessons() for id, row in lesson.table("predictions").items()}
    rulers = {id: Ruler(**row["ruler"]) if "ruler" in row else None for id, row in stored.items()}
    return {id: Prediction(**{**row, "ruler": rulers[id]}) for id, row in stored.items()}


def predict(id: str, measure: Callable[[], float] | None = None) -> Predict:
    """Ask the prediction with this id.

    One that was answered in this folder before is shown as answered.

    Args:
        id: the name of a prediction in a lesson's predictions.toml.
        measure: returns the true number of a question that asks for one; called when the learner
            has committed.

    Raises:
        KeyError: there is none; the message lists those there are.
        TypeError: a question for a number without `measure`, or one of choices with it.
    """
    if id not in predictions():
        raise KeyError(f"no prediction is called {id!r}; there are {sorted(predictions())}")
    widget = Predict(predictions()[id], measure)
    journal = current_journal()
    widget.slug = slug(id)
    if journal is None:
        return widget
    earlier = last_answers(journal, "prediction").get(id, "")
    if widget.accepts(earlier):
        widget.choice = earlier
    else:
        wait_for(id)

    def committed(change: Mapping[str, Any]) -> None:
        with warnings.catch_warnings(record=True) as said:
            # a warning out of a message of the browser is not seen
            warnings.simplefilter("always")
            save_answer(journal, "prediction", id, change["new"])
        answer_came(id)
        widget.answered += "".join(f" ({warning.message})" for warning in said)

    widget.observe(committed, "choice")
    return widget
