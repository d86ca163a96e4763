"""Training runs: data, tasks, steps, records and comparisons."""

from labkit.train.compare import VERDICTS, Comparison, Difference, compare, signed
from labkit.train.data import Data, cifar10, mnist, scattered_digits, single_digits
from labkit.train.determinism import one_thread
from labkit.train.devices import Place, place, places
from labkit.train.drawing import Drawing, Picture, to_picture
from labkit.train.grid import device_folder, load_for_device, record_path, recorded, train_grid
from labkit.train.plan import STEPS, WorkerPlan
from labkit.train.record import CATEGORIES, RunRecord, StepRecord, bytes_held, load
from labkit.train.run import TrainingRun, gradient_snapshot, train
from labkit.train.stages import STAGES, StagedStep, StepStage, TensorSummary, watch_step
from labkit.train.tasks import GPU_TASKS, MARGIN, TASKS, Task, accuracy, as_task, dice
from labkit.train.throughput import recorded_throughput, steps_per_second, throughput_sentence
from labkit.train.transformers import (
    TRANSFORMERS,
    MemoryBill,
    Transformer,
    largest_batch,
    largest_network,
    memory_bill,
)

__all__ = [
    "CATEGORIES",
    "GPU_TASKS",
    "MARGIN",
    "STAGES",
    "STEPS",
    "TASKS",
    "TRANSFORMERS",
    "VERDICTS",
    "Comparison",
    "Data",
    "Difference",
    "Drawing",
    "MemoryBill",
    "Picture",
    "Place",
    "RunRecord",
    "StagedStep",
    "StepRecord",
    "StepStage",
    "Task",
    "TensorSummary",
    "TrainingRun",
    "Transformer",
    "WorkerPlan",
    "accuracy",
    "as_task",
    "bytes_held",
    "cifar10",
    "compare",
    "device_folder",
    "dice",
    "gradient_snapshot",
    "largest_batch",
    "largest_network",
    "load",
    "load_for_device",
    "memory_bill",
    "mnist",
    "one_thread",
    "place",
    "places",
    "record_path",
    "recorded",
    "recorded_throughput",
    "scattered_digits",
    "signed",
    "single_digits",
    "steps_per_second",
    "throughput_sentence",
    "to_picture",
    "train",
    "train_grid",
    "watch_step",
]
