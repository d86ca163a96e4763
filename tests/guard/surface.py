"""The public surface that `tests.surface` lists, and the answers of the exercises' references."""

from collections.abc import Iterator

from tests.guard.plain import lines_of
from tests.guard.processes import Item


def items() -> Iterator[Item]:
    """Yield the items of the surface."""
    yield Item("surface/names", names)
    yield Item("surface/answers", answers)


def names() -> str:
    """Return the public imports, commands, names and exercises, a line for each list of them."""
    from tests.surface import surface

    return "".join(f"{line}\n" for line in lines_of(surface()))


def answers() -> str:
    """Return the answers of the reference solutions, for all exercises that need no training."""
    from labkit.grading import EXERCISES
    from tests.surface import TRAINS
    from tests.surface import answers as answers_of

    chosen = sorted(id for id in EXERCISES if not id.startswith(TRAINS))
    return "".join(f"{line}\n" for line in lines_of({id: answers_of(id) for id in chosen}))
