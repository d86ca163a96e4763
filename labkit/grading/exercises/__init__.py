"""Which questions are asked? One module per exercise; each exercise is data (labkit.grading.exercise)."""

from labkit.grading.exercise import Exercise
from labkit.grading.exercises import scaling_advance, scaling_clip, scaling_static_step, start_smallest

EXERCISES: dict[str, Exercise] = {
    module.EXERCISE.id: module.EXERCISE
    for module in (start_smallest, scaling_static_step, scaling_advance, scaling_clip)
}

__all__ = ["EXERCISES"]
