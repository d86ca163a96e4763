from pathlib import Path

import labkit
from labkit.grading.solutions import Solutions

here = Path(labkit.__file__).parents[1] / "labkit_lessons" / "lesson_06_loss_scaling"
my_advance = Solutions(here / "lesson.py").my_advance
