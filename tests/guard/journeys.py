"""Counts of the files and functions that one reads to follow a call through labkit.

    python -m tests.guard journeys [--tree TREE] [--walk]

Two calls, the journeys, are followed:

b: one step of `Engine` under O2 with clipping: zero_grad, forward, backward, clip, step. It is the
   second of a training, so that nothing is counted that happens only once.

d: `labkit diagnose script.py` on a short script that clips before it unscales, from the command
   line to the printed report.

How they are counted: the reader opens each function where it is first called, and reads it once. A
function is a code object of a file of labkit. Comprehensions and lambdas count as a part of the
function that contains them, and what an import runs is not counted. The functions in the order of
their first calls are the walk. The first one opens a file. Each further one

- opens: it is in a file that was not opened yet;
- stays: it is in the file that the reader is in, that of the function before it in the walk;
- returns: it is in a file that was opened before and left, so that the reader turns back.

So opens, stays and returns add up to the functions. In addition, a function of the walk

- climbs: it is in a file that was opened before the file of its caller, so that the call goes back
  up. It may stay or return as well, since the caller is not always the function before it in the
  walk.

`climbing pairs` counts pairs of files, caller's and callee's, between which a function climbs.
`calls` counts all calls of functions of the walk: what the machine does, not what the reader reads.
"""

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType
from typing import Any

from tests.guard.trees import guarded_tree

SCRIPT = """\
import torch
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
torch.manual_seed(0)
for number in range(10):
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.float16):
        loss = torch.nn.functional.cross_entropy(model(torch.randn(16, 8)), torch.randint(3, (16,)))
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
"""
# How many steps of the script are diagnosed.
STEPS = 3
# The file of a caller that is the code of a module: an import.
IMPORT = "an import"


@dataclass(frozen=True)
class Stop:
    """A function of the walk.

    Attributes:
        file: Its file, as a path inside labkit.
        name: Its qualified name.
        turn: How the reader reaches it: "opens", "stays" or "returns".
        climbs_from: The file of its caller if the call climbs, otherwise "".
    """

    file: str
    name: str
    turn: str
    climbs_from: str


@dataclass
class Walk:
    """The functions of labkit in the order of their first calls.

    Attributes:
        root: The folder of labkit, with a separator at its end.
        stops: The functions.
        calls: How many calls of these functions there were.
    """

    root: str
    stops: list[Stop] = field(default_factory=list)
    calls: int = 0
    _known: set[CodeType] = field(default_factory=set)
    # File -> how many files were opened before it.
    _opened: dict[str, int] = field(default_factory=dict)

    def observe(self, frame: FrameType, event: str, _: Any) -> None:
        """Count a call, as `sys.setprofile` reports it."""
        if event != "call":
            return
        code = frame.f_code
        if not self._is_function(code):
            return
        caller = self._caller(frame)
        if caller == IMPORT:
            return
        self.calls += 1
        if code in self._known:
            return
        self._known.add(code)
        file = code.co_filename.removeprefix(self.root)
        if file not in self._opened:
            turn = "opens"
        elif self.stops[-1].file == file:
            turn = "stays"
        else:
            turn = "returns"
        number = self._opened.setdefault(file, len(self._opened))
        climbs_from = caller if number < self._opened.get(caller, 0) else ""
        self.stops.append(Stop(file, code.co_qualname, turn, climbs_from))

    def _is_function(self, code: CodeType) -> bool:
        """Return whether a code object is a function of labkit with a name of its own.

        Names such as `<listcomp>` and `<lambda>` count as a part of the function around them.
        """
        return code.co_filename.startswith(self.root) and not code.co_name.startswith("<")

    def _caller(self, frame: FrameType) -> str:
        """Return the file of the nearest labkit function that called, directly or through torch.

        It is IMPORT if any frame above runs a module, and "" if no frame above is of labkit.
        """
        above = frame.f_back
        nearest = ""
        while above is not None:
            code = above.f_code
            if code.co_filename.startswith(self.root):
                if code.co_name == "<module>":
                    return IMPORT
                if not nearest:
                    nearest = code.co_filename.removeprefix(self.root)
            above = above.f_back
        return nearest

    def count_turns(self, turn: str) -> int:
        """Return how many functions of the walk have this turn: "opens", "stays" or "returns"."""
        return sum(stop.turn == turn for stop in self.stops)


@contextmanager
def walking(root: Path) -> Iterator[Walk]:
    """Record the walk through a tree's labkit until the block ends."""
    walk = Walk(f"{root / 'labkit'}{os.sep}")
    sys.setprofile(walk.observe)
    try:
        yield walk
    finally:
        sys.setprofile(None)


def engine_step(root: Path) -> Walk:
    """Return the walk through the second step of an engine under O2 that clips."""
    import torch
    from torch import nn

    from labkit.amp import RECIPES, Engine

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 3))
    engine = Engine(model, partial(torch.optim.SGD, lr=0.1), RECIPES["O2"])
    inputs, targets = torch.randn(16, 8), torch.randint(3, (16,))

    def step() -> None:
        engine.zero_grad()
        with engine.forward():
            loss = nn.functional.cross_entropy(engine(inputs), targets)
        engine.backward(loss)
        engine.clip(1.0)
        engine.step()

    step()
    with walking(root) as walk:
        step()
    return walk


def diagnosis(root: Path) -> Walk:
    """Return the walk through `labkit diagnose` of a script."""
    from labkit import cli

    with TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("train.py").write_text(SCRIPT, encoding="utf-8")
        with contextlib.redirect_stdout(io.StringIO()), walking(root) as walk:
            cli.main(["diagnose", "--steps", str(STEPS), "train.py"])
    return walk


JOURNEYS: dict[str, Callable[[Path], Walk]] = {
    "b. Engine step, O2 with clip": engine_step,
    "d. labkit diagnose": diagnosis,
}


COLUMNS = [
    "journey",
    "files opened",
    "functions",
    "stays",
    "returns",
    "climbs",
    "climbing pairs",
    "calls",
]


def row_of(name: str, walk: Walk) -> list[str]:
    """Return the row of a journey, a text for each of COLUMNS."""
    climbs = [(stop.climbs_from, stop.file) for stop in walk.stops if stop.climbs_from]
    counts = [
        walk.count_turns("opens"),
        len(walk.stops),
        walk.count_turns("stays"),
        walk.count_turns("returns"),
        len(climbs),
        len(set(climbs)),
        walk.calls,
    ]
    return [name, *(str(count) for count in counts)]


def main() -> int:
    """Print the table of the journeys, and with --walk each of their functions."""
    tree = guarded_tree()
    print(f"labkit of {tree}\n")
    print(f"| {' | '.join(COLUMNS)} |")
    print("|---" * len(COLUMNS) + "|")
    walks = {name: take(tree.resolve()) for name, take in JOURNEYS.items()}
    for name, walk in walks.items():
        print(f"| {' | '.join(row_of(name, walk))} |")
    if "--walk" in sys.argv:
        for name, walk in walks.items():
            print(f"\n{name}")
            for stop in walk.stops:
                climbs = ", climbs" if stop.climbs_from else ""
                print(f"  {stop.turn + climbs:16} {stop.file:36} {stop.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
