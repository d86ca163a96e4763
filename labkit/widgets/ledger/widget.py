"""Ledger of a forward pass: the dtype of each operation, and the effect of another list.

`labkit.amp.ledger` measures each operation; here its rows become words, names of formats and
lengths of bars. In each row, buttons move the operation to another list. Then the forward pass runs
again, under autocast and in FP32. A page without a kernel has the results of each single move
(`page_state`).

Invariant: rows and sentence come from a forward pass with the current `overrides` and
`format_name`. The sentence is about the first operation that was refused, or else the first one
that overflowed.
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
from labkit.findings import counted
from labkit.formats import BF16, FP16, Format, FormatLike, as_format
from labkit.interop import format_of
from labkit.train import one_thread
from labkit.widgets.base.figures import still, why_still
from labkit.widgets.base.number_words import brief
from labkit.widgets.base.widget import LabWidget, limited

# A bar begins at the error 2^-BAR, that of one rounding to FP32, and ends at 1.
BAR = 24
LISTS = {"allow": Rule.ALLOW, "deny": Rule.DENY, "promote": Rule.PROMOTE, "keep": Rule.KEEP}
# Operations with these rules run in FP32, as those on the deny list.
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
    """Return a relative error as text, in percent with two digits.

    >>> [relative(error) for error in (0.0, 3e-9, 4.7e-6, 0.00036, 0.0214, 1.3, math.inf)]
    ['exact', '<0.0001%', '0.00047%', '0.036%', '2.1%', '130%', 'inf']
    """
    if error == 0:
        return "exact"
    if not math.isfinite(error):
        return "inf"
    if error < 1e-6:
        return "<0.0001%"
    # A Decimal is written without an exponent: 0.00047.
    percent = Decimal(f"{100 * error:.2g}")
    return f"{percent:f}%"


def mark(format: Format) -> dict[str, Any]:
    """Return the largest error of one rounding to a format, as JSON (`Mark` of view.js).

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
    """Return the name of the format in which an operation ran; "" if it did not run."""
    what = row.to or row.result
    if what is None:
        return ""
    return what.name if isinstance(what, Format) else format_of(what).name


def row_view(row: LedgerRow) -> dict[str, Any]:
    """Return a row as JSON (`Row` of view.js)."""
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


def sentence(rows: Sequence[LedgerRow], before: Sequence[LedgerRow], format: Format) -> str:
    """Return one or two sentences about a forward pass.

    Args:
        rows: The operations of the forward pass.
        before: Those of the forward pass with every operation on its own list.
        format: The format to which autocast casts.
    """
    moved = _moved(rows)
    last = rows[-1]
    stopped = next((row for row in rows if row.problem), None)
    if stopped is not None:
        after = "" if stopped is last else " Nothing below it was reached."
        return f"{moved}{stopped.op} is refused: {_first_line(stopped.problem)}.{after}"
    broken = next((row for row in rows if row.overflowed), None)
    if broken is not None:
        return f"{moved}{_overflow(broken, last)}"
    usual = ""
    if moved:
        refused = any(row.problem for row in before)
        error = "refused" if refused else relative(before[-1].error)
        usual = f" ({error} when every operation is on its own list)"
    text = f"{moved}{_counts(rows, format)}"
    return f"{text[:1].upper()}{text[1:]}; the last result {_away(last.error)}{usual}."


def _moved(rows: Sequence[LedgerRow]) -> str:
    """Return the beginning of the sentence, about operations on other lists; "" without any."""
    places = [f"{row.op} on the {list_of(row.rule)} list" for row in rows if row.moved]
    if not places:
        return ""
    unique = list(dict.fromkeys(places))
    # More of them would make the sentence too long.
    if len(unique) > 2:
        return f"With {len(places)} operations moved, "
    return f"With {' and '.join(unique)}, "


def _overflow(broken: LedgerRow, last: LedgerRow) -> str:
    """Return the sentence about the first operation that overflows, and about the last result."""
    size = math.prod(broken.shape)
    which = "its result is"
    if size > 1:
        which = f"{broken.overflowed:,} of its {size:,} results are"
    largest = brief(broken.largest)
    text = f"{broken.op} overflows: {which} inf or NaN, where FP32 has up to {largest}."
    if broken is last:
        return text
    if last.overflowed:
        return f"{text} It reaches the last result."
    return f"{text} The last result survives and {_away(last.error)}."


def as_text(rows: Sequence[LedgerRow]) -> str:
    """Return the ledger as a table of text."""
    head = ("operation", "takes", "list", "gives", "error")
    lines = [head]
    for row in rows:
        view = row_view(row)
        takes = " ".join(view["takes"])
        error = view["flag"] or view["error"]
        lines.append((view["op"], takes, view["list"], view["gives"], error))
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    texts = []
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        texts.append("  ".join(cells).rstrip())
    return "\n".join(texts)


def _counts(rows: Sequence[LedgerRow], format: Format) -> str:
    """Return how many operations run in each format, beginning with the format of autocast."""
    counts = Counter(ran_in(row) for row in rows)
    first, *others = sorted(counts, key=lambda name: name != format.name)
    if len(rows) == 1:
        return f"the one operation runs in {first}"
    if not others:
        return f"all {len(rows)} operations run in {first}"
    rest = " and ".join(f"{counts[name]} in {name}" for name in others)
    run = "runs" if counts[first] == 1 else "run"
    return f"{counts[first]} of these {len(rows)} operations {run} in {first} and {rest}"


def _first_line(problem: str) -> str:
    return problem.strip().splitlines()[0].rstrip(".")


def _away(error: float) -> str:
    """Return how far a result is from that of FP32, as the end of a sentence."""
    if error == 0:
        return "equals FP32's"
    return f"is {relative(error).replace('<', 'less than ')} away from FP32's"


def _length(error: float) -> float:
    """Return the length of an error's bar, 0 to 1, on a scale of powers of two."""
    if not math.isfinite(error):
        return 1.0
    if error == 0:
        return 0.0
    return min(max(1 + math.log2(error) / BAR, 0.0), 1.0)


def _detail(row: LedgerRow) -> str:
    """Return a sentence with all facts of a row, and the problem if it was refused."""
    shape = " × ".join(map(str, row.shape)) or "one number"
    facts = [f"{row.op} returns {shape}, up to {brief(row.largest)} in FP32"]
    if row.result is not None and math.isfinite(row.error):
        facts.append(f"the error is {brief(row.ulps, 2)} ulp of FP16")
    if row.overflowed:
        are = "is" if row.overflowed == 1 else "are"
        facts.append(f"{counted(row.overflowed, 'element')} {are} inf or NaN")
    if row.lost:
        are = "is" if row.lost == 1 else "are"
        facts.append(f"{counted(row.lost, 'element')} {are} 0 here and not in FP32")
    text = f"{'; '.join(facts)}."
    if row.problem:
        text += f" {_first_line(row.problem)}."
    return text


class CastLedger(LabWidget, folder="ledger"):
    """Operations of a forward pass under autocast: list, dtypes and error against FP32 of each.

    Args:
        model: A module or a function of tensors, with FP32 weights.
        *inputs: The arguments of its forward pass.
        format: The format to which autocast casts, FP16 or BF16, or its name.
        overrides: Operations on other lists at first, by name or key: {"exp": "allow"}.
        title: The heading of the table.

    Traits to read and set: `overrides` (key of an operation -> name of a list) and `format_name`.
    To read: `rows` and `sentence`.

    Raises:
        ValueError: The forward pass computes no floating-point tensors.
        TraitError: The operation is not called, or the list or the format does not exist.

    >>> import torch
    >>> board = CastLedger(lambda x: (x @ x).exp().sum(), torch.full((2, 2), 2.5))
    >>> board.sentence
    "1 of these 3 operations runs in FP16 and 2 in FP32; the last result equals FP32's."
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
        format: FormatLike = FP16,
        overrides: Mapping[str, str] | None = None,
        title: str = "A forward pass under autocast",
    ) -> None:
        format = as_format(format)
        self._model = model
        self._inputs = inputs
        # The rows with every operation on its own list, by the name of the format.
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
        """Move an operation to a list.

        Args:
            operation: "exp" for all calls of exp, "exp 2" for the second one.
            to: "allow", "deny", "promote" or "keep".

        Raises:
            TraitError: The operation is not called, or the list does not exist.
        """
        self.overrides = {**self.overrides, **self._by_key({operation: to})}

    def reset(self) -> None:
        """Move every operation back to its own list."""
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
        """Return overrides in which each name of an operation is replaced by the keys of its calls.

        Raises:
            TraitError: The operation is not called, or the list does not exist.
        """
        usual = self._usual(self._formats[self.format_name])
        by_key: dict[str, str] = {}
        for name, to in overrides.items():
            keys = [row.key for row in usual if name in (row.key, row.op)]
            if not keys:
                known = ", ".join(dict.fromkeys(row.op for row in usual))
                raise traitlets.TraitError(f"operation: expected one of {known}, got {name!r}")
            if to not in LISTS and all(list_of(row.home) != to for row in usual if row.key in keys):
                raise traitlets.TraitError(f"list: expected one of {', '.join(LISTS)}, got {to!r}")
            by_key |= dict.fromkeys(keys, to)
        return by_key

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
        """Return the traits that follow from the rows of a forward pass."""
        return {
            "_mark": mark(format),
            "_rows": [row_view(row) for row in rows],
            "sentence": sentence(rows, self._usual(format), format),
        }

    def page_state(self) -> dict[str, Any]:
        """Return the state with the results of each move, for a page without a kernel.

        They are the results of the usual lists, of all operations allowed, of all denied, and of
        each operation on each other list. `ranBefore` of view.js finds them by the same keys.
        """
        states: dict[str, Any] = {}
        for name, format in self._formats.items():
            homes = {row.key: list_of(row.home) for row in self._usual(format)}
            moves: list[dict[str, str]] = [
                {},
                dict.fromkeys(homes, "allow"),
                dict.fromkeys(homes, "deny"),
            ]
            moves += [{operation: to} for operation in homes for to in LISTS]
            for chosen in moves:
                moved = {key: to for key, to in sorted(chosen.items()) if to != homes[key]}
                key = ";".join([name, *(f"{operation}={to}" for operation, to in moved.items())])
                if key not in states:
                    rules = {operation: LISTS[to] for operation, to in moved.items()}
                    states[key] = self._traits_of(self._run(format, rules), format)
        return {**super().page_state(), "_states": states}

    def still(self) -> dict[str, Any]:
        return still(f"{as_text(self._measured)}\n\n{self.sentence}", WHY_STATIC)
