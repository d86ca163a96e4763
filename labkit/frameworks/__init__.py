"""How do others say it? The same states and knobs in the words of the frameworks that people use."""

from labkit.frameworks.torch_amp import (
    GradScaler,
    autocast,
    custom_bwd,
    custom_fwd,
    from_state_dict,
    is_autocast_enabled,
    state_dict,
)

__all__ = [
    "GradScaler",
    "autocast",
    "custom_bwd",
    "custom_fwd",
    "from_state_dict",
    "is_autocast_enabled",
    "state_dict",
]
