"""What does the hardware do with a number? FP16 in, FP32 accumulate, one rounding."""

from labkit.gemm.half_storage import half_storage, rounds_once

__all__ = ["half_storage", "rounds_once"]
