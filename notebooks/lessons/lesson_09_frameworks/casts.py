"""Which casts does a graph need, once all of them are decided before it runs?

The point: the rule of an operation says in which format it wants its inputs, and so which format comes out. A cast
stands where the two differ. Decided for the whole graph, a tensor is cast to a format once, however many need it.

Oracle in the tests: labkit.amp.explain of the same network, run under autocast.
"""

from __future__ import annotations

from random import Random

from labkit.grading.exercise import Case, Check, Exercise, wrong

Node = tuple[str, str, list[str]]
Casts = list[tuple[str, str]]
RULES = ("allow", "deny", "promote", "keep")


def reference(given: dict[str, str], nodes: list[Node]) -> Casts:
    """Return (tensor, format) for each cast, in the order in which they are made.

    >>> reference({"x": "FP32", "w": "FP32"}, [("h", "allow", ["x", "w"]), ("s", "deny", ["h"])])
    [('x', 'FP16'), ('w', 'FP16'), ('h', 'FP32')]
    """
    return _placed(given, nodes)


def _placed(
    given: dict[str, str],
    nodes: list[Node],
    *,
    once: bool = True,
    promotes_to: str = "FP32",
    keeps: str = "",
    denied: str = "FP32",
    inputs_read: int = 9,
    always: bool = False,
) -> Casts:
    formats, casts = dict(given), []
    for name, rule, inputs in nodes:
        held = [formats[source] for source in inputs]
        if rule == "allow":
            wanted = "FP16"
        elif rule == "deny":
            wanted = "FP32"
        elif rule == "promote":
            wanted = promotes_to if promotes_to in held else held[0]
        else:
            wanted = keeps or held[0]
        for source in inputs[:inputs_read] if rule != "keep" or keeps else ():
            cast = (source, wanted)
            if (always or formats[source] != wanted) and not (once and cast in casts):
                casts.append(cast)
        formats[name] = denied if rule == "deny" else wanted
    return casts


GIVEN = {"x": "FP32", "w1": "FP32", "w2": "FP32", "mask": "FP16"}


def _six(*lines: str) -> Case:
    """Return a graph: a line for each node, "h allow x w1"."""
    words = [line.split() for line in lines]
    return dict(GIVEN), [(name, rule, inputs) for name, rule, *inputs in words]


def _worked(_: Random) -> list[Case]:
    return [
        _six("a allow x w1", "b keep a", "c allow b w2", "d promote c x", "e deny d", "f allow e w1"),
        _six("a allow x w1", "b deny a", "c keep b", "d allow c w2", "e promote d mask", "f deny e"),
    ]


def _shared(_: Random) -> list[Case]:
    """A tensor that several need; in both formats; and twice in one operation."""
    return [
        _six("a allow x w1", "b allow x w1", "c deny a", "d deny a", "e promote c b", "f allow x x"),
        _six(
            "a allow x x",
            "b deny mask mask",
            "c promote w1 mask w1",
            "d promote mask mask x",
            "e allow b b",
            "f deny a a",
        ),
        _six("a deny mask", "b promote mask x", "c allow a w2", "d allow b w2", "e promote a c", "f deny mask c"),
    ]


def _narrow(_: Random) -> list[Case]:
    """Promote where all are FP16, where all are FP32, and the last of three; keep of either, and of both."""
    return [
        _six("a allow x w1", "b promote a mask w2", "c allow b w2", "d promote a mask c", "e deny d", "f keep d"),
        _six("a allow x w1", "b promote a mask", "c keep mask x", "d promote x w1", "e keep x mask", "f promote c e"),
        _six("a promote x mask", "b keep a", "c promote mask mask", "d keep c", "e deny d", "f promote d b"),
    ]


def _drawn(random: Random) -> list[Case]:
    """Six nodes by chance, each of tensors that are there already."""
    cases: list[Case] = []
    for _ in range(4):
        there, lines = list(GIVEN), []
        for name in "abcdef":
            rule = random.choice(RULES)
            inputs = random.sample(there, 1 if rule in ("deny", "keep") else 2)
            lines.append(" ".join((name, rule, *inputs)))
            there.append(name)
        cases.append(_six(*lines))
    return cases


# fmt: off
MISTAKES = (
    wrong("casts anew each time", "this casts a tensor again for each node that needs it. The graph is known as a "
          "whole: one cast will do.", lambda given, nodes: _placed(given, nodes, once=False)),
    wrong("promotes to FP16", "this takes the narrowest format where `promote` takes the widest.",
          lambda given, nodes: _placed(given, nodes, promotes_to="FP16")),
    wrong("casts what is kept", "this casts the inputs of `keep` to FP32. It computes in the format that comes, and "
          "passes it on.", lambda given, nodes: _placed(given, nodes, keeps="FP32")),
    wrong("keeps in FP16", "this casts the inputs of `keep` to FP16. It computes in the format that comes, and "
          "passes it on.", lambda given, nodes: _placed(given, nodes, keeps="FP16")),
    wrong("casts back after deny", "this takes the result of `deny` for FP16. Nobody casts back: FP32 comes out, and "
          "the next node asks for what it wants.", lambda given, nodes: _placed(given, nodes, denied="FP16")),
    wrong("looks at the first input alone", "this casts the first input and forgets the others. Weights are inputs "
          "too.", lambda given, nodes: _placed(given, nodes, inputs_read=1)),
    wrong("casts what is right already", "this casts tensors that have the format already.",
          lambda given, nodes: _placed(given, nodes, always=True)),
    wrong("turns the pairs round", "this gives (format, tensor). The tensor comes first.",
          lambda given, nodes: [(wanted, source) for source, wanted in reference(given, nodes)]),
)
# fmt: on

EXERCISE = Exercise(
    id="frameworks.casts",
    title="Place the casts",
    entry="my_casts_placed",
    difficulty=2,
    minutes=10,
    reference=reference,
    checks=(
        Check("six nodes in a row", 1, _worked),
        Check("a tensor that several need", 1, _shared),
        Check("promote and keep", 1, _narrow),
        Check("graphs by chance", 1, _drawn),
    ),
    mistakes=MISTAKES,
)
