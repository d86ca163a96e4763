"""Bitwise reproducibility of runs: threads, random generators, buffers, precision of products."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from labkit.amp import Recipe
from labkit.gemm import fp32_precision, has_tf32, is_ieee_on_cpu

# added to a step's seed for dropout, so that it differs from the batch's seed
DROPOUT_OFFSET = 1_000_000_007
_lock = threading.Lock()
# torch's original thread count, once for each thread with an open `one_thread`
_thread_counts: list[int] = []
# `.open`: whether this thread is inside a `one_thread` block
_in_one_thread = threading.local()
# cuDNN's original flags, once for each open `deterministic_cudnn`
_cudnn_flags: list[tuple[bool, bool]] = []


@contextmanager
def arithmetic(recipe: Recipe, device: torch.device) -> Iterator[None]:
    """Compute products as the recipe specifies, with deterministic cuDNN algorithms.

    TF32 is used in the recipe TF32 only.

    Not covered: operations without a deterministic CUDA kernel (see
    `torch.use_deterministic_algorithms`), and cuDNN's recurrent layers, which need
    CUBLAS_WORKSPACE_CONFIG=:4096:8 in the environment.
    """
    if device.type == "cpu" and is_ieee_on_cpu():
        yield
        return
    with (
        deterministic_cudnn(),
        fp32_precision("tf32" if recipe.tf32 and has_tf32(device) else "ieee"),
    ):
        yield


@contextmanager
def deterministic_cudnn() -> Iterator[None]:
    """Restrict cuDNN to deterministic algorithms, without benchmarking.

    Blocks of several threads may overlap; the last one to end restores the flags from before the
    first.
    """
    with _lock:
        current = (torch._C._get_cudnn_deterministic(), torch._C._get_cudnn_benchmark())
        _cudnn_flags.append(_cudnn_flags[0] if _cudnn_flags else current)
        _set_cudnn(deterministic=True, benchmark=False)
    try:
        yield
    finally:
        with _lock:
            deterministic, benchmark = _cudnn_flags.pop()
            if not _cudnn_flags:
                _set_cudnn(deterministic=deterministic, benchmark=benchmark)


def _set_cudnn(*, deterministic: bool, benchmark: bool) -> None:
    # torch's tests freeze the setters of torch.backends
    torch._C._set_cudnn_deterministic(deterministic)
    torch._C._set_cudnn_benchmark(benchmark)


@contextmanager
def preserve_rng(device: torch.device) -> Iterator[None]:
    """Restore the states of torch's global generators of the CPU and one device after the block."""
    mps = torch.mps.get_rng_state() if device.type == "mps" else None
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        if mps is not None:
            torch.mps.set_rng_state(mps)


def seed_generators(device: torch.device, seed: int) -> None:
    """Seed torch's global generators of the CPU and of one device."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


@contextmanager
def seeded_rng(device: torch.device, seed: int) -> Iterator[None]:
    """Seed torch's global generators inside the block, and restore their states.

    On a CPU, a dropout mask is the same in any dtype. On CUDA it may depend on the dtype, whose
    width determines how many elements a thread processes at once. No task of the lab has dropout.
    """
    with preserve_rng(device):
        seed_generators(device, seed + DROPOUT_OFFSET)
        yield


@contextmanager
def restore_after(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Restore tensor values after the block, such as batch norm's statistics."""
    before = [(tensor, tensor.clone()) for tensor in tensors]
    try:
        yield
    finally:
        for tensor, copied in before:
            tensor.copy_(copied)


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one CPU thread inside the block: for the lab's small tensors, more threads are slower.

    The environment variable LABKIT_THREADS sets another number. Only the outermost block of a
    Python thread sets the count. When it ends, it restores the count from before the first of all
    overlapping blocks, since a new Python thread inherits the last count that was set.

    Raises:
        ValueError: LABKIT_THREADS is not a positive integer.
    """
    if getattr(_in_one_thread, "open", False):
        yield
        return
    with _lock:
        count = os.environ.get("LABKIT_THREADS", "1")
        if not count.isdecimal() or int(count) < 1:
            raise ValueError(
                f"expected a positive integer in LABKIT_THREADS, got {count!r}; unset it for one "
                "thread"
            )
        original = _thread_counts[0] if _thread_counts else torch.get_num_threads()
        # this raises if the number is too large for torch
        torch.set_num_threads(int(count))
        _thread_counts.append(original)
    _in_one_thread.open = True
    try:
        yield
    finally:
        _in_one_thread.open = False
        with _lock:
            torch.set_num_threads(_thread_counts.pop())
