"""What do you expect to see? A question that has to be answered before the lesson shows it.

Idea: a prediction is a row of data: a question, and for each choice the reply, which says why people expect that. Once
committed it stays, so that what comes next can surprise.

Invariant: the browser never holds the answer before the learner has committed to one.
"""

from __future__ import annotations

import tomllib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import traitlets

from labkit.records.journal import journal_here, keep, last_answers
from labkit.widgets.base.assets import script, style
from labkit.widgets.base.figures import still
from labkit.widgets.base.widget import LabWidget


@dataclass(frozen=True)
class Prediction:
    """A question with a few choices.

    question  one or two sentences
    choices   choice -> the reply to whoever picks it, in the order shown
    answer    the choice that is right
    """

    question: str
    choices: Mapping[str, str]
    answer: str

    def __post_init__(self) -> None:
        if self.answer not in self.choices:
            raise ValueError(f"the answer {self.answer!r} is none of the choices {list(self.choices)}")


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


class Predict(LabWidget):
    """Asks a `Prediction`; `choice` and `answered` follow what the learner does. Use `predict(id)` to get one."""

    _esm = script("predict")
    _css = style("predict")
    question = traitlets.Unicode().tag(sync=True)
    choices = traitlets.List(traitlets.Unicode()).tag(sync=True)
    choice = traitlets.Unicode("").tag(sync=True)  # "" until the learner commits
    answered = traitlets.Unicode("").tag(sync=True)  # the reply, "" until then
    right = traitlets.Bool(False).tag(sync=True)

    def __init__(self, prediction: Prediction) -> None:
        self._prediction = prediction
        super().__init__(question=prediction.question, choices=list(prediction.choices))

    @traitlets.observe("choice")
    def _commit(self, change: Mapping[str, Any]) -> None:
        self.right = change["new"] == self._prediction.answer
        self.answered = reply(self._prediction, change["new"])

    def still(self) -> dict[str, Any]:
        """Return what is shown where widgets do not run."""
        lines = "\n".join(f"  ( ) {choice}" for choice in self.choices)
        return still(f"{self.question}\n{lines}", "(Widgets do not run here: note your answer, then go on.)")


@cache
def predictions() -> dict[str, Prediction]:
    """Return all predictions of the lessons by id, from predictions.toml."""
    stored = tomllib.loads((files("labkit.widgets.predict") / "predictions.toml").read_text(encoding="utf-8"))
    return {id: Prediction(**row) for id, row in stored.items()}


def predict(id: str) -> Predict:
    """Ask the prediction with this id; one that was answered in this folder before is shown as answered.

    Raises:
        KeyError: there is none; the message lists those there are.
    """
    if id not in predictions():
        raise KeyError(f"no prediction is called {id!r}; there are {sorted(predictions())}")
    widget, journal = Predict(predictions()[id]), journal_here()
    if journal is not None:
        _keep(widget, journal, id)
    return widget


def _keep(widget: Predict, journal: Path, id: str) -> None:
    """Give the widget the answer that the journal holds, and note the one that will be given."""
    earlier = last_answers(journal, "prediction").get(id)
    if earlier in widget.choices:
        widget.choice = earlier

    def committed(change: Mapping[str, Any]) -> None:
        with warnings.catch_warnings(record=True) as said:  # a warning out of a message of the browser is not seen
            warnings.simplefilter("always")
            keep(journal, "prediction", id, change["new"])
        widget.answered += "".join(f" ({warning.message})" for warning in said)

    widget.observe(committed, "choice")
