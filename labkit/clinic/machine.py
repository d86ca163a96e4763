"""How fast is a tiny training step here, on how many threads? That is in no file, so it is timed.

Invariant: a thread count set for the measurement is put back.
"""

from __future__ import annotations

from labkit.records.turns import host_seconds, take_turns

MOST_PASSES = 1000


def seconds_per_tiny_step(threads: int, budget: float = 0.15) -> float:
    """Time one forward and backward pass of a two-layer convolution on 8 images of 48 x 48, in seconds.

    Runs for about `budget` seconds, and at least once. Returns the fastest pass: what else the machine does only adds.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        model = torch.nn.Sequential(torch.nn.Conv2d(1, 16, 3), torch.nn.ReLU(), torch.nn.Conv2d(16, 16, 3))
        images = torch.ones(8, 1, 48, 48)
        model(images).mean().backward()  # the first pass also sets up
        passes = {"": lambda: host_seconds(lambda: model(images).mean().backward())}
        return min(take_turns(passes, MOST_PASSES, over=lambda _, seen: bool(seen) and sum(seen) >= budget)[""])
    finally:
        torch.set_num_threads(before)
