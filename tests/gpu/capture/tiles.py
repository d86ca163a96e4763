"""Questions to one real Tensor Core instruction, and its answers.

Idea: the order of summation of cuBLAS is unknown, so its results prove little about the hardware.
Here a warp (or, on Hopper, a group of four) loads its registers, executes one instruction and
stores its registers. numpy arranges the matrix elements in the registers of the threads, which can
be checked without a GPU. Random matrices rarely show how a block is aligned, truncated and rounded,
so there are further families of operands: of nearly equal magnitude, with sums that cancel, at the
bottom of the format, and with infinities and NaN. Operands and results are stored as the bit
patterns of the hardware, with the GPU, its driver and the date.

Invariant: a capture is kept only if the instruction multiplied matrices of small integers
correctly, which it would not do with an element in a wrong register. The same instruction and seed
give the same operands. A capture that is saved and loaded has the same bit patterns.

Source: NVIDIA PTX ISA, "Matrix fragments for mma.m16n8k8" (k16, k32), "Register fragments for
wgmma.mma_async", "Shared memory matrix layout".
"""

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from labkit.bench.record import bench_versions
from labkit.formats import FORMATS, FP32, TF32, Format, decode, encode, round_to
from labkit.gemm.blocks import emulate
from labkit.gemm.mma import MmaSpec
from labkit.machine.device import device_report
from labkit.records import now
from tests.gpu.capture.kernel import COLUMNS, Instruction, kernel, launch

Words = NDArray[np.uint32]


def capture(instruction: Instruction, a: Words, b: Words, c: Words) -> Words:
    """Return the words of D[tile, m, 8] that the GPU computes.

    The words of A[tile, m, k] and C[tile, m, 8] go row by row, those of B column by column.
    """
    if not torch.cuda.is_available():
        raise RuntimeError(
            "a Tensor Core is asked for, and torch reaches no GPU here. `emulate` answers "
            "without one."
        )
    registers = (a_registers(a), b_registers(b, instruction), c_registers(c))
    operands = [torch.from_numpy(operand.view(np.int32)).cuda() for operand in registers]
    result = torch.zeros_like(operands[2])
    launch(kernel(instruction), len(a), instruction.threads, [*operands, result])
    return from_registers(result.cpu().numpy().view(np.uint32))


def a_registers(a: Words) -> Words:
    """Return A's words [tile, m, words] as they lie in registers: [tile, thread, register].

    Each 16 rows belong to a warp. Its thread 4g + t holds words t and t + 4 of rows g and g + 8.
    """
    tiles, m, words = a.shape
    # The axes: tile, warp, upper or lower rows, g, word // 4, t.
    parts = a.reshape(tiles, m // 16, 2, 8, words // 4, 4)
    return np.ascontiguousarray(parts.transpose(0, 1, 3, 5, 4, 2)).reshape(tiles, 2 * m, words // 2)


def b_registers(b: Words, instruction: Instruction) -> Words:
    """Return B's words [tile, 8, words] as they lie in registers, or for wgmma in shared memory.

    In registers: thread 4g + t holds words t and t + 4 of column g. In shared memory: pieces of 8
    columns x 16 bytes, one behind the other.
    """
    tiles, columns, words = b.shape
    parts = b.reshape(tiles, columns, words // 4, 4)
    if instruction.grouped:
        return np.ascontiguousarray(parts.transpose(0, 2, 1, 3)).reshape(tiles, columns * words)
    return np.ascontiguousarray(parts.transpose(0, 1, 3, 2)).reshape(tiles, 32, words // 4)


def c_registers(c: Words) -> Words:
    """Return C's words [tile, m, 8 or 4] as they lie in registers: [tile, thread, register].

    Thread 4g + t holds columns 2t and 2t + 1 of rows g and g + 8: two FP32 words, or one word of
    two FP16 numbers.
    """
    tiles, m, words = c.shape
    # The axes: tile, warp, upper or lower rows, g, t, word of the pair.
    parts = c.reshape(tiles, m // 16, 2, 8, 4, words // 4)
    return np.ascontiguousarray(parts.transpose(0, 1, 3, 4, 2, 5)).reshape(tiles, 2 * m, words // 2)


def from_registers(d: Words) -> Words:
    """Undo `c_registers`."""
    tiles, threads, registers = d.shape
    parts = d.reshape(tiles, threads // 32, 8, 4, 2, registers // 2)
    return np.ascontiguousarray(parts.transpose(0, 1, 4, 2, 3, 5)).reshape(
        tiles, threads // 2, 2 * registers
    )


SCHEMA = "labkit.mma/1"
FAMILIES = ("normal", "near", "cancel", "any", "tiny", "special")
Values = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class MmaCapture:
    """Operands of one instruction, and its results.

    Attributes:
        instruction: The instruction.
        a: The words of A[tile, m, k], by rows.
        b: The words of B[tile, k, 8], by columns.
        c: The words of C[tile, m, 8], by rows.
        d: The words of the result D[tile, m, 8], by rows.
        family: The family of each tile.
        spec: The row of SPECS that models this GPU, or "".
        device: The name of the GPU.
        versions: The versions of the driver and of packages.
        date: When the instruction was executed.
    """

    instruction: Instruction
    a: Words
    b: Words
    c: Words
    d: Words
    family: tuple[str, ...]
    spec: str
    device: str
    versions: dict[str, str]
    date: str

    def to_bytes(self) -> bytes:
        row = self.instruction
        head = {
            "schema": SCHEMA,
            "instruction": {**vars(row), "operands": row.operands.name, "result": row.result.name},
            **{
                name: getattr(self, name)
                for name in ("family", "spec", "device", "versions", "date")
            },
        }
        file = io.BytesIO()
        arrays = {name: getattr(self, name) for name in "abcd"}
        np.savez_compressed(file, head=np.array(json.dumps(head)), **arrays)
        return file.getvalue()

    def matrices(self) -> tuple[NDArray[Any], NDArray[Any], Values]:
        """Return A[tile, m, k], B[tile, k, 8] and C[tile, m, 8] as values.

        For TF32, A and B are FP32 numbers.
        """
        operands = stored_as(self.instruction.operands)
        result = self.instruction.result
        kind = np.float32 if operands is FP32 else np.float64
        a, b = (from_words(words, operands).astype(kind) for words in (self.a, self.b))
        return a, b.transpose(0, 2, 1), from_words(self.c, result)

    def mismatches(self, spec: MmaSpec) -> dict[str, int]:
        """Return family -> number of elements of D whose bits differ from `emulate` by `spec`."""
        d = emulate(*self.matrices(), spec, out=self.instruction.result)
        answers = self.d.view(self.instruction.result.code_dtype)
        differs = (d.view(answers.dtype) != answers).sum(axis=(1, 2))
        return {
            family: int(differs[np.array(self.family) == family].sum())
            for family in dict.fromkeys(self.family)
        }


def load_capture(path: str | Path) -> MmaCapture:
    with np.load(path) as stored:
        head = json.loads(str(stored["head"]))
        assert head.pop("schema") == SCHEMA, path
        row = head.pop("instruction")
        names = {name: FORMATS[row[name]] for name in ("operands", "result")}
        ends = {name: tuple(row[name]) if row[name] else None for name in ("first", "last")}
        arrays = {name: stored[name] for name in "abcd"}
    return MmaCapture(
        Instruction(**{**row, **names, **ends}),
        **arrays,
        **{**head, "family": tuple(head["family"])},
    )


def ask(instruction: Instruction, tiles: int = 32, seed: int = 0) -> MmaCapture:
    """Execute an instruction on the current GPU, for `tiles` tiles of each family.

    Raises:
        RuntimeError: a product of small integers is wrong, so an element was in a wrong register.
    """
    integers = draw_tiles("whole numbers", instruction, 4, seed)
    a, b, c = integers
    operands = stored_as(instruction.operands)
    result = instruction.result
    product = from_words(a, operands) @ from_words(b, operands).transpose(0, 2, 1) + from_words(
        c, result
    )
    if not np.array_equal(from_words(capture(instruction, *integers), result), product):
        raise RuntimeError(
            f"{instruction.name} multiplied small whole numbers wrong; its answers are not kept."
        )
    names = families(instruction)
    drawn = [draw_tiles(family, instruction, tiles, seed) for family in names]
    a, b, c = (np.concatenate(words) for words in zip(*drawn, strict=True))
    report = device_report("cuda")
    origin = (report.spec or "", report.name, bench_versions(report), now())
    family = tuple(family for family in names for _ in range(tiles))
    return MmaCapture(instruction, a, b, c, capture(instruction, a, b, c), family, *origin)


def draw_tiles(
    family: str, instruction: Instruction, tiles: int, seed: int
) -> tuple[Words, Words, Words]:
    """Return the words of A, B and C for some tiles of a family.

    See FAMILIES, and "whole numbers".
    """
    generator = np.random.default_rng([seed, instruction.k, instruction.m, *family.encode()])
    operands = stored_as(instruction.operands)
    result = instruction.result
    drawn = operands if family == "uncut" else instruction.operands
    a = _draw(family, (tiles, instruction.m, instruction.k), drawn, generator)
    b = _draw(family, (tiles, COLUMNS, instruction.k), drawn, generator)
    c = _draw(family, (tiles, instruction.m, COLUMNS), result, generator)
    # C cancels most of the sum, in half of the elements.
    if family == "cancel":
        total = round_to(a @ b.transpose(0, 2, 1), result)
        c = np.where(generator.random(c.shape) < 0.5, -total, c)
    return to_words(a, operands), to_words(b, operands), to_words(c, result)


def _draw(
    family: str, shape: tuple[int, ...], format: Format, generator: np.random.Generator
) -> Values:
    sign = generator.choice([-1.0, 1.0], shape)
    if family == "whole numbers":
        return np.asarray(generator.integers(-3, 4, shape), np.float64)
    if family in ("normal", "uncut"):
        values = generator.normal(size=shape)
    elif family in ("near", "cancel"):
        values = sign * generator.uniform(1, 2, shape) * 2.0 ** generator.integers(-4, 5, shape)
    elif family == "tiny":
        exponents = generator.integers(
            format.emin - format.significand_bits, format.emin + 4, shape
        )
        values = sign * generator.uniform(1, 2, shape) * 2.0**exponents
    else:
        values = decode(
            generator.integers(0, format.codes, shape).astype(format.code_dtype), format
        )
        if family == "any":
            values = np.where(np.isfinite(values), values, 1.0)
        else:
            # Only a tenth of the numbers is special, or every sum would be NaN.
            codes = [
                0,
                format.sign_mask,
                1,
                format.max_code,
                format.nan_code or 0,
                format.infinity_code or 0,
            ]
            rare = decode(generator.choice(np.array(codes, format.code_dtype), shape), format)
            values = np.where(
                generator.random(shape) < 0.1, sign * rare, generator.normal(size=shape)
            )
    return np.asarray(round_to(values, format), np.float64)


def families(instruction: Instruction) -> tuple[str, ...]:
    """Return the families of operands of an instruction.

    "uncut" is for TF32 only: FP32 numbers, whose last bits the hardware should ignore.
    """
    return (*FAMILIES, "uncut") if instruction.operands is TF32 else FAMILIES


def stored_as(format: Format) -> Format:
    """Return the format that carries another one in memory: FP32 for TF32, else itself."""
    return FP32 if format is TF32 else format


def to_words(values: Values, format: Format) -> Words:
    """Return values [..., n] as 32-bit words [..., n * bits / 32].

    The first value is in the lowest bits of a word.
    """
    return np.ascontiguousarray(encode(values, format)).view("<u4")


def from_words(words: Words, format: Format) -> Values:
    """Undo `to_words`."""
    return decode(np.ascontiguousarray(words).view(format.code_dtype), format)
