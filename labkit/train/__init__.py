"""A run from start to end: data, task, training step, record."""

from labkit.train.compare import VERDICTS, Comparison, Difference, compare, signed
from labkit.train.data import Data, cifar10, mnist, scattered_digits, single_digits
from labkit.train.devices import Place, place, places
from labkit.train.pace import pace_sentence, recorded_paces, steps_per_second
from labkit.train.plan import STEPS, Plan
from labkit.train.race import device_folder, kept_record, race, record_path, recorded
from labkit.train.record import CATEGORIES, RunRecord, StepRecord, bytes_held, load
from labkit.train.repeatable import one_thread
from labkit.train.run import TrainingRun, gradient_snapshot, train
from labkit.train.stages import STAGES, Seen, Stage, StepInStages, watch_step
from labkit.train.tasks import GPU_TASKS, MARGIN, TASKS, Task, accuracy, dice

__all__ = [
    "CATEGORIES", "GPU_TASKS", "MARGIN", "STAGES", "STEPS", "TASKS", "VERDICTS", "Comparison", "Data", "Difference",
    "Place", "Plan", "RunRecord", "Seen", "Stage", "StepInStages", "StepRecord", "Task", "TrainingRun", "accuracy",
    "bytes_held", "cifar10", "compare", "device_folder", "dice", "gradient_snapshot", "kept_record", "load", "mnist",
    "one_thread", "pace_sentence", "place", "places", "race", "record_path", "recorded", "recorded_paces",
    "scattered_digits", "signed", "single_digits", "steps_per_second", "train", "watch_step",
]  # fmt: skip
