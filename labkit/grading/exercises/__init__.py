"""Which questions are asked? One module per exercise; each exercise is data (labkit.grading.exercise).

The list below is the order of the course, and of the rows in a teacher's file of grades. A learner's lab has the
questions without their solutions (labkit.grading.stored).
"""

from importlib import import_module

from labkit.grading.exercise import Exercise
from labkit.grading.stored import stored_exercises

IDS = """
    start.smallest
    numbers.decode numbers.ulp numbers.first_gap numbers.next_up numbers.bytes
    rounding.nearest_even rounding.smallest_update rounding.stochastic rounding.kahan rounding.epsilon
    tensor.standstill tensor.block tensor.padding tensor.intensity tensor.backward
    gradients.binades gradients.fate gradients.lost gradients.window gradients.culprit
    autocast.lists autocast.dtypes autocast.linear autocast.softmax autocast.cache
    scaling.static_step scaling.unscale scaling.advance scaling.clip scaling.order scaling.repair
    master.step master.memory master.groups master.flat master.ema
    recipes.levels recipes.which recipes.lines recipes.epsilon recipes.verdict recipes.cheapest
    frameworks.translate frameworks.repair frameworks.skips frameworks.callback frameworks.casts
    workers.agree workers.predivide workers.parts
    clinic.clip clinic.unscale clinic.region clinic.schedule clinic.function
    clinic.mask clinic.gains clinic.eval clinic.penalty clinic.overflow
    beyond.mx_scale beyond.history beyond.block beyond.frozen beyond.clipped beyond.orders beyond.keep beyond.unit
    project.targets project.drift project.digits
""".split()

EXERCISES: dict[str, Exercise] = stored_exercises() or {
    id: import_module(f"{__name__}.{id.replace('.', '_')}").EXERCISE for id in IDS
}

__all__ = ["EXERCISES"]
