"""Adapters: the APIs of torch.amp, apex, fastai and OneFlow on the lab's engine."""

from labkit.frameworks.torch_amp import (
    GradScaler,
    autocast,
    custom_bwd,
    custom_fwd,
    from_state_dict,
    is_autocast_enabled,
    state_dict,
)
from labkit.frameworks.torch_scaler import ShardedGradScaler

__all__ = [
    "GradScaler",
    "ShardedGradScaler",
    "autocast",
    "custom_bwd",
    "custom_fwd",
    "from_state_dict",
    "is_autocast_enabled",
    "state_dict",
]
