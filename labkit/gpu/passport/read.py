"""Reader of a passport: differences from expectation, settled refusals and budgets of waits.

Invariant: readable lines of a damaged file are reported, and the damage is named.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.amp import RECIPES
from labkit.formats import FP32, BlockFormat
from labkit.gpu.passport.make import SCHEMA
from labkit.gpu.passport.probes import BY_NAME, reason_of
from labkit.gpu.worker import Kind, Line

# Budget of a training step of any recipe.
MOST_WAITS = 1
MOST_COPIES = 0
BUDGET = f"Host waits of a step (at most {MOST_WAITS} wait and {MOST_COPIES} copies)"
# A loss on a device may differ from the CPU's by so many roundings of the narrowest format.
ROUNDINGS = 16
# Row of the table: an item, the expected result and the actual one.
Row = tuple[str, str, str]
# Characters of the table's first two columns.
WIDTHS = (40, 34)
# How many missing items the report names.
MOST_NAMES = 12
KINDS = {
    Kind.FACTS: "about the machine",
    Kind.REFUSAL: "calls that CUDA refuses",
    Kind.TRAINING: "trainings beside the CPU's",
    Kind.WAITS: "host waits",
    Kind.LAUNCHES: "launches",
    Kind.AUTOCAST: "autocast beside torch's",
    Kind.CAPTURE: "captures of Tensor Cores",
    Kind.TIMING: "timings",
    Kind.RANKS: "trainings of all GPUs together",
}


@dataclass(frozen=True)
class Passport:
    """A passport that was read.

    Attributes:
        lines: lines of the items, in the file's order.
        damage: a sentence for each thing in the file that could not be read.
    """

    lines: tuple[Line, ...]
    damage: tuple[str, ...]

    def line(self, item: str) -> Line:
        """Return the first line of an item, or {} without one."""
        for line in self.lines:
            if line["item"] == item:
                return line
        return {}

    @property
    def rehearsal(self) -> bool:
        """Whether it was written on a CPU."""
        return bool(self.line("card").get("device") == "cpu")

    @property
    def whole(self) -> bool:
        """Whether every announced item has a line."""
        return not self.damage and self.line("end").get("outcome") == "complete"


def parse(content: bytes) -> Passport:
    """Return the readable part of a passport's content.

    Raises:
        ValueError: the content has no line of a passport; the message describes it.
    """
    lines: list[Line] = []
    damage = []
    rows = content.split(b"\n")
    if rows[-1] == b"":
        rows.pop()
    for number, row in enumerate(rows, 1):
        line = _parse_line(row)
        if line is not None:
            lines.append(line)
        elif number == len(rows) and not content.endswith(b"\n"):
            damage.append(f"the last line, {number}, was cut off after {len(row)} bytes")
        else:
            damage.append(f"line {number} is not a line of a passport")
    if not lines:
        raise ValueError(
            f"expected lines of JSON that `labkit gpu --passport` wrote, got {_kind_of(content)}"
        )
    if lines[0].get("schema") != SCHEMA:
        damage.insert(
            0,
            f"the first line does not say {SCHEMA!r}: the beginning is missing, or of another "
            "version",
        )
    if lines[-1]["item"] != "end":
        damage.append("the last line, which says how it ended, is missing: the writing was cut off")
    return Passport(tuple(lines), tuple(damage))


def _parse_line(row: bytes) -> Line | None:
    """Return a line of a passport, or None if it is not one."""
    try:
        line = json.loads(row)
    except (ValueError, RecursionError):
        # invalid UTF-8 raises a ValueError, too
        return None
    if not isinstance(line, dict) or not isinstance(line.get("item"), str):
        return None
    # a kind may be a list, which has no hash
    if not isinstance(line.get("kind"), str) or line["kind"] not in KINDS:
        return None
    return line


def _kind_of(content: bytes) -> str:
    if not content:
        return "an empty file"
    try:
        return f"JSON of another kind ({type(json.loads(content)).__name__})"
    except (ValueError, RecursionError):
        return f"{len(content)} bytes of something else"


def report(passport: Passport) -> str:
    """Return the report as text: machine, differences, missing items, refusals and budgets."""
    damage = list(passport.damage)
    differences: list[Row] = []
    refusals: list[str] = []
    budgets: list[str] = []
    for line in passport.lines:
        # extending by a generator keeps the rows before an error, so a damaged line is shown in
        # part
        try:
            differences.extend(_differences(line))
            refusals.extend(_refusals(line))
            budgets.extend(_budgets(line))
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            damage.append(
                f"{line['item']}: its line is not what it should be ({type(error).__name__}: "
                f"{error})"
            )
    report = list(_head(passport))
    report.extend(f"DAMAGED: {sentence}" for sentence in damage)
    report.extend(_table(differences))
    for title, rows in (("What CUDA refuses", refusals), (BUDGET, budgets)):
        if rows and not passport.rehearsal:
            report.append(f"\n{title}:")
            report.extend(f"  {row}" for row in rows)
    report.extend(_missing(passport))
    return "\n".join(report)


def _head(passport: Passport) -> Iterator[str]:
    start = passport.line("start")
    versions = passport.line("versions")
    name = passport.line("card").get("facts") or "a card that is not named"
    yield f"Passport of {name}; {start.get('date', 'no date')}"
    if passport.rehearsal:
        yield "A REHEARSAL on a CPU: it settles nothing about a GPU."
    words = ("torch", "cuda", "cudnn", "driver", "triton", "python")
    yield ", ".join(f"{word} {versions.get(word)}" for word in words if word in versions)
    items = (line for line in passport.lines if line["item"] not in ("start", "end"))
    counts = Counter((line["kind"], str(line.get("outcome"))) for line in items)
    for kind, title in KINDS.items():
        outcomes = {outcome: n for (of, outcome), n in counts.items() if of == kind}
        if outcomes:
            yield f"  {title}: {', '.join(f'{n} {outcome}' for outcome, n in outcomes.items())}"


def _table(differences: Sequence[Row]) -> Iterator[str]:
    if not differences:
        yield "Nothing differs from expectation."
        return
    # items with the same difference share a row
    items: dict[tuple[str, str], list[str]] = {}
    for item, expected, found in differences:
        items.setdefault((expected, found), []).append(item)
    yield f"\n{'item':<{WIDTHS[0]}} {'expected':<{WIDTHS[1]}} found"
    for (expected, found), (first, *others) in items.items():
        yield f"{first:<{WIDTHS[0]}} {expected:<{WIDTHS[1]}} {found}"
        if others:
            yield f"  the same: {', '.join(others)}"


def _missing(passport: Passport) -> Iterator[str]:
    end = passport.line("end")
    names = end.get("missing") or []
    if not isinstance(names, list) or not names:
        return
    # the first word of a name says what kind of item it is
    counts = Counter(str(name).split(" ")[0] for name in names)
    numbers = ", ".join(f"{n} of {word!r}" for word, n in counts.items())
    yield f"\nMissing ({end.get('outcome')}): {numbers}"
    shown = [str(name) for name in names[:MOST_NAMES]]
    if len(names) > MOST_NAMES:
        shown.append("...")
    yield f"  {', '.join(shown)}"


def _refusals(line: Line) -> Iterator[str]:
    if line["kind"] != Kind.REFUSAL or line["outcome"] != "done":
        return
    row = BY_NAME.get(line["refusal"])
    message = line.get("message", "")
    outcome = "refused" if line["refused"] else "taken"
    if row is None:
        verdict = "which is not in the table"
    elif row.refused != line["refused"]:
        verdict = f"EXPECTED TO BE {'refused' if row.refused else 'taken'}"
    elif row.refused and row.words not in message:
        verdict = f"BUT FOR ANOTHER REASON than {row.words!r}"
    else:
        verdict = "as expected"
    text = f"{line['refusal']}: {outcome}, {verdict}"
    if message:
        text += f": {message}"
    yield text


def _budgets(line: Line) -> Iterator[str]:
    if line["kind"] != Kind.WAITS or line["outcome"] != "done":
        return
    waits = sum(line["waits"].values())
    copies = sum(line["copies"].values())
    verdict = "within"
    if waits > MOST_WAITS or copies > MOST_COPIES:
        places = Counter[str](line["waits"]) + Counter[str](line["copies"])
        ((place, _),) = places.most_common(1)
        verdict = f"ABOVE, most of them {place}"
    by_cuda = line.get("synchronizations")
    cuda = "" if by_cuda is None else f", {by_cuda} synchronizations by CUDA's count"
    name = f"{line['recipe']}, clipped" if line["clip"] else line["recipe"]
    yield (
        f"{name:<30} {waits:3} waits {copies:3} copies {line['operations']:5} operations{cuda}: "
        f"{verdict}"
    )


def _differences(line: Line) -> Iterator[Row]:
    """Yield the differences of an item's line from expectation.

    The failure of an item is its only difference. A failed check has measured before, so its
    results are judged, too.
    """
    if line["item"] in ("start", "end"):
        return
    if line["outcome"] != "done":
        known = reason_of(line["error"])
        as_known = f" (as {known})" if known else ""
        why = f"{line['outcome']}, {line['error'].splitlines()[0][:140]}{as_known}"
        yield line["item"], "no error", why
        # an AssertionError is the failure of a check, whose line is complete
        if not line["error"].startswith("AssertionError"):
            return
    judge = JUDGES.get(line["kind"])
    if judge is not None:
        for expected, found in judge(line):
            yield line["item"], expected, found


# Pairs of an expected and an actual result.
Judged = Iterator[tuple[str, str]]


def _judge_training(line: Line) -> Judged:
    own = [float.fromhex(loss) for loss in line["losses"]]
    cpu = [float.fromhex(loss) for loss in line["cpu"]]
    again = [float.fromhex(loss) for loss in line["again"]]
    differ = sum(a.hex() != b.hex() for a, b in zip(own, again, strict=True))
    if differ:
        yield "the same losses twice", f"{differ} of {len(own)} differ"
    allowed = ROUNDINGS * unit_roundoff(line["recipe"])
    for step, (a, b) in enumerate(zip(own, cpu, strict=True), 1):
        if not math.isfinite(a) or not math.isfinite(b):
            # as text, NaN equals NaN
            if a.hex() == b.hex():
                continue
            yield f"step {step}: as on the CPU, {b:.6g}", f"{a:.6g}"
            return
        if abs(a - b) > allowed * abs(b):
            if b == 0:
                found = f"{a:.6g}, not 0"
            else:
                found = f"{abs(a - b) / abs(b):.2g} off, {line['ulps'][step - 1]} ulps"
            yield f"step {step}: within {allowed:.2g} of the CPU's", found
            return


def unit_roundoff(recipe: str) -> float:
    """Return the unit roundoff of a recipe's narrowest format, the tolerance between devices.

    >>> [math.log2(unit_roundoff(recipe)) for recipe in ("FP32", "O1", "NVFP4")]
    [-24.0, -11.0, -2.0]

    Raises:
        ValueError: the recipe is unknown.
    """
    if recipe not in RECIPES:
        raise ValueError(f"expected one of {', '.join(RECIPES)}, got {recipe!r}")
    row = RECIPES[recipe]
    formats = [row.model, row.autocast or FP32]
    if row.products is not None:
        operands = (row.products.forward, row.products.gradient)
        # a block format rounds to its elements
        formats += [each.element if isinstance(each, BlockFormat) else each for each in operands]
    return 2.0 ** -min(each.precision for each in formats)


def _judge_autocast(line: Line) -> Judged:
    for call, how in line.get("unlike", {}).items():
        if not how.startswith("unusable"):
            yield "torch's bits", f"{call}: {how}"


def _judge_capture(line: Line) -> Judged:
    wrong: dict[str, Any] = line.get("mismatches", {})
    if wrong:
        yield f"what the emulator of {line['spec']} gives", f"other sums: {wrong}"


def _judge_timing(line: Line) -> Judged:
    for recipe, why in line.get("failed", {}).items():
        yield "a pace", f"{recipe}: {why}"
    if line.get("wrong"):
        yield "exact products", f"{line['wrong']} wrong elements"


JUDGES: dict[Kind, Callable[[Line], Judged]] = {
    Kind.TRAINING: _judge_training,
    Kind.AUTOCAST: _judge_autocast,
    Kind.CAPTURE: _judge_capture,
    Kind.TIMING: _judge_timing,
}


def read_file(path: Path) -> Passport:
    """Return the passport in a file.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file has no line of a passport.
    """
    return parse(path.read_bytes())
