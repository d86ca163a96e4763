"""Predictions: questions that are answered before the lesson shows what happens.

A prediction is a row of data: a question, and for each choice a reply, which says why people expect
it. A number is chosen on a logarithmic ruler, since guesses are wrong by factors; its replies are
"less", "near" and "more".

Invariant: the browser does not have the answer before the learner has committed, and a true number
is measured after that. A committed choice stays. A page without a kernel is an exception: it has
the answer, and replies by itself (`Predict.page_state`).
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

# The replies to a guess that is too small, near the truth, or too large.
SIDES = ("less", "near", "more")
# The environment variable that keeps answers shut until the learner has committed.
GUESS_FIRST = "LABKIT_GUESS_FIRST"
# Below this factor a guess equals the truth to two digits: "1.0 times more" would say nothing.
EQUAL_FACTOR = 1.05


@dataclass(frozen=True)
class Ruler:
    """A logarithmic line on which a number is chosen.

    Attributes:
        low: The left end, above 0.
        high: The right end.
        unit: The text behind a number, such as "%" or " steps".
        near: The largest factor between guess and truth at which the guess is right; above 1.

    Raises:
        ValueError: The ends or the factor are not in this order.
    """

    low: float
    high: float
    unit: str = ""
    near: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high < math.inf or not self.near > 1:
            raise ValueError(f"a ruler: expected 0 < low < high and near > 1, got {self}")

    def read(self, text: str) -> float:
        """Return the number that was chosen.

        Raises:
            ValueError: it is not a number, or not on the line.

        >>> Ruler(0.01, 100, "%").read("2.5")
        2.5
        """
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not self.low <= number <= self.high:
            raise ValueError(
                f"{text!r} is not a number from {short(self.low)} to {short(self.high)}{self.unit}"
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
        sentence = f"you said {_number_text(guess)}{self.unit}, it was {measured}{self.unit}"
        if factor < EQUAL_FACTOR:
            return f"{sentence}."
        times = f"{factor:,.0f}" if factor >= 10 else f"{factor:.2g}"
        side = "more" if truth > guess else "less"
        return f"{sentence}: {times} times {side}."


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
    """Return the reply to a choice.

    Raises:
        ValueError: The prediction has no such choice.

    >>> reply(Prediction("1 + 1?", {"2": "It is.", "3": "One too many."}, answer="2"), "3")
    'Not quite: 2. One too many.'
    """
    _require_choice(prediction, choice)
    verdict = "Yes." if choice == prediction.answer else f"Not quite: {prediction.answer}."
    return f"{verdict} {prediction.choices[choice]}"


def reply_to_number(prediction: Prediction, choice: str, truth: float) -> str:
    """Return the reply to a number, as text, when `truth` was measured.

    Raises:
        ValueError: The number is not on the prediction's ruler, or `truth` is not a finite number
            above 0.
        TypeError: The prediction does not ask for a number.
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


def _require_choice(prediction: Prediction, choice: str) -> None:
    """Raise ValueError if a text is neither one of the choices nor a number on the ruler."""
    if prediction.ruler is not None:
        prediction.ruler.read(choice)
    elif choice not in prediction.choices:
        raise ValueError(f"{choice!r} is none of the choices; they are {list(prediction.choices)}")


class Predict(LabWidget, folder="predict"):
    """Widget that asks a `Prediction`; `predict(id)` returns one of a lesson.

    Texts that answer a prediction do not open before it is answered if the environment variable
    LABKIT_GUESS_FIRST is "1", or if it is unset and the lab was released with `--guess-first`.

    Args:
        prediction: The question.
        measure: Returns the true number. It is called after the learner has committed to a number;
            None for a question with choices.

    Trait to read and set: `choice`; once set it stays. To read: `answered` (the reply), `answer`,
    `right` and `truth`, which have their values after the choice.

    Raises:
        TypeError: `measure` is missing for a number, or given for a question with choices.
        TraitError: `choice` is set to a text that is neither one of the choices nor a number on
            the ruler.
    """

    # The id as a part of CSS classes: labkit-answer-SLUG of texts, labkit-waits-SLUG of outputs.
    # "" for a prediction without an id.
    slug = traitlets.Unicode("").tag(sync=True)
    # Whether texts that answer the prediction stay shut until the learner commits.
    guess_first = traitlets.Bool(False).tag(sync=True)
    question = traitlets.Unicode().tag(sync=True)
    # Empty if the question asks for a number.
    choices = traitlets.List(traitlets.Unicode()).tag(sync=True)
    # low, high and unit of the ruler; {} if the question has choices.
    ruler = traitlets.Dict().tag(sync=True)
    # The following traits are empty, False or 0 until the learner commits.
    choice = traitlets.Unicode("").tag(sync=True)
    # The reply.
    answered = traitlets.Unicode("").tag(sync=True)
    # The right choice; it stays "" if the question asks for a number.
    answer = traitlets.Unicode("").tag(sync=True)
    right = traitlets.Bool(False).tag(sync=True)
    # The measured number.
    truth = traitlets.Float(0.0).tag(sync=True)

    def __init__(self, prediction: Prediction, measure: Callable[[], float] | None = None) -> None:
        ruler = prediction.ruler
        if ruler is not None and measure is None:
            raise TypeError(
                "this prediction asks for a number: write predict(id, measure), where measure() "
                "returns it"
            )
        if ruler is None and measure is not None:
            raise TypeError("this prediction asks for a choice: write predict(id) alone")
        if GUESS_FIRST in os.environ:
            guess_first = os.environ[GUESS_FIRST] == "1"
        else:
            guess_first = guesses_first()
        self._prediction = prediction
        self._measure = measure
        # The choice to which the learner has committed.
        self._committed = ""
        shown = {"low": ruler.low, "high": ruler.high, "unit": ruler.unit} if ruler else {}
        super().__init__(
            question=prediction.question,
            choices=[] if ruler else list(prediction.choices),
            ruler=shown,
            guess_first=guess_first,
        )

    def accepts(self, choice: str) -> bool:
        """Return whether this is one of the choices, or a number on the ruler."""
        try:
            _require_choice(self._prediction, choice)
        except ValueError:
            return False
        return True

    @traitlets.validate("choice")
    def _valid_choice(self, proposal: Mapping[str, Any]) -> str:
        """Return the committed choice if there is one; else refuse what was not offered."""
        choice: str = proposal["value"]
        if self._committed:
            return self._committed
        if choice == "":
            return choice
        try:
            _require_choice(self._prediction, choice)
        except ValueError as error:
            raise traitlets.TraitError(str(error)) from None
        return choice

    @traitlets.observe("choice")
    def _commit(self, change: Mapping[str, Any]) -> None:
        choice = change["new"]
        # A page that sends another choice causes a change back to the committed one.
        if self._committed:
            return
        self._committed = choice
        ruler = self._prediction.ruler
        if ruler is None or self._measure is None:
            self.answer = self._prediction.answer
            self.right = choice == self._prediction.answer
            self.answered = reply(self._prediction, choice)
            return
        guess = ruler.read(choice)
        try:
            truth = float(self._measure())
            answered = reply_to_number(self._prediction, choice, truth)
        # A lesson's own code can raise anything, and nobody sees an error of a browser's message.
        except Exception as error:
            lost = f"The true one could not be measured: {error}."
            self.right = False
            self.answered = f"Noted. {lost} Run the cells above, then this one again."
            return
        self.truth = truth
        self.right = ruler.side(guess, truth) == "near"
        self.answered = answered

    def page_state(self) -> dict[str, Any]:
        """Return the state with all replies and the measured number: a page has no kernel."""
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
        # A lesson's own code can raise anything. The page then says that nothing was measured.
        except Exception:
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
        ruler = self._prediction.ruler
        if ruler is not None:
            low, high = short(ruler.low), short(ruler.high)
            lines = f"  ____{ruler.unit}   (a number from {low} to {high})"
        return still(
            f"{self.question}\n{lines}", "(Widgets do not run here: note your answer, then go on.)"
        )


def predictions() -> dict[str, Prediction]:
    """Return the predictions of all lessons by id, from the predictions.toml of each."""
    rows = {}
    for lesson in lessons():
        for id, row in lesson.table("predictions").items():
            ruler = Ruler(**row["ruler"]) if "ruler" in row else None
            rows[id] = Prediction(**{**row, "ruler": ruler})
    return rows


def predict(id: str, measure: Callable[[], float] | None = None) -> Predict:
    """Return a widget that asks a prediction of a lesson.

    If it was answered in this folder before, the widget shows that answer.

    Args:
        id: The name of the prediction in the lesson's predictions.toml.
        measure: Returns the true number, after the learner has committed; None for a question with
            choices.

    Raises:
        KeyError: No lesson has this prediction; the message lists all of them.
        TypeError: `measure` is missing for a number, or given for a question with choices.
    """
    known = predictions()
    if id not in known:
        raise KeyError(f"no prediction is called {id!r}; there are {sorted(known)}")
    widget = Predict(known[id], measure)
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
        if change["new"] == change["old"]:
            return
        # The reply shows warnings, since nobody sees a warning of a browser's message.
        with warnings.catch_warnings(record=True) as raised:
            warnings.simplefilter("always")
            save_answer(journal, "prediction", id, change["new"])
        answer_came(id)
        widget.answered += "".join(f" ({warning.message})" for warning in raised)

    widget.observe(committed, "choice")
    return widget
