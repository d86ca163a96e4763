"""States of random generators in checkpoints that move between devices.

A generator's state belongs to its kind of device: a CPU's has 5056 bytes, a GPU's 16, and neither can go on from the
other's. A run that was saved on one and resumed on the other goes on with a generator that is seeded from the state.
"""

from __future__ import annotations

import hashlib
import warnings

import torch
from torch import Tensor

SIZES = {len(torch.Generator().get_state()): "a CPU", 16: "a GPU"}  # bytes of a state -> whose it is


def restore(generator: torch.Generator, state: Tensor) -> None:
    """Put a generator where a state says, or seed it from the state of another kind of device.

    Raises:
        RuntimeError: it is no state of a generator.

    Warns:
        UserWarning: the state is of another kind of device.
    """
    state, own = state.cpu(), len(generator.get_state())
    if state.numel() == own or state.numel() not in SIZES:
        generator.set_state(state)
        return
    seed = int.from_bytes(hashlib.sha256(state.numpy().tobytes()).digest()[:4], "little")
    generator.manual_seed(seed)
    warnings.warn(
        f"the random numbers of stochastic rounding were drawn on {SIZES[state.numel()]} when this was saved, and are "
        f"drawn on {SIZES.get(own, 'another device')} now: the generator is seeded anew. The run goes on, but not bit "
        "for bit.",
        stacklevel=2,
    )


def require_state(generator: torch.Generator, state: Tensor) -> None:
    """Refuse what is no state of a generator, and change nothing.

    Raises:
        RuntimeError: as `restore`.
    """
    if state.numel() not in SIZES or state.numel() == len(generator.get_state()):
        torch.Generator(generator.device).set_state(state.cpu())
