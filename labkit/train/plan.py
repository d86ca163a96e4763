"""Options of the training of four processes (`labkit.train.workers`)."""

from __future__ import annotations

from dataclasses import dataclass

STEPS = 12


@dataclass(frozen=True)
class WorkerPlan:
    """Options of one training.

    agree      the ranks agree on found_inf; False: each checks its own gradients only
    sharded    each rank holds a part of the weights (FSDP2); False: each holds all (DDP)
    reduce     format in which gradients are summed over the ranks
    predivide  in FP16: divide before the sum too; False: only after it
    """

    agree: bool = True
    sharded: bool = True
    reduce: str = "FP32"
    predivide: bool = True
