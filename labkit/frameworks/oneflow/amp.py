"""OneFlow's dynamic and static loss scalers, as configurations; a graph holds their state.

Source: oneflow.amp.grad_scaler (arguments, checks).
"""

from __future__ import annotations

from dataclasses import replace
from numbers import Real

from labkit.amp import PRESETS, ScalerConfig, static


class GradScaler:
    """Loss scale that grows after `growth_interval` clean steps and backs off at inf or NaN.

    A step with inf or NaN is skipped.

    Raises:
        ValueError: backoff_factor is not 1 / growth_factor, or a value is out of its range
            (`ScalerConfig`).
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
    ) -> None:
        config = replace(
            PRESETS["OneFlow"],
            init_scale=init_scale,
            growth_factor=growth_factor,
            backoff_factor=backoff_factor,
            growth_interval=growth_interval,
        )
        # the configuration has checked that the factors are numbers, and not 0
        if backoff_factor != 1.0 / growth_factor:
            raise ValueError(
                "Only support 1.0/growth_factor as backoff_factor at the moment, got "
                f"{backoff_factor}: with growth_factor={growth_factor} it is {1.0 / growth_factor}."
            )
        self.config: ScalerConfig = config


class StaticGradScaler:
    """A scale that never changes; gradients are not checked for inf and NaN.

    Raises:
        ValueError: scale_factor is not a number above 0.
    """

    def __init__(self, scale_factor: float) -> None:
        # Real includes the numbers of numpy
        if not (isinstance(scale_factor, Real) and scale_factor > 0.0):
            raise ValueError(f"StaticGradScaler's scale_factor must > 0.0; got {scale_factor!r}")
        self.config: ScalerConfig = static(float(scale_factor), skip_on_inf=False)
