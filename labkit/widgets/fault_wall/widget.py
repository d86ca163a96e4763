"""Known faults as cards that can be run.

The front of a card has a symptom, with the text of its error, and its back has the fault. Buttons
run the training with the fault and repaired, and the card then draws their losses. A search text
finds cards as an error message, by `labkit.faults.explain`, and otherwise by its words.

Invariant: a run never overlaps a notebook cell, since a fault may seed torch's generator, which a
cell would notice.
"""

from __future__ import annotations

import asyncio
import difflib
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
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
from labkit.findings import counted
from labkit.widgets.base.figures import still
from labkit.widgets.base.widget import LabWidget

ALL = "all"
# Name of a form -> whether it is repaired.
FORMS = {"broken": False, "cured": True}
WHY_STATIC = (
    "(Widgets do not run here: `labkit explain` lists the faults in a terminal, "
    "`labkit explain NAME` runs one, and "
    '`labkit explain "an error message"` finds the faults that are known by it.)'
)


def front(fault: Fault | GpuCard) -> dict[str, Any]:
    """Return the front of a card: the symptom, the texts of errors, and whether it can be run."""
    return {
        "id": fault.id,
        "symptom": fault.symptom,
        "errors": list(fault.errors),
        "kind": fault.kind.value,
        "runs": isinstance(fault, Fault),
    }


def behind(fault: Fault | GpuCard) -> dict[str, Any]:
    """Return the back of a card: the fault, the facts about it, and both forms as code."""
    facts = {"Why": fault.cause, "Instruments": fault.reading, "Repair": fault.repair}
    if isinstance(fault, Fault) and fault.where:
        facts["Where"] = fault.where
    if isinstance(fault, GpuCard):
        rows = fault.published()
        facts["Published"] = "In the threads; no row of data/published.csv shows it."
        if rows:
            facts["Published"] = "\n".join(rows)
        facts["Here"] = "Not run here. `labkit gpu --only cards` runs it on a machine with a GPU."
    return {
        "title": fault.title,
        "told": [[name, text] for name, text in facts.items()],
        "threads": [{"name": thread, "address": address(thread)} for thread in fault.threads],
        "code": compared(code_of(fault.function, fixed=False), code_of(fault.function, fixed=True)),
    }


def compared(broken: str, cured: str) -> list[list[list[Any]]]:
    r"""Return the lines of two texts, each with whether the other text lacks it.

    >>> compared("a\nb", "a\nc")
    [[['a', False], ['b', True]], [['a', False], ['c', True]]]
    """
    before = broken.splitlines()
    after = cured.splitlines()
    matcher = difflib.SequenceMatcher(a=before, b=after, autojunk=False)
    # The indices of the lines that both texts have.
    kept_before = set[int]()
    kept_after = set[int]()
    for block in matcher.get_matching_blocks():
        kept_before.update(range(block.a, block.a + block.size))
        kept_after.update(range(block.b, block.b + block.size))
    return [
        [[line, i not in kept_before] for i, line in enumerate(before)],
        [[line, i not in kept_after] for i, line in enumerate(after)],
    ]


def outcome_view(fault: Fault, outcome: TrainingOutcome, warned: str = "") -> dict[str, Any]:
    """Return what a card shows of a run: losses, None for inf or NaN, and a sentence.

    Args:
        fault: The fault.
        outcome: The outcome of the run.
        warned: The warning of the run that belongs to the fault; "" if there was none.
    """
    losses = [loss if math.isfinite(loss) else None for loss in outcome.losses]
    finite = [loss for loss in losses if loss is not None]
    steps = "1 step" if len(losses) == 1 else f"{len(losses)} steps"
    course = f"{steps} without a finite loss" if losses else "No step"
    if finite:
        course = f"{steps}, loss {finite[0]:.4g} at first and {finite[-1]:.4g} at last"
        if len(finite) < len(losses):
            course += f", inf or NaN in {len(losses) - len(finite)}"
    score = "NaN" if math.isnan(outcome.score) else f"{outcome.score:.3g}"
    sentence = f"{course}; its score is {score}, and it is well from {fault.limit:g} on."
    if warned:
        sentence += f" It warned: {warned}"
    if outcome.error:
        sentence = f"Ended after {steps} by {outcome.error}"
    return {"losses": losses, "failed": fault.failed(outcome), "sentence": sentence}


def find(cards: Mapping[str, Fault | GpuCard], query: str, kind: str) -> tuple[list[str], str]:
    """Return the ids of the cards for a text and a kind of symptom, and a sentence about them.

    A text is looked up as an error message first, among cards of all kinds. If no fault has this
    message, a card must be of the kind and have all words of the text.

    Args:
        cards: The cards to search, by id.
        query: An error message, or words; blank for all cards of the kind.
        kind: The value of a `Kind`, or "all".
    """
    of_kind = [card for card in cards.values() if kind in (ALL, card.kind.value)]
    if not query.strip():
        ids = [card.id for card in of_kind]
        return (
            ids,
            f"{counted(len(ids), 'card')}. Paste the error message that you have, or a word.",
        )
    ids = [card.id for card in explain(query) if card.id in cards]
    if ids:
        return (
            ids,
            f"{counted(len(ids), 'card')} known by this message, among all kinds of symptoms.",
        )
    words = plain(query).split()
    ids = [card.id for card in of_kind if _has_words(card, words)]
    if ids:
        which = "this word" if len(words) == 1 else "these words"
        return ids, f"{counted(len(ids), 'card')} with {which}."
    return [], "No card is known by this message, and none has all of these words."


def _has_words(card: Fault | GpuCard, words: Sequence[str]) -> bool:
    parts = (card.id, card.title, card.symptom, card.cause, card.repair, *card.errors)
    text = plain(" ".join(parts))
    return all(word in text for word in words)


class FaultWall(LabWidget, folder="fault_wall"):
    """Known faults as cards, with the symptom on the front and the cause on the back.

    Faults that need no GPU can be run. The others have published numbers.

    Args:
        without: The ids of cards that are left out, such as those that a lesson treats itself.

    Traits to set: `query` (an error message, or words) and `kind` ("all", or the value of a
    `labkit.faults.Kind`). To read: `shown` (the ids of the cards that were found, the best match
    first), `sentence`, and `outcomes` (of each card and form that was run).

    Raises:
        TraitError: `kind` is set to a kind that does not exist.
        ValueError: A card in `without` does not exist.

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
    # Id of a card -> form -> the outcome of its last run (`outcome_view`).
    outcomes: traitlets.Dict[str, dict[str, Any]] = traitlets.Dict().tag(sync=True)
    _cards: traitlets.List[dict[str, Any]] = traitlets.List().tag(sync=True)
    _kinds: traitlets.List[str] = traitlets.List().tag(sync=True)
    # Id -> the back of each card that was turned.
    _behind = traitlets.Dict().tag(sync=True)

    def __init__(self, without: Iterable[str] = ()) -> None:
        left_out = set(without)
        unknown = sorted(left_out - cards().keys())
        if unknown:
            raise ValueError(
                f"without: expected ids of cards, got {', '.join(map(repr, unknown))}; the ids are "
                f"{', '.join(cards())}"
            )
        self._known = {id: card for id, card in cards().items() if id not in left_out}
        # The event loop that runs the cells of a notebook; None outside of a notebook.
        self._loop: asyncio.AbstractEventLoop | None = None
        with suppress(RuntimeError):
            self._loop = asyncio.get_running_loop()
        super().__init__(
            _cards=[front(fault) for fault in self._known.values()],
            _kinds=[ALL, *(kind.value for kind in Kind)],
        )
        self._find()
        self.on_msg(self._on_message)

    def turn(self, id: str) -> dict[str, Any]:
        """Return the back of a card, and show it in the browser.

        Raises:
            KeyError: The wall has no such card.
        """
        if id not in self._behind:
            self._behind = {**self._behind, id: behind(self._known[id])}
        shown: dict[str, Any] = self._behind[id]
        return shown

    def run(self, id: str, form: str) -> dict[str, Any]:
        """Run the "broken" or the "cured" form to its end, show the outcome, and return it.

        Raises:
            KeyError: There is no such fault, or no such form.
        """
        fault = FAULTS[id]
        fixed = FORMS[form]
        with warnings.catch_warnings(record=True) as raised:
            warnings.simplefilter("always")
            outcome = run(fault, fixed)
        warned = ""
        for warning in raised:
            text = str(warning.message)
            if any(error in text for error in fault.errors):
                warned = text
                break
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
        elif self._loop is not None:
            # A message may arrive in another thread while a cell runs. The loop calls the method
            # after the cell has ended.
            self._loop.call_soon_threadsafe(self._run_for_page, content["run"], content["form"])
        else:
            self._run_for_page(content["run"], content["form"])

    def _run_for_page(self, id: str, form: str) -> None:
        """Run a form for the page, and tell the page when the run has ended.

        `outcomes` alone would not tell it: a run with the same outcome as the last one changes no
        trait.
        """
        try:
            self.run(id, form)
        finally:
            self.send({"ran": id, "form": form})

    def page_state(self) -> dict[str, Any]:
        """Return the state with the back of every card, for a page without a kernel."""
        return {
            **super().page_state(),
            "_behind": {id: behind(card) for id, card in self._known.items()},
        }

    def still(self) -> dict[str, Any]:
        lines = [self.sentence]
        for id in self.shown:
            card = self._known[id]
            lines += [f"- {card.symptom}", f"  {id}: {card.title}"]
        return still("\n".join(lines), WHY_STATIC)
