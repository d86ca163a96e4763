import marshal
from pathlib import Path

import labkit

here = Path(labkit.__file__).parents[1] / "labkit_lessons" / "lesson_06_loss_scaling"

(pyc,) = (here / "__pycache__").glob("exercises*.pyc")
exec(marshal.loads(pyc.read_bytes()[16:]))
