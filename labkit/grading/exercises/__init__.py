"""Which questions are asked? One module per exercise; each exercise is data (labkit.grading.exercise)."""

from labkit.grading.exercise import Exercise
from labkit.grading.exercises import (
    autocast_cache,
    autocast_dtypes,
    autocast_linear,
    autocast_lists,
    autocast_softmax,
    master_ema,
    master_flat,
    master_groups,
    master_memory,
    master_step,
    numbers_bytes,
    numbers_decode,
    numbers_first_gap,
    numbers_next_up,
    numbers_ulp,
    rounding_epsilon,
    rounding_kahan,
    rounding_nearest_even,
    rounding_smallest_update,
    rounding_stochastic,
    scaling_advance,
    scaling_clip,
    scaling_order,
    scaling_repair,
    scaling_static_step,
    scaling_unscale,
    start_smallest,
)

EXERCISES: dict[str, Exercise] = {
    module.EXERCISE.id: module.EXERCISE
    for module in (
        start_smallest,
        numbers_decode,
        numbers_ulp,
        numbers_first_gap,
        numbers_next_up,
        numbers_bytes,
        rounding_nearest_even,
        rounding_smallest_update,
        rounding_stochastic,
        rounding_kahan,
        rounding_epsilon,
        autocast_lists,
        autocast_dtypes,
        autocast_linear,
        autocast_softmax,
        autocast_cache,
        scaling_static_step,
        scaling_unscale,
        scaling_advance,
        scaling_clip,
        scaling_order,
        scaling_repair,
        master_step,
        master_memory,
        master_groups,
        master_flat,
        master_ema,
    )
}

__all__ = ["EXERCISES"]
