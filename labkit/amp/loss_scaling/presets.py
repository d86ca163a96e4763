"""Loss scalers of other frameworks, as configurations.

Idea: they differ in a few independent values, so each is a configuration of the same `advance`: the
first scale, the growth interval, the number of tolerated overflows, the limits.

Invariant: on any sequence of found_inf a preset gives the scales and the skipped steps of the
original, as long as the original's scale stays in FP32's normal range; ours never leaves it.
(Without a floor, torch's and apex's fall to 0; without a cap, Megatron's rises to inf, and
DeepSpeed's beyond FP32.)

Source: each row names its file. All factors are powers of two, so FP32 and FP64 scales are equal.
"""

from __future__ import annotations

from labkit.amp.loss_scaling.scaler import FP32_MAX, ScalerConfig
from labkit.formats.rows import Rows

PRESETS: dict[str, ScalerConfig] = Rows(
    {
        # torch/amp/grad_scaler.py, GradScaler; the rule:
        # aten/src/ATen/native/cpu/AmpGradScalerKernels.cpp, _amp_update_scale_cpu_kernel. If the
        # scale would grow beyond FP32, it stays, and the count restarts.
        "torch": ScalerConfig(),
        # apex/amp/scaler.py, LossScaler.update_scale, and amp.initialize(min_loss_scale=None,
        # max_loss_scale=2**24). The argument scale_factor is not used: the rule has a literal 2.
        "apex": ScalerConfig(cap=2.0**24),
        # deepspeed/runtime/fp16/loss_scaler.py, DynamicLossScaler.update_scale; the values:
        # runtime/precision_config.py, DeepSpeedFP16Config. It counts steps since the last overflow
        # and grows at each multiple of the window, which equals a count that growth resets.
        # Growth resets hysteresis, backing off does not. By default
        # (raise_error_at_min_scale) an overflow at the floor ends the run; here it is a skipped
        # step (see `diagnosis`).
        "DeepSpeed": ScalerConfig(growth_interval=1000, hysteresis=2, floor=1.0),
        # megatron/core/optimizer/grad_scaler.py, DynamicGradScaler.update; the values:
        # optimizer_config.py. It counts hysteresis down, and does not reset it when it backs off.
        # The rule is DeepSpeed's; the first scale differs.
        "Megatron": ScalerConfig(init_scale=2.0**32, growth_interval=1000, hysteresis=2, floor=1.0),
        # oneflow/user/kernels/dynamic_loss_scale_schedule_kernel.cpp; the values:
        # python/oneflow/amp/grad_scaler.py. It is the only one that clamps at the top of FP32: its
        # largest scale is FLT_MAX, not 2^127.
        "OneFlow": ScalerConfig(floor=1.0, cap=FP32_MAX),
        # fastai v1, fastai/callbacks/fp16.py, MixedPrecision.on_backward_end. It checks for inf
        # only while the scale is above 1. At 1, a step with inf counts as clean and reaches the
        # weights. fastai v2's MixedPrecision is torch's.
        "fastai": ScalerConfig(growth_interval=1000, floor=1.0, cap=2.0**24, steps_at_floor=True),
    }
)
