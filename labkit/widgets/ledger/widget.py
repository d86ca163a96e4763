"""Ledger of a forward pass: the dtype of each operation, and the effect of another list.

`labkit.amp.ledger` measures; here its rows become words, names of formats and lengths of bars. Each
row has its list as four buttons. Moving an operation runs the forward pass again, twice, under
autocast and in FP32. A page without a kernel has the states that one move reaches (`page_state`).

Invariant: rows and sentence belong to `overrides` and `format_name`, and come from a run; the
sentence is about the first thing that went wrong in the rows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from decimal import Decimal
from typing import Any

import traitlets

from labkit.amp import Rule
from labkit.amp.casting.ledger import LedgerRow, ledger
from labkit.formats import BF16, FP16, Format
from labkit.interop import format_of
from labkit.train import one_thread
from labkit.widgets.base.figures import still, why_still
from labkit.widgets.base.number_words import brief
from labkit.widgets.base.widget import LabWidget, limited

BAR = 24  # the error bar goes from 2^-24, where FP32 itself rounds, to 1
LISTS = {"allow": Rule.ALLOW, "deny": Rule.DENY, "promote": Rule.PROMOTE, "keep": Rule.KEEP}
# both mean: in FP32
_SHOWN_AS = {rule: "deny" for rule in Rule if rule.value in ("set dtype", "append dtype")}
WHY_STATIC = why_still(
    'to move operations, or go on in code: board.move("exp", "allow"); print(board.sentence)',
    "This ledger stands",
)


def list_of(rule: Rule) -> str:
    """Return the list under which a rule is shown.

    >>> list_of(Rule.ALLOW), list_of(Rule.SET_DTYPE)
    ('allow', 'deny')
    """
    return _SHOWN_AS.get(rule, rule.value)


def relative(error: float) -> str:
    """Write a relative error as a person reads it.

    >>> [relative(error) for error in (0.0, 3e-9, 4.7e-6, 0.00036, 0.0214, 1.3, math.inf)]
    ['exact', '<0.0001%', '0.00047%', '0.036%', '2.1%', '130%', 'inf']
    """
    if error == 0 or not math.isfinite(error):
        return "exact" if error == 0 else "inf"
    return f"{Decimal(f'{100 * error:.2g}'):f}%" if error >= 1e-6 else "<0.0001%"


def mark(format: Format) -> dict[str, Any]:
    """Return the largest error of one rounding to a format, after its place on a bar, 0 to 1.

    >>> from labkit.formats import FP16
    >>> mark(FP16)["text"]
    '2^-11'
    """
    return {
        "at": _length(format.epsilon / 2),
        "text": f"2^-{format.precision}",
        "format": format.name,
    }


def ran_in(row: LedgerRow) -> str:
    """Return the name of the format an operation ran in, "" if it did not run."""
    what = row.to or row.result
    if what is None:
        return ""
    return what.name if isinstance(what, Format) else format_of(what).name


def row_view(row: LedgerRow) -> dict[str, Any]:
    """Return what the browser needs to draw a row."""
    takes = list(dict.fromkeys(format_of(dtype).name for dtype in row.input_dtypes))
    why = f"{row.rule.value}: {row.why}" if row.rule in _SHOWN_AS else row.why
    flag = f"{row.overflowed:,} inf or NaN" if row.overflowed else ""
    if row.problem:
        flag = "refused"
    elif row.result is None:
        flag = "not reached"
    return {
        "key": row.key,
        "op": row.op,
        "where": row.where,
        "why": f"you moved it here; its own list is {list_of(row.home)}" if row.moved else why,
        "list": list_of(row.rule),
        "home": list_of(row.home),
        "moved": row.moved,
        "takes": takes,
        "ran": ran_in(row),
        "cast": row.to is not None and any(dtype != row.to for dtype in row.input_dtypes),
        "gives": "" if row.result is None else format_of(row.result).name,
        "bar": 0.0 if row.result is None else _length(row.error),
        "error": "" if row.result is None else relative(row.error),
        "flag": flag,
        "detail": _detail(row),
        "problem": row.problem,
    }


def sentence(rows: Sequence[LedgerRow], before: float, format: Format) -> str:
    """Return a sentence or two on what happens in this forward pass.

    `before` is the error of the last result with every operation on its own list.
    """
    places = [f"{row.op} on the {list_of(row.rule)} list" for row in rows if row.moved]
    unique = list(dict.fromkeys(places))
    moved = ""
    if places:
        shown = " and ".join(unique) if len(unique) < 3 else f"{len(places)} operations moved"
        moved = f"With {shown}, "
    last = rows[-1]
    stopped = next((row for row in rows if row.problem), None)
    if stopped is not None:
        after = "" if stopped is last else " Nothing below it was reached."
        return f"{moved}{stopped.op} is refused: {_first_line(stopped.problem)}.{after}"
    broken = next((row for row in rows if row.overflowed), None)
    if broken is not None:
        size = math.prod(broken.shape)
        which = (
            f"{broken.overflowed:,} of its {size:,} results are" if size > 1 else "its result is"
        )
        after = (
            " It reaches the last result."
            if last.overflowed
            else f" The last result survives and {_away(last.error)}."
        )
        where = f"where FP32 has up to {brief(broken.largest)}.{'' if broken is last else after}"
        return f"{moved}{broken.op} overflows: {which} inf or NaN, {where}"
    usual = f" ({relative(before)} when every operation is on its own list)" if moved else ""
    said = f"{moved}{_counts(rows, format)}"
    return f"{said[:1].upper()}{said[1:]}; the last result {_away(last.error)}{usual}."


def as_text(rows: Sequence[LedgerRow]) -> str:
    """Write the ledger as a table of text."""
    head = ("operation", "takes", "list", "gives", "error")
    cells = [head]
    for row in rows:
        view = row_view(row)
        cells.append(
            (
                view["op"],
                " ".join(view["takes"]),
                view["list"],
                view["gives"],
                view["flag"] or view["error"],
            )
        )
    widths = [max(len(line[i]) for line in cells) for i in range(len(head))]
    return "\n".join(
        "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in cells
    )


def _counts(rows: Sequence[LedgerRow], format: Format) -> str:
    counts = Counter(ran_in(row) for row in rows)
    names = sorted(counts, key=lambda name: name != format.name)
    if len(names) == 1:
        return f"all {len(rows)} operations run in {names[0]}"
    first, *others = (f"{counts[name]} in {name}" for name in names)
    return (
        f"{first.replace(' in ', f' of these {len(rows)} operations run in ')} and "
        f"{' and '.join(others)}"
    )


def _first_line(problem: str) -> str:
    return problem.strip().splitlines()[0].rstrip(".")


def _away(error: float) -> str:
    return (
        "equals FP32's"
        if error == 0
        else f"is {relative(error).replace('<', 'less than ')} away from FP32's"
    )


def _length(error: float) -> float:
    """Return the length of an error's bar, 0 to 1, on a scale of powers of two."""
    if not math.isfinite(error):
        return 1.0
    return min(max(1 + math.log2(error) / BAR, 0.0), 1.0) if error else 0.0


def _detail(row: LedgerRow) -> str:
    """Return all facts of a row in a sentence."""
    shape = " × ".join(map(str, row.shape)) or "one number"
    facts = [f"{row.op} returns {shape}, up to {brief(row.largest)} in FP32"]
    if row.result is not None and math.isfinite(row.error):
        facts.append(f"the error is {brief(row.ulps, 2)} ulp of FP16")
    if row.overflowed:
        facts.append(f"{row.overflowed:,} elements are inf or NaN")
    if row.lost:
        facts.append(f"{row.lost:,} elements are 0 here and not in FP32")
    return f"{'; '.join(facts)}. {_first_line(row.problem) + '.' if row.problem else ''}".rstrip()


class CastLedger(LabWidget, folder="ledger"):
    """Operations of a forward pass under autocast: list, dtypes and error against FP32 of each.

    Args:
        model: a module or any function of tensors, with FP32 weights.
        inputs: what it is called with.
        format: what autocast casts to, FP16 or BF16.
        overrides: operations on other lists to begin with, by name or key: {"exp": "allow"}.
        title: the heading.

    Traits to read and set: `overrides` (key -> name of a list), `format_name`. To read: `rows`,
    `sentence`. Methods:
    `move("exp", "allow")`, `reset()`.

    Raises:
        ValueError: the forward pass computes nothing in floating point.
        TraitError: an operation that is not called, or a list or a format that does not exist.

    >>> import torch
    >>> board = CastLedger(lambda x: (x @ x).exp().sum(), torch.full((2, 2), 2.5))
    >>> board.sentence
    "1 of these 3 operations run in FP16 and 2 in FP32; the last result equals FP32's."
    >>> board.move("exp", "allow")
    >>> print(board.sentence)
    With exp on the allow list, exp overflows: 4 of its 4 results are inf or NaN,
    where FP32 has up to 268000. It reaches the last result.
    """

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
        self._model = model
        self._inputs = inputs
        self._plain: dict[str, tuple[LedgerRow, ...]] = {}
        self._formats = {row.name: row for row in (FP16, BF16, format)}
        if not self._usual(format):
            raise ValueError(
                "expected a forward pass that computes floating-point tensors; check its inputs"
            )
        about = {"title": title, "lists": list(LISTS), "formats": list(self._formats)}
        super().__init__(_about=about, format_name=format.name)
        self._calculate()
        if overrides:
            self.overrides = dict(overrides)

    @property
    def rows(self) -> tuple[LedgerRow, ...]:
        return self._measured

    def move(self, operation: str, to: str) -> None:
        """Put an operation on a list: allow, deny, promote or keep.

        The operation "exp" means every call, "exp 2" the second one.
        """
        self.overrides = {**self.overrides, **self._by_key({operation: to})}

    def reset(self) -> None:
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
        """Spell overrides by name out for each call."""
        usual = self._usual(self._formats[self.format_name])
        found: dict[str, str] = {}
        for name, to in overrides.items():
            keys = [row.key for row in usual if name in (row.key, row.op)]
            if not keys:
                known = ", ".join(dict.fromkeys(row.op for row in usual))
                raise traitlets.TraitError(f"operation: expected one of {known}, got {name!r}")
            if to not in LISTS and all(list_of(row.home) != to for row in usual if row.key in keys):
                raise traitlets.TraitError(f"list: expected one of {', '.join(LISTS)}, got {to!r}")
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
            for name, value in self._traits_of(self._measured, format).items():
                setattr(self, name, value)

    def _traits_of(self, rows: tuple[LedgerRow, ...], format: Format) -> dict[str, Any]:
        """Return the traits that rows decide."""
        said = sentence(rows, self._usual(format)[-1].error, format)
        return {"_mark": mark(format), "_rows": [row_view(row) for row in rows], "sentence": said}

    def page_state(self) -> dict[str, Any]:
        """Add the states that one move from the usual lists reaches, or a button.

        A page has no kernel to run them.
        """
        states: dict[str, Any] = {}
        for name, format in self._formats.items():
            homes = {row.key: list_of(row.home) for row in self._usual(format)}
            moves = [{}, *(dict.fromkeys(homes, to) for to in ("allow", "deny"))]
            for chosen in (*moves, *({key: to} for key in homes for to in LISTS)):
                moved = {key: to for key, to in sorted(chosen.items()) if to != homes[key]}
                key = ";".join([name, *(f"{operation}={to}" for operation, to in moved.items())])
                if key not in states:
                    rows = self._run(
                        format, {operation: LISTS[to] for operation, to in moved.items()}
                    )
                    states[key] = self._traits_of(rows, format)
        return {**super().page_state(), "_states": states}

    def still(self) -> dict[str, Any]:
        return still(f"{as_text(self._measured)}\n\n{self.sentence}", WHY_STATIC)
