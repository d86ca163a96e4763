"""What do people bring, and what was it? Every patient as a card that can be run.

Idea: in front a symptom, with the words of its error; behind it, when the card is turned, what it was. Both forms of
the training run here and now when somebody asks for them, and their losses are drawn on the card.

Invariant: what a card shows of a run comes from a run that happened. Runs take turns with the notebook's cells: a
patient may seed torch's generator, and no cell shall notice.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import traitlets

from labkit.clinic import Kind, cards, patients, run
from labkit.widgets.base.assets import script, style
from labkit.widgets.base.figures import still
from labkit.widgets.base.widget import LabWidget
from labkit.widgets.patient_wall import words

FORMS = {"broken": False, "cured": True}
WHY_STATIC = (
    "(Widgets do not run here: `labkit explain` lists the patients in a terminal, `labkit explain NAME` runs one, and "
    '`labkit explain "an error message"` finds who is known by it.)'
)


class PatientWall(LabWidget):
    """The patients as cards: symptom in front, cause behind, runnable; what only a GPU shows has published numbers.

    Args:
        without: the ids of cards that are left out, as those that a lesson treats itself.

    What can be set: `query` (an error message, or words) and `kind` ("all", or the value of a `labkit.clinic.Kind`).
    What can be read: `shown` (the ids of the cards that they find), `sentence`, `outcomes`.
    What can be done: `turn(id)`, `run(id, "broken")`, `run(id, "cured")`.

    Raises:
        TraitError: a kind that does not exist.
        KeyError: a patient or a form that does not exist.
        ValueError: a card is left out that does not exist.

    >>> wall = PatientWall()
    >>> wall.query = "ValueError: Attempting to unscale FP16 gradients."
    >>> wall.shown
    ['half_weights_unscaled', 'saved_half']
    >>> wall.run("half_weights_unscaled", "broken")["sentence"]
    'Ended after 0 steps by ValueError: Attempting to unscale FP16 gradients.'
    """

    _esm = script("patient_wall")
    _css = style("patient_wall")
    query = traitlets.Unicode("").tag(sync=True)
    kind = traitlets.Enum([words.ALL, *(kind.value for kind in Kind)], words.ALL).tag(sync=True)
    shown = traitlets.List(traitlets.Unicode()).tag(sync=True)
    sentence = traitlets.Unicode().tag(sync=True)
    outcomes: traitlets.Dict[str, dict[str, Any]] = traitlets.Dict().tag(sync=True)  # id -> form -> what came of it
    _cards: traitlets.List[dict[str, Any]] = traitlets.List().tag(sync=True)
    _kinds: traitlets.List[str] = traitlets.List().tag(sync=True)
    _behind = traitlets.Dict().tag(sync=True)  # id -> what a turned card shows; of those that were turned

    def __init__(self, without: Iterable[str] = ()) -> None:
        without = set(without)
        if unknown := sorted(without - cards().keys()):
            raise ValueError(f"there is no card {', '.join(unknown)} to leave out; there are {', '.join(cards())}")
        self._known = {id: card for id, card in cards().items() if id not in without}
        self._cell: asyncio.AbstractEventLoop | None = None
        with suppress(RuntimeError):  # outside of a notebook
            self._cell = asyncio.get_running_loop()
        super().__init__(
            _cards=[words.front(patient) for patient in self._known.values()],
            _kinds=[words.ALL, *(kind.value for kind in Kind)],
        )
        self._find()
        self.on_msg(self._on_message)

    def turn(self, id: str) -> dict[str, Any]:
        """Return what stands behind a card, and show it in the browser."""
        if id not in self._behind:
            self._behind = {**self._behind, id: words.behind(self._known[id])}
        shown: dict[str, Any] = self._behind[id]
        return shown

    def run(self, id: str, form: str) -> dict[str, Any]:
        """Run the "broken" or the "cured" form to its end, show what came of it, and return that."""
        patient, cured = patients()[id], FORMS[form]
        with warnings.catch_warnings(record=True) as raised:
            warnings.simplefilter("always")
            outcome = run(patient, cured)
        said = [str(warning.message) for warning in raised]
        warned = next((text for text in said if any(known in text for known in patient.errors)), "")
        view = words.outcome_view(patient, outcome, warned)
        self.outcomes = {**self.outcomes, id: {**self.outcomes.get(id, {}), form: view}}
        return view

    @traitlets.observe("query", "kind")
    def _find(self, _change: object = None) -> None:
        with self.hold_sync():
            self.shown, self.sentence = words.find(self._known, self.query, self.kind)

    def _on_message(self, _: object, content: Any, __: object) -> None:
        if "turn" in content:
            self.turn(content["turn"])
        elif "run" in content and self._cell is not None:
            self._cell.call_soon_threadsafe(self.run, content["run"], content["form"])  # not beside a cell
        elif "run" in content:
            self.run(content["run"], content["form"])

    def still(self) -> dict[str, Any]:
        """Return what is shown where widgets do not run."""
        cards = [f"- {self._known[id].symptom}\n  {id}: {self._known[id].title}" for id in self.shown]
        return still("\n".join([self.sentence, *cards]), WHY_STATIC)
