"""Number formats as rows of data: codes, values, rounding and arithmetic. Requires numpy only."""

from labkit.formats.arithmetic import (
    Add,
    Align,
    Calculation,
    CalculationStep,
    Multiply,
    Normalise,
    Round,
    Sum,
    Term,
    add,
    fused_multiply_add,
    multiply,
    sum_compensated,
    sum_pairwise,
    sum_sequential,
)
from labkit.formats.blocks import (
    BLOCK_FORMATS,
    MXFP4,
    MXFP6,
    MXFP6_E3M2,
    MXFP8,
    MXFP8_E5M2,
    NVFP4,
    BlockFormat,
    Blocks,
    decode_blocks,
    round_blocks,
)
from labkit.formats.codes import (
    Fields,
    Interval,
    NumberClass,
    classify,
    decode,
    encode,
    join,
    next_down,
    next_up,
    rounding_interval,
    split,
)
from labkit.formats.format import (
    BF16,
    E2M1,
    E2M3,
    E3M2,
    E4M3,
    E5M2,
    E8M0,
    FORMATS,
    FP16,
    FP32,
    FP64,
    TF32,
    Format,
    Specials,
)
from labkit.formats.rounding import Overflow, Rounding, round_to, ulp
from labkit.formats.text import Reading, exact_decimal, field_bits, hex_float, parse, round_fraction

__all__ = [
    "BF16", "BLOCK_FORMATS", "E2M1", "E2M3", "E3M2", "E4M3", "E5M2", "E8M0", "FORMATS", "FP16", "FP32", "FP64", "MXFP4",
    "MXFP6", "MXFP6_E3M2", "MXFP8", "MXFP8_E5M2", "NVFP4", "TF32", "Add", "Align", "BlockFormat", "Blocks",
    "Calculation", "CalculationStep", "Fields",
    "Format", "Interval", "Multiply", "Normalise", "NumberClass", "Overflow", "Reading",
    "Round", "Rounding", "Specials", "Sum", "Term", "add", "classify", "decode", "decode_blocks", "encode",
    "exact_decimal", "field_bits", "fused_multiply_add", "hex_float", "join", "multiply", "next_down", "next_up",
    "parse", "round_blocks", "round_fraction", "round_to", "rounding_interval", "split", "sum_compensated",
    "sum_pairwise", "sum_sequential", "ulp",
]  # fmt: skip
