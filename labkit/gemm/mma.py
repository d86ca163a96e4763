"""Tensor Core instructions by GPU generation, as rows of data.

Idea: D[m,n] = A[m,k] @ B[k,n] + C[m,n] is computed in blocks of a few products. Generations differ
in a few numbers: the products of a block, and the bits that a term keeps when it is aligned to the
largest one. So a Tensor Core is a row.

Invariant: every row names the source of its numbers, and where sources disagree.

Source:
- arXiv:2511.10909 (block lengths, fraction bits, rounding; the rows follow it).
- MATLAB-tensor-core (arXiv:2512.07004), whose models agree unless a row notes otherwise.
- NVIDIA PTX ISA, "Warp-level matrix instructions", "Asynchronous warpgroup-level matrix
  instructions", "tcgen05" (shapes).
- Hickmann and Bradford 2019, and Fasi, Higham, Mikaitis and Pranesh 2021
  (doi:10.7717/peerj-cs.330), who found block, truncation and missing normalisation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from labkit.formats import (
    BF16,
    E4M3,
    E5M2,
    FP16,
    FP32,
    TF32,
    Format,
    FormatLike,
    Rounding,
    as_format,
)
from labkit.formats.arguments import as_row
from labkit.formats.rows import Rows

# rounding of a block's sum to D
RESULT_ROUNDING = {FP32: Rounding.TOWARD_ZERO, FP16: Rounding.NEAREST_EVEN}
# a zero C counts with this exponent, so nothing is aligned to less than 2^-126
ZERO_EXPONENT = FP32.emin
# products of significands below 2 stay as they are: 1.1 * 1.1 (binary) is 10.01, not 1.001 * 2
_PRODUCT_LIMIT = 4


@dataclass(frozen=True)
class MmaSpec:
    """One Tensor Core instruction: its shape, and the arithmetic of one block.

    A block is `block_length` exact products and C, aligned to the largest exponent among them, cut
    to `fraction_bits` bits behind the point, added exactly, normalised once and rounded
    (`RESULT_ROUNDING`). The result is the next block's C. The exponent of a product is the sum of
    its operands' exponents: products are not normalised.

    Attributes:
        name: the GPU.
        operands: format of A, and of B unless `operands_b` is set.
        instruction: name in the PTX ISA.
        m, n, k: shape of the widest instruction of that kind; several blocks if k > block_length.
        block_length: products in a block, which also adds C.
        fraction_bits: bits behind the binary point that a term keeps once it is aligned.
        source: where the numbers come from.
        result: format of C and D.
        result_significand_bits: significand bits that an FP32 result keeps: 23, or fewer.
        note: where sources disagree, and other remarks.
        operands_b: format of B if it is not that of A.

    Raises:
        ValueError: this hardware has no such result format.

    >>> SPECS["H100"].block_length, SPECS["H100"].fraction_bits
    (16, 25)
    >>> SPECS["H100"].for_operands(E4M3).fraction_bits
    13
    """

    name: str
    operands: Format
    instruction: str
    m: int
    n: int
    k: int
    block_length: int
    fraction_bits: int
    source: str
    result: Format = FP32
    result_significand_bits: int = FP32.significand_bits
    note: str = ""
    operands_b: Format | None = None

    def __post_init__(self) -> None:
        if self.result not in self.results:
            raise ValueError(
                f"{self.name} with {self.operands.name} operands gives {_names(self.results)}; "
                f"asked for {self.result.name}."
            )

    @property
    def results(self) -> tuple[Format, ...]:
        """The formats of C and D: FP32, and FP16 unless A and B have larger exponents than FP16."""
        return (FP32,) if self.operands.emax > FP16.emax else (FP32, FP16)

    @property
    def right(self) -> Format:
        """The format of B."""
        return self.operands_b or self.operands

    def transposed(self) -> MmaSpec:
        """Return the instruction for B^T A^T, whose D is the transpose of A B's."""
        if self.operands_b is None:
            return self
        return replace(self, operands=self.right, operands_b=self.operands)

    @property
    def sum_limit(self) -> int:
        """A bound of a block's sum, in units of the last place that an aligned term keeps."""
        return (_PRODUCT_LIMIT * self.block_length + 2) << self.fraction_bits

    @property
    def reaches_subnormals(self) -> bool:
        """Whether a block's sum may be finer than FP32's subnormals, as a term's last bit."""
        return self.operands.emin + self.right.emin < FP32.emin

    def for_operands(self, operands: FormatLike, operands_b: FormatLike | None = None) -> MmaSpec:
        """Return the same GPU's instruction for other operands, A and B.

        If FP8 is supported, E4M3 may be multiplied by E5M2, too.

        Raises:
            ValueError: this GPU's Tensor Cores do not take them; the message lists those they take.

        Source: PTX ISA and arXiv:2511.10909 (E4M3 by E5M2: same block, same bits, each exponent by
            its own format).

        >>> a100, h100 = SPECS["A100"], SPECS["H100"]
        >>> a100.for_operands(BF16).instruction, h100.for_operands(E5M2, E4M3).fraction_bits
        ('mma.sync', 13)
        """
        operands = as_format(operands, "operands")
        if operands_b is not None:
            operands_b = as_format(operands_b, "operands_b")
        if operands_b is not None and operands_b != operands:
            row = self.for_operands(operands)
            if {operands, operands_b} != {E4M3, E5M2}:
                raise ValueError(
                    f"{self.name} Tensor Cores multiply numbers of one format, or E4M3 by E5M2 "
                    f"where they take those; asked for {operands.name} by {operands_b.name}."
                )
            return replace(row, operands_b=operands_b)
        rows = {row.operands: row for row in ROWS if row.name == self.name}
        if operands not in rows:
            raise ValueError(
                f"{self.name} Tensor Cores take {_names(rows)} operands; asked for {operands.name}."
            )
        return rows[operands]


def _names(formats: Iterable[Format]) -> str:
    return ", ".join(row.name for row in formats)


_PAPER = "arXiv:2511.10909; PTX ISA"
_BOTH = "arXiv:2511.10909; MATLAB-tensor-core; PTX ISA"
_WGMMA_FP8 = "arXiv:2511.10909 (wgmma); PTX ISA"
_TCGEN05_FP8 = "arXiv:2511.10909 (tcgen05.mma); PTX ISA"
_FP8_CUT = (
    "C and the products keep 13 bits behind the point, and the FP32 result as many: D is an FP32 "
    "number with 10 zeros at its end. DeepSeek-V3's report (arXiv:2412.19437, 3.3.2) counts about "
    "14 bits, the leading one included."
)
_HOPPER_FP8 = (
    _FP8_CUT
    + " That is wgmma; on Hopper mma.sync computes FP8 in its FP16 units and cuts nothing like it."
)
_BLACKWELL_FP8 = (
    "That is tcgen05.mma. On Blackwell mma.sync adds FP8 products in another way: "
    "MATLAB-tensor-core took its FP8 data for B200 from mma.sync, and a third of them differ from "
    "this row."
)
_TURING = (
    "Sources disagree: arXiv:2511.10909 models m16n8k8 as one block of 8; Fasi et al. 2021 and the "
    "SMT model of arXiv:2502.15999 describe Turing with blocks of 4, as Volta. MATLAB-tensor-core "
    "has no Turing. See TURING_4."
)
_V100_BITS = (
    "MATLAB-tensor-core calls these 23 bits 'no extra alignment bits'; later rows have one or two "
    "more."
)
_WIDE = (
    "Where all terms are below 2^-126 the sources disagree: a zero C counts as 2^-126 in "
    "arXiv:2511.10909 (and here), MATLAB-tensor-core aligns down to 2^-133. Only FP32-subnormal "
    "results can tell."
)
_B200 = (
    "An early MATLAB-tensor-core took 32 products (two interleaved 16s) for FP16; its current "
    "model takes 16."
)


def _rows(
    name: str,
    instruction: str,
    source: str,
    *kinds: tuple[Format, tuple[int, int, int], int, int, str],
) -> tuple[MmaSpec, ...]:
    """Return rows of one GPU from (operands, shape, block length, fraction bits, note)."""
    rows = []
    for operands, (m, n, k), length, bits, note in kinds:
        row = MmaSpec(
            name=name,
            operands=operands,
            instruction=instruction,
            m=m,
            n=n,
            k=k,
            block_length=length,
            fraction_bits=bits,
            source=source,
            note=note,
            result_significand_bits=min(bits, FP32.significand_bits),
        )
        rows.append(row)
    return tuple(rows)


ROWS: tuple[MmaSpec, ...] = (
    *_rows("V100", "mma.sync", _BOTH, (FP16, (8, 8, 4), 4, 23, _V100_BITS)),
    *_rows("T4", "mma.sync", _PAPER, (FP16, (16, 8, 8), 8, 24, _TURING)),
    *_rows(
        "A100",
        "mma.sync",
        _BOTH,
        (FP16, (16, 8, 16), 8, 24, ""),
        (BF16, (16, 8, 16), 8, 24, _WIDE),
        (TF32, (16, 8, 8), 4, 24, _WIDE),
    ),
    *_rows(
        "Ada",
        "mma.sync",
        _BOTH,
        (FP16, (16, 8, 16), 8, 24, ""),
        (BF16, (16, 8, 16), 8, 24, _WIDE),
        (TF32, (16, 8, 8), 4, 24, _WIDE),
        (E4M3, (16, 8, 32), 16, 13, _FP8_CUT),
        (E5M2, (16, 8, 32), 16, 13, _FP8_CUT),
    ),
    *(
        row
        for name in ("H100", "H200")
        for row in (
            *_rows(
                name,
                "wgmma.mma_async",
                _BOTH,
                (FP16, (64, 256, 16), 16, 25, ""),
                (BF16, (64, 256, 16), 16, 25, _WIDE),
                (TF32, (64, 256, 8), 8, 25, _WIDE),
            ),
            *_rows(
                name,
                "wgmma.mma_async",
                _WGMMA_FP8,
                (E4M3, (64, 256, 32), 32, 13, _HOPPER_FP8),
                (E5M2, (64, 256, 32), 32, 13, _HOPPER_FP8),
            ),
        )
    ),
    *_rows(
        "B200",
        "tcgen05.mma",
        _BOTH,
        (FP16, (128, 256, 16), 16, 25, _B200),
        (BF16, (128, 256, 16), 16, 25, _WIDE),
        (TF32, (128, 256, 8), 8, 25, _WIDE),
    ),
    *_rows(
        "B200",
        "tcgen05.mma",
        _TCGEN05_FP8,
        (E4M3, (128, 256, 32), 32, 25, _BLACKWELL_FP8),
        (E5M2, (128, 256, 32), 32, 25, _BLACKWELL_FP8),
    ),
)

SPECS: dict[str, MmaSpec] = Rows({row.name: row for row in ROWS if row.operands == FP16})
"""A GPU's instruction for FP16 operands by its name; `.for_operands` leads to the others."""

TURING_4 = MmaSpec(
    name="T4",
    operands=FP16,
    instruction="mma.sync",
    m=16,
    n=8,
    k=8,
    block_length=4,
    fraction_bits=24,
    source="Fasi et al. 2021; arXiv:2502.15999",
    note=_TURING,
)
"""T4 as its other sources describe it: blocks of 4."""


def as_spec(spec: MmaSpec | str, argument: str = "spec") -> MmaSpec:
    """Return the instruction that an argument names: a row of `SPECS`, or a GPU's name in any case.

    Raises:
        TypeError: the argument is neither.
        ValueError: there is no such row.

    >>> as_spec("h100").block_length
    16
    """
    return as_row(spec, MmaSpec, SPECS, argument)
