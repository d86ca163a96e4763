"""What a watch could leave behind in a process."""

from typing import Any

import torch
from torch.nn.modules import module as torch_modules
from torch.optim import optimizer as torch_optimizers

from labkit.amp import Engine
from labkit.instrument.stream import STREAM


def hooks() -> Any:
    """Return the global hooks, patched functions and listeners that a watch could leave behind."""
    places = [torch_modules._global_forward_hooks, torch_modules._global_forward_pre_hooks]
    places += [
        torch_optimizers._global_optimizer_pre_hooks,
        torch_optimizers._global_optimizer_post_hooks,
    ]
    scalers = [vars(torch.amp.GradScaler)[name] for name in ("scale", "unscale_", "step")]
    taps = [
        vars(Engine)["step"],
        vars(Engine)["backward"],
        torch.autograd.backward,
        torch.autograd.grad,
    ]
    return [len(place) for place in places], scalers, taps, STREAM.listeners
