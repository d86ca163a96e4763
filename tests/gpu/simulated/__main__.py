"""`python -m tests.gpu.simulated CARD -- COMMAND ...`: run a command whose Python processes have the card."""

import os
import shutil
import sys

from tests.gpu.simulated import environment
from tests.gpu.simulated.build import reason_against
from tests.gpu.simulated.cards import CARDS

USAGE = f"""usage: python -m tests.gpu.simulated CARD -- COMMAND ...

Run COMMAND (labkit ..., python ..., any command) so that it, and every Python process it starts, has a simulated card.
Cards: {", ".join(CARDS)}. Example: python -m tests.gpu.simulated T4 -- labkit check"""


def main(words: list[str]) -> int:
    """Replace this process by the command."""
    card, *command = words or [""]
    if command[:1] == ["--"]:
        command = command[1:]
    if card in ("-h", "--help"):
        print(USAGE)
        return 0
    if card not in CARDS or not command:
        problem = f"expected a card, one of {', '.join(CARDS)}, and a command"
        print(f"{problem}; got {' '.join(words) or 'nothing'}\n\n{USAGE}", file=sys.stderr)
        return 2
    if (reason := reason_against()) is not None:
        print(reason, file=sys.stderr)
        return 1
    beside = os.path.join(os.path.dirname(sys.executable), command[0])  # labkit and python are this environment's
    program = beside if os.sep not in command[0] and os.path.exists(beside) else shutil.which(command[0])
    if program is None:
        print(f"expected a command that can be run, got {command[0]!r}, which is not found", file=sys.stderr)
        return 127
    return os.execve(program, [program, *command[1:]], environment(card))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
