"""Command line of the simulated card: `python -m tests.gpu.simulated CARD -- COMMAND ...`.

The command and all its Python processes have the card.
"""

import os
import shutil
import sys

from tests.gpu.simulated import environment
from tests.gpu.simulated.build import reason_against
from tests.gpu.simulated.cards import CARDS

USAGE = (
    f"usage: python -m tests.gpu.simulated CARD -- COMMAND ...; the cards are {', '.join(CARDS)}"
)


def main(words: list[str]) -> int:
    """Replace this process by the command, which has a simulated card.

    Every Python process that it starts has the card, too.
    """
    card, *command = words or [""]
    if command[:1] == ["--"]:
        command = command[1:]
    if card not in CARDS or not command:
        print(USAGE, file=sys.stderr)
        return 2
    if (reason := reason_against()) is not None:
        print(reason, file=sys.stderr)
        return 1
    # labkit and python are this environment's
    program = os.path.join(os.path.dirname(sys.executable), command[0])
    if os.sep in command[0] or not os.path.exists(program):
        program = shutil.which(command[0])
    if program is None:
        print(
            f"expected a command that can be run, got {command[0]!r}, which is not found",
            file=sys.stderr,
        )
        return 127
    return os.execve(program, [program, *command[1:]], environment(card))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
