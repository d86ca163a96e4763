"""Which single instructions can a Tensor Core be asked? Rows of data: shape, operands, result, and who has them.

Idea: PTX names an instruction by its shape and types, and from these follow how many words a row of each matrix has and
how many threads execute it. `MmaSpec` says what an instruction computes; this says how it is called.

Invariant: what an `Instruction` stores was chosen; what follows from it is a property.

What is not here: Volta's m8n8k4, whose registers are laid out otherwise; Blackwell's tcgen05, which needs memory of its
own (there mma.sync is asked). FP8 by mma.sync is one instruction on Ada alone: for Hopper and later the assembler turns
it into conversions and two FP16 instructions.

Source: NVIDIA PTX ISA, "Multiply-and-Accumulate Instruction: mma", "Asynchronous Multiply-and-Accumulate: wgmma".
"""

from __future__ import annotations

from dataclasses import dataclass

from labkit.bench.cases import stored_bytes
from labkit.formats import BF16, E4M3, E5M2, FP16, FP32, TF32, Format

COLUMNS = 8  # n of every instruction here
PTX_NAMES = {FP32: "f32", FP16: "f16", BF16: "bf16", TF32: "tf32", E4M3: "e4m3", E5M2: "e5m2"}


@dataclass(frozen=True)
class Instruction:
    """One instruction D[m,8] = A[m,k] @ B[k,8] + C[m,8] as PTX names it.

    kind      "mma.sync" (a warp, m = 16) or "wgmma.mma_async" (four warps, m = 64; B from shared memory)
    operands  format of A and B
    result    format of C and D, FP32 or FP16
    k         products in each sum
    first     lowest compute capability that has it
    last      highest at which it is one instruction of the hardware; None: all later ones

    >>> Instruction("mma.sync", FP16, FP32, 16, (8, 0)).name
    'mma.sync.m16n8k16.f32.f16.f16.f32'
    """

    kind: str
    operands: Format
    result: Format
    k: int
    first: tuple[int, int]
    last: tuple[int, int] | None = None

    @property
    def m(self) -> int:
        """Rows of A."""
        return 64 if self.grouped else 16

    @property
    def grouped(self) -> bool:
        """Whether four warps execute it together."""
        return self.kind != "mma.sync"

    @property
    def threads(self) -> int:
        """A warp of 32 for each 16 rows."""
        return 2 * self.m

    @property
    def words(self) -> int:
        """32-bit words in a row of A (and in a column of B)."""
        return self.k * stored_bytes(self.operands) // 4

    @property
    def result_words(self) -> int:
        """32-bit words in a row of C and D."""
        return COLUMNS * stored_bytes(self.result) // 4

    @property
    def name(self) -> str:
        """Shape and types, as in PTX."""
        operand, result = PTX_NAMES[self.operands], PTX_NAMES[self.result]
        types = [result, operand, operand] + [result] * (not self.grouped)
        return ".".join([self.kind, f"m{self.m}n{COLUMNS}k{self.k}", *types])

    def runs_on(self, capability: tuple[int, int] | None) -> bool:
        """Say whether a GPU has it as one instruction."""
        return capability is not None and self.first <= capability and (self.last is None or capability <= self.last)


INSTRUCTIONS = (
    *(Instruction("wgmma.mma_async", FP16, result, 16, (9, 0), (9, 0)) for result in (FP32, FP16)),
    Instruction("wgmma.mma_async", BF16, FP32, 16, (9, 0), (9, 0)),
    Instruction("wgmma.mma_async", TF32, FP32, 8, (9, 0), (9, 0)),
    Instruction("wgmma.mma_async", E4M3, FP32, 32, (9, 0), (9, 0)),
    Instruction("wgmma.mma_async", E5M2, FP32, 32, (9, 0), (9, 0)),
    *(Instruction("mma.sync", FP16, result, 16, (8, 0)) for result in (FP32, FP16)),
    *(Instruction("mma.sync", FP16, result, 8, (7, 5)) for result in (FP32, FP16)),
    Instruction("mma.sync", BF16, FP32, 16, (8, 0)),
    Instruction("mma.sync", TF32, FP32, 8, (8, 0)),
    Instruction("mma.sync", E4M3, FP32, 32, (8, 9), (8, 9)),
    Instruction("mma.sync", E5M2, FP32, 32, (8, 9), (8, 9)),
)
