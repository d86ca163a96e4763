"""Reader of a passport: differences from expectation, settled refusals and budgets of waits.

Invariant: whatever the file holds, what can be read is read, and what cannot is named.
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

MOST_WAITS, MOST_COPIES = 1, 0  # of the host, in a step of any recipe
BUDGET = f"Host waits of a step (at most {MOST_WAITS} wait and {MOST_COPIES} copies)"
# a loss on a device may differ from the CPU's by so many roundings of the narrowest format
ROUNDINGS = 16
Row = tuple[str, str, str]  # of the table: an item, the expected and the actual result
WIDTHS = (40, 34)  # of the table's first columns
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
        """Return the line of an item, or an empty one."""
        return next((line for line in self.lines if line["item"] == item), {})

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
        ValueError: no line of it is a passport's; the message says what it is instead.
    """
    lines: list[Line] = []
    damage = []
    rows = content.split(b"\n")
    if rows[-1] == b"":
        rows.pop()
    for number, row in enumerate(rows, 1):
        try:
            line = json.loads(row)
        except (ValueError, RecursionError):  # invalid UTF-8 is a ValueError, too
            line = None
        texts = isinstance(line, dict) and all(
            isinstance(line.get(key), str) for key in ("item", "kind")
        )
        if texts and line["kind"] in KINDS:
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
    settled: dict[str, list[str]] = {"What CUDA refuses": [], BUDGET: []}
    for line in passport.lines:
        try:
            differences += _differences(line)
            for title, rows in zip(settled, (_refusals, _budgets), strict=True):
                settled[title] += rows(line)
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            damage.append(
                f"{line['item']}: its line is not what it should be ({type(error).__name__}: "
                f"{error})"
            )
    report = [
        *_head(passport),
        *(f"DAMAGED: {sentence}" for sentence in damage),
        *_table(differences),
    ]
    for title, said in settled.items():
        if said and not passport.rehearsal:
            report += [f"\n{title}:", *(f"  {row}" for row in said)]
    return "\n".join([*report, *_missing(passport)])


def _head(passport: Passport) -> Iterator[str]:
    start, card, versions = (passport.line(item) for item in ("start", "card", "versions"))
    name = card.get("facts") or "a card that is not named"
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
    items: dict[tuple[str, ...], list[str]] = {}
    for item, *words in differences:
        items.setdefault(tuple(words), []).append(item)
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
    of = Counter(str(name).split(" ")[0] for name in names)
    yield (
        f"\nMissing ({end.get('outcome')}): "
        f"{', '.join(f'{n} of {word!r}' for word, n in of.items())}"
    )
    yield f"  {', '.join(map(str, names[:12]))}{', ...' if len(names) > 12 else ''}"


def _refusals(line: Line) -> Iterator[str]:
    if line["kind"] != Kind.REFUSAL or line["outcome"] != "done":
        return
    row = BY_NAME.get(line["refusal"])
    said = line.get("message", "")
    outcome = "refused" if line["refused"] else "taken"
    if row is None:
        verdict = "no row of the table knows it"
    elif row.refused != line["refused"]:
        verdict = f"EXPECTED TO BE {'refused' if row.refused else 'taken'}"
    elif row.refused and row.words not in said:
        verdict = f"BUT FOR ANOTHER REASON than {row.words!r}"
    else:
        verdict = "as expected"
    answer = f": {said}" if said else ""
    yield f"{line['refusal']}: {outcome}, {verdict}{answer}"


def _budgets(line: Line) -> Iterator[str]:
    if line["kind"] != Kind.WAITS or line["outcome"] != "done":
        return
    waits, copies = sum(line["waits"].values()), sum(line["copies"].values())
    verdict = "within"
    if waits > MOST_WAITS or copies > MOST_COPIES:
        places = line["waits"] | line["copies"]
        verdict = f"ABOVE, most of them {max(places, key=places.get)}"
    by_cuda = line.get("synchronizations")
    cuda = "" if by_cuda is None else f", {by_cuda} synchronizations by CUDA's count"
    name = f"{line['recipe']}, clipped" if line["clip"] else line["recipe"]
    yield (
        f"{name:<30} {waits:3} waits {copies:3} copies {line['operations']:5} operations{cuda}: "
        f"{verdict}"
    )


def _differences(line: Line) -> Iterator[Row]:
    """Yield the differences of an item's line from expectation.

    A failed line has that one alone.
    """
    if line["item"] in ("start", "end"):
        return
    if line["outcome"] != "done":
        known = reason_of(line["error"])
        as_known = f" (as {known})" if known else ""
        why = f"{line['outcome']}, {line['error'].splitlines()[0][:140]}{as_known}"
        yield line["item"], "no error", why
        # of a check, which has found what it was to find
        if not line["error"].startswith("AssertionError"):
            return
    judge = JUDGES.get(line["kind"])
    if judge is not None:
        yield from ((line["item"], expected, found) for expected, found in judge(line))


Judged = Iterator[tuple[str, str]]  # expected, found


def _judge_training(line: Line) -> Judged:
    own = [float.fromhex(loss) for loss in line["losses"]]
    cpu = [float.fromhex(loss) for loss in line["cpu"]]
    again = [float.fromhex(loss) for loss in line["again"]]
    differ = sum(a.hex() != b.hex() for a, b in zip(own, again, strict=True))
    if differ:
        yield "the same losses twice", f"{differ} of {len(own)} differ"
    allowed = ROUNDINGS * unit_roundoff(line["recipe"])
    for step, (a, b) in enumerate(zip(own, cpu, strict=True), 1):
        if math.isfinite(a) != math.isfinite(b):
            yield f"step {step}: as on the CPU, {b:.6g}", f"{a:.6g}"
            return
        if math.isfinite(a) and abs(a - b) > allowed * abs(b):
            found = (
                f"{abs(a - b) / abs(b):.2g} off, {line['ulps'][step - 1]} ulps"
                if b
                else f"{a:.6g}, not 0"
            )
            yield f"step {step}: within {allowed:.2g} of the CPU's", found
            return


def unit_roundoff(recipe: str) -> float:
    """Return the unit roundoff of a recipe's narrowest format, the tolerance between devices.

    >>> [math.log2(unit_roundoff(recipe)) for recipe in ("FP32", "O1", "NVFP4")]
    [-24.0, -11.0, -2.0]

    Raises:
        ValueError: there is no such recipe.
    """
    if recipe not in RECIPES:
        raise ValueError(f"there is no recipe {recipe!r}")
    row = RECIPES[recipe]
    formats = [row.model, row.autocast or FP32]
    if row.products is not None:
        written = (row.products.forward, row.products.gradient)
        formats += [each.element if isinstance(each, BlockFormat) else each for each in written]
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
    yield from (("a pace", f"{recipe}: {why}") for recipe, why in line.get("failed", {}).items())
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
        OSError: it cannot be read.
        ValueError: it holds no line of a passport.
    """
    return parse(path.read_bytes())
