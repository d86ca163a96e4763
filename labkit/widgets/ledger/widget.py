"""Which operation runs in which dtype, and what if it did not? The forward pass as a ledger that can be touched.

Idea: each row of the ledger has its list as four buttons. Moving an operation runs the forward pass again, twice, under
autocast and in FP32, and every row below follows: its dtype, and its distance from FP32.

Invariant: rows and sentence belong to `overrides` and `format_name`, and come from a run that happened.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import traitlets

from labkit.amp import Rule
from labkit.amp.casting.ledger import LedgerRow, ledger
from labkit.formats import BF16, FP16, Format
from labkit.train import one_thread
from labkit.widgets.base.assets import script, style
from labkit.widgets.base.figures import still, why_still
from labkit.widgets.base.widget import LabWidget, limited
from labkit.widgets.ledger.view import LISTS, as_text, list_of, mark, row_view, sentence

WHY_STATIC = why_still(
    'to move operations, or go on in code: board.move("exp", "allow"); print(board.sentence)', "This ledger stands"
)


class CastLedger(LabWidget):
    """The operations of a forward pass under autocast, each with its list, its dtypes and its error against FP32.

    Args:
        model: a module or any function of tensors, with FP32 weights.
        inputs: what it is called with.
        format: what autocast casts to, FP16 or BF16.
        overrides: operations on other lists to begin with, by name or key: {"exp": "allow"}.
        title: what stands above it.

    What can be read and set: `overrides` (key -> name of a list), `format_name`. What can be read: `rows`, `sentence`.
    What can be done: `move("exp", "allow")`, `reset()`.

    Raises:
        ValueError: the forward pass computes nothing in floating point.
        TraitError: an operation that is not called, or a list or a format that does not exist.

    >>> import torch
    >>> board = CastLedger(lambda x: (x @ x).exp().sum(), torch.full((2, 2), 2.5))
    >>> board.sentence
    "1 of these 3 operations run in FP16 and 2 in FP32; the last result equals FP32's."
    >>> board.move("exp", "allow")
    >>> board.sentence
    'With exp on the allow list, exp overflows: 4 of its 4 results are inf or NaN, where FP32 has up to 268000. It
     reaches the last result.'
    """

    _esm = script("ledger")
    _css = style("ledger")

    overrides = traitlets.Dict().tag(sync=True)
    format_name = traitlets.Unicode("FP16").tag(sync=True)
    sentence = traitlets.Unicode().tag(sync=True)
    _measured: tuple[LedgerRow, ...]
    _rows: traitlets.List[dict[str, Any]] = traitlets.List().tag(sync=True)
    _mark = traitlets.Dict().tag(sync=True)
    _about = traitlets.Dict().tag(sync=True)

    def __init__(
        self,
        model: Callable[..., Any],
        *inputs: Any,
        format: Format = FP16,
        overrides: Mapping[str, str] | None = None,
        title: str = "A forward pass under autocast",
    ) -> None:
        self._model, self._inputs = model, inputs
        self._plain: dict[str, tuple[LedgerRow, ...]] = {}
        self._formats = {row.name: row for row in (FP16, BF16, format)}
        if not self._usual(format):
            raise ValueError("this forward pass computes no floating-point tensor; is its input one?")
        about = {"title": title, "lists": list(LISTS), "formats": list(self._formats)}
        super().__init__(_about=about, format_name=format.name)
        self._calculate()
        if overrides:
            self.overrides = dict(overrides)

    @property
    def rows(self) -> tuple[LedgerRow, ...]:
        """What was measured, one row for each operation."""
        return self._measured

    def move(self, operation: str, to: str) -> None:
        """Put an operation ("exp": every call, "exp 2": the second) on a list: allow, deny, promote or keep."""
        self.overrides = {**self.overrides, **self._by_key({operation: to})}

    def reset(self) -> None:
        """Put every operation back on its own list."""
        self.overrides = {}

    def _run(self, format: Format, moved: Mapping[str, Rule]) -> tuple[LedgerRow, ...]:
        with one_thread():
            return ledger(self._model, *self._inputs, format=format, overrides=moved)

    def _usual(self, format: Format) -> tuple[LedgerRow, ...]:
        """Return the rows with every operation on its own list."""
        if format.name not in self._plain:
            self._plain[format.name] = self._run(format, {})
        return self._plain[format.name]

    def _by_key(self, overrides: Mapping[str, str]) -> dict[str, str]:
        """Spell overrides by name out for each call.

        Raises:
            TraitError: there is no such operation here, or no such list.
        """
        usual = self._usual(self._formats[self.format_name])
        found: dict[str, str] = {}
        for name, to in overrides.items():
            keys = [row.key for row in usual if name in (row.key, row.op)]
            if not keys:
                there = ", ".join(dict.fromkeys(row.op for row in usual))
                raise traitlets.TraitError(f"there is no {name!r} in this forward pass; there are {there}")
            if to not in LISTS and all(list_of(row.home) != to for row in usual if row.key in keys):
                raise traitlets.TraitError(f"there is no list {to!r}; there are {', '.join(LISTS)}")
            found |= dict.fromkeys(keys, to)
        return found

    @traitlets.validate("overrides")
    def _valid_overrides(self, proposal: dict[str, Any]) -> dict[str, str]:
        homes = {row.key: list_of(row.home) for row in self._usual(self._formats[self.format_name])}
        return {key: to for key, to in self._by_key(proposal["value"]).items() if to != homes[key]}

    @limited("format_name")
    def _places(self) -> dict[str, Collection[Any]]:
        return {"format_name": self._formats}

    @traitlets.observe("overrides", "format_name")
    def _calculate(self, _change: object = None) -> None:
        format = self._formats[self.format_name]
        usual = self._usual(format)
        moved = {key: LISTS[to] for key, to in self.overrides.items()}
        self._measured = self._run(format, moved) if moved else usual
        with self.hold_sync():
            self._mark = mark(format)
            self._rows = [row_view(row) for row in self._measured]
            self.sentence = sentence(self._measured, usual[-1].error, format)

    def still(self) -> dict[str, Any]:
        """Return what is shown where widgets do not run."""
        return still(f"{as_text(self._measured)}\n\n{self.sentence}", WHY_STATIC)
