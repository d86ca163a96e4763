"""Reproducibility of a run, bit for bit: threads, random numbers, running statistics and the arithmetic of products."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from labkit.amp import Recipe
from labkit.gemm import fp32_precision, has_tf32

NOT_THE_BATCHES = 1_000_000_007  # added to a step's seed for dropout: its numbers shall not be those of its rows
_changing = threading.Lock()
_found: list[int] = []  # for each block of `one_thread` that is open, torch's own thread count
_cudnn: list[tuple[bool, bool]] = []  # for each block of `deterministic_cudnn` that is open, cuDNN's own flags


@contextmanager
def arithmetic(recipe: Recipe, device: torch.device) -> Iterator[None]:
    """Compute a training's products as its recipe says: FP32 in FP32, TF32 only where the recipe is TF32.

    cuDNN's algorithms are deterministic meanwhile. What it does not do: make operations deterministic that have no such
    kernel on CUDA (`torch.use_deterministic_algorithms` lists them), or cuDNN's recurrent layers, which need
    CUBLAS_WORKSPACE_CONFIG=:4096:8 in the environment.
    """
    with deterministic_cudnn(), fp32_precision("tf32" if recipe.tf32 and has_tf32(device) else "ieee"):
        yield


@contextmanager
def deterministic_cudnn() -> Iterator[None]:
    """Let cuDNN take deterministic algorithms only, and none by timing them; the last of several blocks restores."""
    with _changing:
        _cudnn.append(_cudnn[0] if _cudnn else (torch._C._get_cudnn_deterministic(), torch._C._get_cudnn_benchmark()))
        _set_cudnn(deterministic=True, benchmark=False)
    try:
        yield
    finally:
        with _changing:
            deterministic, benchmark = _cudnn.pop()
            if not _cudnn:
                _set_cudnn(deterministic=deterministic, benchmark=benchmark)


def _set_cudnn(*, deterministic: bool, benchmark: bool) -> None:
    torch._C._set_cudnn_deterministic(deterministic)  # torch.backends lets only its own tests set it where these run
    torch._C._set_cudnn_benchmark(benchmark)


@contextmanager
def preserve_rng(device: torch.device) -> Iterator[None]:
    """Put torch's global generators of the CPU and of one device back after the block; touch those of no other."""
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
    """Begin torch's global generators anew from a seed, and put them back.

    A dropout mask is the same in any dtype on a CPU. On CUDA it may depend on the dtype, whose width decides how
    many elements a thread loads, and draws for, at once. No task of the lab has dropout.
    """
    with preserve_rng(device):
        seed_generators(device, seed + NOT_THE_BATCHES)
        yield


@contextmanager
def restore_after(tensors: Iterable[Tensor]) -> Iterator[None]:
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
        asked = os.environ.get("LABKIT_THREADS", "1")
        if not asked.isdecimal() or int(asked) < 1:
            raise ValueError(f"LABKIT_THREADS is a whole number, 1 or more; it is {asked!r}. Unset it for one thread.")
        _found.append(_found[0] if _found else torch.get_num_threads())
        torch.set_num_threads(int(asked))
    try:
        yield
    finally:
        with _changing:
            torch.set_num_threads(_found.pop())
