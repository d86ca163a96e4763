"""What must be kept the same, so that a run repeats bit for bit? Threads, random numbers and running statistics."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

NOT_THE_BATCHES = 1_000_000_007  # added to a step's seed for dropout: its numbers shall not be those of its rows
_changing = threading.Lock()
_found: list[int] = []  # for each block of `one_thread` that is open, torch's own thread count


@contextmanager
def drawing(device: torch.device, seed: int) -> Iterator[None]:
    """Begin torch's global generators anew from a seed, and put them back; on a CPU a mask is the same in any dtype."""
    cuda = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda):
        torch.default_generator.manual_seed(seed + NOT_THE_BATCHES)
        for card in cuda:
            with torch.cuda.device(card):
                torch.cuda.manual_seed(seed + NOT_THE_BATCHES)
        yield


@contextmanager
def unchanged(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Put tensors back as they were: batch norm counts every forward pass, and looking at one shall not count."""
    before = [(tensor, tensor.clone()) for tensor in tensors]
    try:
        yield
    finally:
        for tensor, copied in before:
            tensor.copy_(copied)


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one CPU thread inside the block: for tensors this small, a second one costs more than it brings.

    LABKIT_THREADS in the environment asks for another number. A new Python thread begins with the count that
    was set last, so what is put back is the count that the first of several trainings at once had found.

    Raises:
        ValueError: LABKIT_THREADS is no whole number above 0.
    """
    with _changing:
        wanted = _threads_asked_for()
        _found.append(_found[0] if _found else torch.get_num_threads())
        torch.set_num_threads(wanted)
    try:
        yield
    finally:
        with _changing:
            torch.set_num_threads(_found.pop())


def _threads_asked_for() -> int:
    asked = os.environ.get("LABKIT_THREADS", "1")
    if not asked.isdecimal() or int(asked) < 1:
        raise ValueError(f"LABKIT_THREADS is a whole number, 1 or more; it is {asked!r}. Unset it for one thread.")
    return int(asked)
