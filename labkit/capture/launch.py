"""What does one real Tensor Core instruction answer? Ask it: a kernel that is nothing but that instruction.

Idea: cuBLAS says nothing of its order of summation, so its results prove little about the hardware. Here a warp (or, on
Hopper, a group of four) loads its registers, executes one instruction and stores its registers (`capture_kernel`).
Which matrix element sits in which register of which thread is worked out in numpy, where it can be checked without a
GPU.

Invariant: a capture is kept only if the instruction multiplied matrices of small whole numbers right; then no element
can have been in a wrong place.

Source: NVIDIA PTX ISA, "Matrix fragments for mma.m16n8k8" (k16, k32), "Register fragments for wgmma.mma_async",
"Shared memory matrix layout".
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from labkit.capture.instructions import COLUMNS, Instruction
from labkit.capture.kernel import kernel, launch

Words = NDArray[np.uint32]


def capture(instruction: Instruction, a: Words, b: Words, c: Words) -> Words:
    """Return what the GPU answers: the words of D[tile, m, 8].

    Args:
        a: the words of A[tile, m, k], row by row: [tile, m, instruction.words].
        b: the words of B, column by column: [tile, 8, instruction.words].
        c: the words of C[tile, m, 8] in the result format: [tile, m, instruction.result_words].

    Raises:
        ValueError: the shapes are others.
        RuntimeError: there is no GPU, or its driver refuses; the message is the driver's.
    """
    tiles = len(a)
    shapes = {
        "a": (tiles, instruction.m, instruction.words),
        "b": (tiles, COLUMNS, instruction.words),
        "c": (tiles, instruction.m, instruction.result_words),
    }
    for (name, shape), given in zip(shapes.items(), (a, b, c), strict=True):
        if given.shape != shape or given.dtype != np.uint32:
            raise ValueError(f"{name} is uint32 words {list(shape)}; it was given {given.dtype} {list(given.shape)}.")
    if not torch.cuda.is_available():
        raise RuntimeError("a Tensor Core is asked for, and torch reaches no GPU here. `emulate` answers without one.")
    registers = (a_registers(a), b_registers(b, instruction), c_registers(c))
    asked = [torch.from_numpy(part.view(np.int32)).cuda() for part in registers]
    answer = torch.zeros_like(asked[2])
    launch(kernel(instruction), tiles, instruction.threads, [*asked, answer])
    return from_registers(answer.cpu().numpy().view(np.uint32))


def a_registers(a: Words) -> Words:
    """Return A's words [tile, m, words] as they lie in registers: [tile, thread, register].

    Each 16 rows belong to a warp. Its thread 4g + t holds words t and t + 4 of rows g and g + 8.
    """
    tiles, m, words = a.shape
    parts = a.reshape(tiles, m // 16, 2, 8, words // 4, 4)  # tile, warp, upper or lower rows, g, word // 4, t
    return np.ascontiguousarray(parts.transpose(0, 1, 3, 5, 4, 2)).reshape(tiles, 2 * m, words // 2)


def b_registers(b: Words, instruction: Instruction) -> Words:
    """Return B's words [tile, 8, words] as they lie in registers, or for wgmma in shared memory.

    In registers: thread 4g + t holds words t and t + 4 of column g. In shared memory: pieces of 8 columns x 16 bytes,
    one behind the other.
    """
    tiles, columns, words = b.shape
    parts = b.reshape(tiles, columns, words // 4, 4)
    if instruction.grouped:
        return np.ascontiguousarray(parts.transpose(0, 2, 1, 3)).reshape(tiles, columns * words)
    return np.ascontiguousarray(parts.transpose(0, 1, 3, 2)).reshape(tiles, 32, words // 4)


def c_registers(c: Words) -> Words:
    """Return C's words [tile, m, 8 or 4] as they lie in registers: [tile, thread, register].

    Thread 4g + t holds columns 2t and 2t + 1 of rows g and g + 8: two FP32 words, or one word of two FP16 numbers.
    """
    tiles, m, words = c.shape
    parts = c.reshape(tiles, m // 16, 2, 8, 4, words // 4)  # tile, warp, upper or lower rows, g, t, word of the pair
    return np.ascontiguousarray(parts.transpose(0, 1, 3, 4, 2, 5)).reshape(tiles, 2 * m, words // 2)


def from_registers(d: Words) -> Words:
    """Undo `c_registers`."""
    tiles, threads, registers = d.shape
    parts = d.reshape(tiles, threads // 32, 8, 4, 2, registers // 2)
    return np.ascontiguousarray(parts.transpose(0, 1, 4, 2, 3, 5)).reshape(tiles, threads // 2, 2 * registers)
