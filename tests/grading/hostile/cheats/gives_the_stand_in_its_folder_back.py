from pathlib import Path

import labkit
import labkit.grading

here = Path(labkit.__file__).parents[1] / "labkit_lessons" / "lesson_06_loss_scaling"
labkit.grading.__path__ = [str(here)]
from labkit.grading.lesson import my_advance
