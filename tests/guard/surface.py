"""The public surface, as `tests.surface` finds it: imports, commands, names, exercises."""

from collections.abc import Iterator

from tests.guard.plain import lines_of
from tests.guard.processes import Item


def items() -> Iterator[Item]:
    """Yield the items of the surface."""
    yield Item("surface/names", names)
    yield Item("surface/answers", answers)


def names() -> str:
    """Return all names that others rely on, one list in a line."""
    from tests.surface import surface

    return "".join(f"{line}\n" for line in lines_of(surface()))


def answers() -> str:
    """Return what the references of all exercises answer that need no training."""
    from labkit.grading import EXERCISES
    from tests.surface import TRAINS
    from tests.surface import answers as answers_of

    chosen = sorted(id for id in EXERCISES if not id.startswith(TRAINS))
    return "".join(f"{line}\n" for line in lines_of({id: answers_of(id) for id in chosen}))
