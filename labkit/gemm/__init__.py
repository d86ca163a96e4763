"""What does the hardware do with a number? FP16 in, FP32 accumulate, one rounding."""

from labkit.gemm.composites import body_of, is_composite
from labkit.gemm.half_storage import half_storage, rounds_once

__all__ = ["body_of", "half_storage", "is_composite", "rounds_once"]
