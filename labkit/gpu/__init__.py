"""One command for a machine with a GPU: every check that needs one, and every recording.

Idea: a list of parts, the most valuable first, each with a budget of seconds. A part is a list of
items, as a passport is, and runs in a process of its own, so that a crash or a hang affects no
other part. Each item saves what it has as soon as it has it. Run twice, it records twice: the newer
record takes the place of the older. Quick, it fills the figures of the lessons in three minutes,
and leaves alone what was recorded at length.

Invariant: every file is whole and says on which device, with which driver and versions, and when it
was made. Needs torch and numpy, and Triton only for the part that is about Triton.

What it does not do: settle on a CPU what only a GPU can tell. `--device cpu --quick` rehearses the
same code on small cases; give that a folder of its own.
"""

from labkit.gpu.catalogue import PARTS, QUICK_PARTS, Part
from labkit.gpu.command import GRACE, LIMIT, QUICK_LIMIT, run
from labkit.gpu.job import Job

__all__ = ["GRACE", "LIMIT", "PARTS", "QUICK_LIMIT", "QUICK_PARTS", "Job", "Part", "run"]
