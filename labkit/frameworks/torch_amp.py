"""How do I try the lab's engine in a script that is written for torch.amp? Change one import.

    from torch.amp import autocast, GradScaler
    from labkit.frameworks.torch_amp import autocast, GradScaler

Idea: a face and nothing more. `GradScaler` is torch_scaler (the order of the calls) over torch_state (what is kept);
`autocast` is torch_autocast; both hand the decisions to labkit.amp.

Invariant: signatures, defaults, state_dict keys and error texts are torch's; our errors add what would do.
"""

from torch.amp import is_autocast_available

from labkit.frameworks.torch_autocast import autocast, custom_bwd, custom_fwd, is_autocast_enabled
from labkit.frameworks.torch_scaler import GradScaler
from labkit.frameworks.torch_state import from_state_dict, state_dict

__all__ = [
    "GradScaler", "autocast", "custom_bwd", "custom_fwd", "from_state_dict", "is_autocast_available",
    "is_autocast_enabled", "state_dict",
]  # fmt: skip
