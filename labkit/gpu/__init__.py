"""One command for a machine with a GPU: every check that needs one, and every recording.

Idea: a list of parts, the most valuable first, each with a budget of seconds. A part is a list of
items, as a passport is, and runs in a process of its own, so that a crash or a hang affects no
other part. Each item saves its results as soon as it has them. A second run replaces the records of
the first. A quick run fills the figures of the lessons in three minutes, and does not replace
longer recordings.

Invariant: every file is complete, and names the device, the driver, the versions and the date. The
command needs torch and numpy; only the part about Triton needs Triton.

Limits: a run on a CPU says nothing about a GPU. `--device cpu --quick` rehearses the same code on
small cases; give it a folder of its own.
"""

from labkit.gpu.catalogue import PARTS, QUICK_PARTS, Part
from labkit.gpu.command import GRACE, LIMIT, QUICK_LIMIT, run
from labkit.gpu.job import Job

__all__ = ["GRACE", "LIMIT", "PARTS", "QUICK_LIMIT", "QUICK_PARTS", "Job", "Part", "run"]
