"""Known faults as cards that can be run.

Idea: in front a symptom, with the words of its error; behind it, when the card is turned, the
fault. Both forms of the training run when asked for, and their losses are drawn on the card. A text
finds cards as an error message, by `labkit.faults.explain`, and else by its words.

Invariant: what a card shows of a run follows from its `TrainingOutcome`. A run and a notebook cell
never overlap:
a fault may seed torch's generator, and no cell shall notice.
"""

from __future__ import annotations

import asyncio
import difflib
import math
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import traitlets

from labkit.faults import (
    FAULTS,
    Fault,
    GpuCard,
    Kind,
    TrainingOutcome,
    cards,
    code_of,
    explain,
    run,
)
from labkit.faults.catalogue import plain
from labkit.faults.fault import address
from labkit.widgets.base.figures import still
from labkit.widgets.base.widget import LabWidget

ALL = "all"
FORMS = {"broken": False, "cured": True}
WHY_STATIC = (
    "(Widgets do not run here: `labkit explain` lists the faults in a terminal, "
    "`labkit explain NAME` runs one, and "
    '`labkit explain "an error message"` finds who is known by it.)'
)


def front(fault: Fault | GpuCard) -> dict[str, Any]:
    """Return what is seen before a card is turned: the symptom and, if any, the error's text."""
    seen = {
        "id": fault.id,
        "symptom": fault.symptom,
        "errors": list(fault.errors),
        "kind": fault.kind.value,
    }
    return {**seen, "runs": isinstance(fault, Fault)}


def behind(fault: Fault | GpuCard) -> dict[str, Any]:
    """Return what a turned card shows: the fault, the facts about it, and both forms as code."""
    told = {"Why": fault.cause, "Instruments": fault.reading, "Repair": fault.repair}
    if isinstance(fault, Fault) and fault.where:
        told["Where"] = fault.where
    if isinstance(fault, GpuCard):
        shown = (
            "\n".join(fault.published()) or "In the threads; no row of data/published.csv shows it."
        )
        told |= {
            "Published": shown,
            "Here": "Not run here. `labkit gpu --only cards` runs it on a machine with a GPU.",
        }
    return {
        "title": fault.title,
        "told": [[name, text] for name, text in told.items()],
        "threads": [{"name": thread, "address": address(thread)} for thread in fault.threads],
        "code": compared(code_of(fault.function, fixed=False), code_of(fault.function, fixed=True)),
    }


def compared(broken: str, cured: str) -> list[list[list[Any]]]:
    r"""Return the lines of two texts, each with whether the other text lacks it.

    >>> compared("a\nb", "a\nc")
    [[['a', False], ['b', True]], [['a', False], ['c', True]]]
    """
    texts = [broken.splitlines(), cured.splitlines()]
    same = difflib.SequenceMatcher(a=texts[0], b=texts[1], autojunk=False).get_matching_blocks()
    kept = [{start[side] + i for *start, size in same for i in range(size)} for side in (0, 1)]
    return [[[line, i not in kept[side]] for i, line in enumerate(texts[side])] for side in (0, 1)]


def outcome_view(fault: Fault, outcome: TrainingOutcome, warned: str = "") -> dict[str, Any]:
    """Return what a card shows of a run: its losses, None for inf or NaN, and the outcome."""
    losses = [loss if math.isfinite(loss) else None for loss in outcome.losses]
    known = [loss for loss in losses if loss is not None]
    steps = "1 step" if len(losses) == 1 else f"{len(losses)} steps"
    course = f"{steps} without a finite loss" if losses else "No step"
    if known:
        gone = f", inf or NaN in {len(losses) - len(known)}" if len(known) < len(losses) else ""
        course = f"{steps}, loss {known[0]:.4g} at first and {known[-1]:.4g} at last{gone}"
    score = "NaN" if math.isnan(outcome.score) else f"{outcome.score:.3g}"
    said = f"{course}; its score is {score}, and it is well from {fault.limit:g} on."
    said += f" It warned: {warned}" if warned else ""
    if outcome.error:
        said = f"Ended after {steps} by {outcome.error}"
    return {"losses": losses, "failed": fault.failed(outcome), "sentence": said}


def find(cards: Mapping[str, Fault | GpuCard], query: str, kind: str) -> tuple[list[str], str]:
    """Return the ids of the cards for a text and a kind of symptom, and how they were found.

    A text is looked up as an error message first. Where no fault has that message, a card needs all
    of its words.
    """
    shown = [card for card in cards.values() if kind in (ALL, card.kind.value)]
    if not query.strip():
        return [
            card.id for card in shown
        ], f"{_cards(len(shown))}. Paste the error message that you have, or a word."
    if known := [card.id for card in explain(query) if card.id in cards]:
        return known, f"{_cards(len(known))} known by this message, among all kinds of symptoms."
    words = plain(query).split()
    texts = {
        c.id: plain(" ".join((c.id, c.title, c.symptom, c.cause, c.repair, *c.errors)))
        for c in shown
    }
    found = [id for id, text in texts.items() if all(word in text for word in words)]
    if found:
        return (
            found,
            f"{_cards(len(found))} with {'these words' if len(words) > 1 else 'this word'}.",
        )
    return [], "No card is known by this message, and none has all of these words."


def _cards(number: int) -> str:
    return "1 card" if number == 1 else f"{number} cards"


class FaultWall(LabWidget, folder="fault_wall"):
    """Known faults as cards: symptom in front, cause behind, runnable.

    What only a GPU shows has published numbers.

    Args:
        without: the ids of cards that are left out, as those that a lesson treats itself.

    What can be set: `query` (an error message, or words) and `kind` ("all", or the value of a
    `labkit.faults.Kind`). What can be read: `shown` (the ids of the cards that they find),
    `sentence`, `outcomes`. What can be done: `turn(id)`, `run(id, "broken")`, `run(id, "cured")`.

    Raises:
        TraitError: a kind that does not exist.
        KeyError: a fault or a form that does not exist.
        ValueError: a card is left out that does not exist.

    >>> wall = FaultWall()
    >>> wall.query = "ValueError: Attempting to unscale FP16 gradients."
    >>> wall.shown
    ['half_weights_unscaled', 'saved_half']
    >>> wall.run("half_weights_unscaled", "broken")["sentence"]
    'Ended after 0 steps by ValueError: Attempting to unscale FP16 gradients.'
    """

    query = traitlets.Unicode("").tag(sync=True)
    kind = traitlets.Enum([ALL, *(kind.value for kind in Kind)], ALL).tag(sync=True)
    shown = traitlets.List(traitlets.Unicode()).tag(sync=True)
    sentence = traitlets.Unicode().tag(sync=True)
    # id -> form -> what came of it
    outcomes: traitlets.Dict[str, dict[str, Any]] = traitlets.Dict().tag(sync=True)
    _cards: traitlets.List[dict[str, Any]] = traitlets.List().tag(sync=True)
    _kinds: traitlets.List[str] = traitlets.List().tag(sync=True)
    # id -> what a turned card shows; of those that were turned
    _behind = traitlets.Dict().tag(sync=True)

    def __init__(self, without: Iterable[str] = ()) -> None:
        without = set(without)
        if unknown := sorted(without - cards().keys()):
            raise ValueError(
                f"there is no card {', '.join(unknown)} to leave out; there are "
                f"{', '.join(cards())}"
            )
        self._known = {id: card for id, card in cards().items() if id not in without}
        self._cell: asyncio.AbstractEventLoop | None = None
        with suppress(RuntimeError):  # outside of a notebook
            self._cell = asyncio.get_running_loop()
        super().__init__(
            _cards=[front(fault) for fault in self._known.values()],
            _kinds=[ALL, *(kind.value for kind in Kind)],
        )
        self._find()
        self.on_msg(self._on_message)

    def turn(self, id: str) -> dict[str, Any]:
        """Return the back of a card, and show it in the browser."""
        if id not in self._behind:
            self._behind = {**self._behind, id: behind(self._known[id])}
        shown: dict[str, Any] = self._behind[id]
        return shown

    def run(self, id: str, form: str) -> dict[str, Any]:
        """Run the "broken" or the "cured" form to its end, show the outcome, and return it."""
        fault = FAULTS[id]
        fixed = FORMS[form]
        with warnings.catch_warnings(record=True) as raised:
            warnings.simplefilter("always")
            outcome = run(fault, fixed)
        said = [str(warning.message) for warning in raised]
        warned = next((text for text in said if any(known in text for known in fault.errors)), "")
        view = outcome_view(fault, outcome, warned)
        self.outcomes = {**self.outcomes, id: {**self.outcomes.get(id, {}), form: view}}
        return view

    @traitlets.observe("query", "kind")
    def _find(self, _change: object = None) -> None:
        with self.hold_sync():
            self.shown, self.sentence = find(self._known, self.query, self.kind)

    def _on_message(self, _: object, content: Any, __: object) -> None:
        if "turn" in content:
            self.turn(content["turn"])
        elif self._cell is not None:
            # not beside a cell
            self._cell.call_soon_threadsafe(self.run, content["run"], content["form"])
        else:
            self.run(content["run"], content["form"])

    def page_state(self) -> dict[str, Any]:
        """Add the back of every card: a page has no kernel to turn one."""
        return {
            **super().page_state(),
            "_behind": {id: behind(card) for id, card in self._known.items()},
        }

    def still(self) -> dict[str, Any]:
        cards = [
            f"- {self._known[id].symptom}\n  {id}: {self._known[id].title}" for id in self.shown
        ]
        return still("\n".join([self.sentence, *cards]), WHY_STATIC)
