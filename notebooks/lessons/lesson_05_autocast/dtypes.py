"""Can you say which dtypes flow through a network, operation by operation?

The point: each operation's rule decides from the dtypes that *arrive*, and those are what earlier operations decided.
Oracle in the tests: the same programs, run under autocast.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from random import Random

from labkit.grading.exercise import Case, Check, Exercise, mistake, wrong

Step = tuple[str, str, tuple[str, ...]]
WIDEST_FIRST = ("FP32", "FP16")


def reference(steps: list[Step], given: dict[str, str]) -> list[str]:
    """Return the dtype of each step's result.

    >>> reference([("h", "allow", ("x", "w")), ("y", "promote", ("h", "x"))], {"x": "FP32", "w": "FP32"})
    ['FP16', 'FP32']
    """
    return _flow(steps, given)


def _flow(steps: list[Step], given: dict[str, str], **changed: Callable[[list[str]], str]) -> list[str]:
    """Return the dtype of each step's result; `changed` says what other rules make of the dtypes that arrive."""
    known, results = dict(given), []
    for result, rule, operands in steps:
        arriving = [known[name] for name in operands]
        known[result] = changed[rule](arriving) if rule in changed else _dtype(rule, arriving)
        results.append(known[result])
    return results


def _dtype(rule: str, arriving: list[str]) -> str:
    if rule == "allow":
        return "FP16"
    return "FP32" if rule == "deny" or "FP32" in arriving else "FP16"


def _program(random: Random, rules: tuple[str, ...]) -> Case:
    """Return steps whose operands are inputs or earlier results; an operation that keeps has one operand."""
    given = {"x": random.choice(WIDEST_FIRST), "w": "FP32", "mask": "FP16"}
    names, steps = list(given), []
    for number, rule in enumerate(rules, 1):
        latest = names[-1] if number > 1 else "x"
        operands = (latest,) if rule in ("keep", "deny") else (latest, random.choice([n for n in names if n != latest]))
        steps.append((f"h{number}", rule, operands))
        names.append(f"h{number}")
    return steps, given


def _programs(*programs: str) -> Callable[[Random], list[Case]]:
    """Return random programs; "adkp" is an allow, a deny, a keep and a promote."""
    rules = {"a": "allow", "d": "deny", "k": "keep", "p": "promote"}
    return lambda random: [_program(random, tuple(rules[letter] for letter in program)) for program in programs]


def _residual(random: Random) -> list[Case]:
    """A residual connection: x in FP32, and what the block adds in FP16. And one whose x is FP16 already."""
    steps = [("h1", "allow", ("x", "w")), ("h2", "keep", ("h1",)), ("y", "promote", ("h2", "x"))]
    return [(steps, {"x": "FP32", "w": "FP32"}), (steps, {"x": "FP16", "w": "FP32"})]


def _other_order(random: Random) -> list[Case]:
    """Two operands and three, with FP32 in every place and in none."""
    return [
        ([("y", "promote", operands)], {"a": "FP16", "b": "FP32"})
        for operands in (*product("ab", repeat=2), *product("ab", repeat=3))
    ]


def _again(_: Random) -> list[Case]:
    """A value that is used when later ones are there, and a name that is assigned once more."""
    older = [("h", "allow", ("x", "w")), ("z", "keep", ("x",)), ("y", "keep", ("h",))]
    twice = [("h", "allow", ("x", "w")), ("h", "deny", ("h",)), ("y", "keep", ("h",)), ("h", "allow", ("h", "w"))]
    named_x = [("x", "allow", ("x", "w")), ("y", "keep", ("x",)), ("w", "promote", ("y", "x")), ("z", "keep", ("w",))]
    programs = (older, twice, named_x)  # the last one names results like inputs
    return [*((steps, {"x": x, "w": "FP32"}) for steps in programs for x in WIDEST_FIRST), ([], {"x": "FP16"})]


@mistake
def forgets_earlier_results(steps: list[Step], given: dict[str, str]) -> list[str]:
    """This is what taking every intermediate result for FP32 gives. Look up what earlier operations returned."""
    return [_dtype(rule, [given.get(name, "FP32") for name in operands]) for _, rule, operands in steps]


# fmt: off
MISTAKES = (
    wrong("keep means FP16", "this is what casting on `keep` gives. It leaves what arrives: FP32 stays FP32.",
          lambda steps, given: _flow(steps, given, keep=lambda arriving: "FP16")),
    wrong("keep means FP32", "this is what casting on `keep` gives. It leaves what arrives: FP16 stays FP16.",
          lambda steps, given: _flow(steps, given, keep=lambda arriving: "FP32")),
    wrong("promote means FP32", "this is what promoting to FP32 whatever arrives gives. Two FP16 operands stay FP16.",
          lambda steps, given: _flow(steps, given, promote=lambda arriving: "FP32")),
    wrong("promotes to the first", "this is what taking the first operand's dtype gives. The widest wins, wherever "
          "it stands.", lambda steps, given: _flow(steps, given, promote=lambda arriving: arriving[0])),
    wrong("promotes to the last", "this is what taking the last operand's dtype gives. The widest wins, wherever it "
          "stands.", lambda steps, given: _flow(steps, given, promote=lambda arriving: arriving[-1])),
    wrong("promotes to the narrowest", "this is what taking the narrowest dtype gives: the FP32 operand would lose "
          "digits.",
          lambda steps, given: _flow(steps, given, promote=lambda arriving: "FP16" if "FP16" in arriving else "FP32")),
    wrong("allow needs FP16 operands", "this is what treating `allow` as `promote` gives. FP32 weights are cast "
          "down: that is the whole point.",
          lambda steps, given: _flow(steps, given, allow=lambda arriving: "FP32" if "FP32" in arriving else "FP16")),
    wrong("deny gives back FP16", "this is what casting the result of a denied operation back gives. It stays FP32.",
          lambda steps, given: _flow(steps, given, deny=lambda arriving: arriving[0])),
    forgets_earlier_results,
)
# fmt: on

EXERCISE = Exercise(
    id="autocast.dtypes",
    title="Follow the dtypes",
    entry="my_dtypes",
    difficulty=2,
    minutes=8,
    reference=reference,
    checks=(
        Check("one operation after another", 1, _programs("ak", "ad", "da", "dk", "adk", "kak")),
        Check("operations of several operands", 1, _other_order),
        Check("a residual connection", 1, _residual),
        Check("older values, and names that are assigned again", 1, _again),
        Check("longer programs", 3, _programs("akdkpak", "kdapkdak", "dkakpdkp", "pkpadkap")),
    ),
    mistakes=MISTAKES,
)
