"""Rows of formats and block formats, against what gfloat and ml_dtypes know of them."""

import dataclasses
import math
from itertools import product

import gfloat
import ml_dtypes
import numpy as np
import pytest

from labkit.formats import (
    BF16,
    BLOCK_FORMATS,
    E2M1,
    E4M3,
    E5M2,
    E8M0,
    FORMATS,
    FP16,
    FP32,
    FP64,
    MXFP4,
    NVFP4,
    TF32,
    Format,
    Rounding,
    Specials,
    decode,
    decode_blocks,
    round_blocks,
    round_to,
)

ALL = [*FORMATS.values(), Format("mine", 4, 7), Format("flat", 2, 1)]


def test_fp16_worked_out_by_hand():
    assert (FP16.bits, FP16.bias, FP16.precision) == (16, 15, 11)
    assert (FP16.emin, FP16.emax) == (-14, 15)
    assert FP16.max == (2 - 2**-10) * 2**15 == 65504
    assert FP16.smallest_normal == 2**-14
    assert FP16.smallest_subnormal == 2**-24
    assert FP16.epsilon == 2**-10
    assert (FP16.codes, FP16.code_dtype) == (65536, np.uint16)
    assert (FP16.max_code, FP16.infinity_code, FP16.nan_code) == (0x7BFF, 0x7C00, 0x7E00)


def test_derived_numbers_are_those_of_ml_dtypes_and_gfloat(dtype_of, gfloat_row):
    for format in ALL:
        info = gfloat_row(format)
        assert (format.max, format.smallest_subnormal) == (info.max, info.smallest), format
        assert format.emax == math.frexp(info.max)[1] - 1, format
        if format in FORMATS.values() and format is not TF32:
            info = ml_dtypes.finfo(dtype_of(format))
            assert format.bits == info.bits, format
            for name in ("max", "smallest_normal", "smallest_subnormal"):
                assert getattr(format, name) == float(getattr(info, name)), (format, name)
            assert format.epsilon == float(info.eps), format


def test_a_learners_own_format_is_a_row_like_the_others():
    mine = Format("mine", exponent_bits=4, significand_bits=7)
    assert (mine.bits, mine.bias, mine.max) == (12, 7, 255)
    assert mine == Format("mine", 4, 7)
    assert {mine: "kept"}[Format("mine", 4, 7)] == "kept"
    with pytest.raises(dataclasses.FrozenInstanceError):
        mine.exponent_bits = 5
    wide = Format("wide", exponent_bits=8, significand_bits=31)
    assert (wide.bits, wide.code_dtype) == (40, np.uint64)


def test_impossible_rows_are_refused_with_the_reason():
    for exponent_bits, significand_bits, specials, explanation in (
        (0, 0, Specials.IEEE, "expected exponent_bits .* got 0"),
        (40, 10, Specials.IEEE, "expected exponent_bits .* an integer from 2 to 11, got 40"),
        (5, 53, Specials.IEEE, "expected significand_bits .* got 53"),
        (5, -1, Specials.IEEE, "expected significand_bits .* got -1"),
        (5.0, 10, Specials.IEEE, "expected exponent_bits .* got 5.0"),
        (True, 10, Specials.IEEE, "expected exponent_bits .* got True"),
        (5, 0, Specials.IEEE, "infinity and NaN differ in the significand"),
        (11, 52, Specials.NONE, "do not fit in float64"),
    ):
        with pytest.raises(ValueError, match=explanation):
            Format("odd", exponent_bits, significand_bits, specials)
    with pytest.raises(ValueError, match="needs a NaN"):
        Format("odd", 8, 0, Specials.NONE, has_zero=False)


def test_holds_means_every_value_of_the_other(dtype_of):
    for outer, inner, held in (
        (FP32, FP16, True), (FP64, FP32, True), (FP16, BF16, False), (BF16, FP16, False), (FP16, FP16, True),
        (FP16, E5M2, True), (FP16, E4M3, True), (BF16, E8M0, True), (FP32, TF32, True), (E8M0, E2M1, False),
    ):  # fmt: skip
        assert outer.contains(inner) is held, (outer, inner)
        if inner.bits <= 16:
            with np.errstate(over="ignore", invalid="ignore"):
                values = np.arange(inner.codes).astype(inner.code_dtype).view(dtype_of(inner)).astype(np.float64)
                finite = values[np.isfinite(values)]
                kept = finite.astype(np.float32).astype(dtype_of(outer)).astype(np.float64)
            assert (kept == finite).all() == held, (outer, inner)


def test_one_block_by_hand():
    values = np.zeros(32)
    values[:4] = [12.0, 7.9, -3.0, 0.2]
    blocks = round_blocks(values, MXFP4)
    # 2^floor(log2 12) = 8, and the elements reach to 2^2 * 1.5: the scale is 8 / 4 = 2
    assert decode(blocks.scales, E8M0).tolist() == [2.0]
    assert decode(blocks.elements[0, :4], E2M1).tolist() == [6.0, 4.0, -1.5, 0.0]
    assert decode_blocks(blocks)[:4].tolist() == [12.0, 8.0, -3.0, 0.0]


def test_random_mx_blocks_as_gfloat(gfloat_row):
    def scale_rule(emax, block):  # OCP MX 6.3, with math.frexp instead of a logarithm
        return 2.0 ** (np.frexp(np.abs(block).max())[1] - 1 - emax)

    modes = {Rounding.NEAREST_EVEN: gfloat.RoundMode.TiesToEven, Rounding.TOWARD_ZERO: gfloat.RoundMode.TowardZero}
    mx = [row for row in BLOCK_FORMATS.values() if row.scale is E8M0]
    for format, (rounding, mode) in product(mx, modes.items()):
        rng = np.random.default_rng(format.element.bits)
        spread = rng.integers(-12, 3, size=(40, 32)) + rng.integers(-100, 100, size=(40, 1))
        values = np.ldexp(rng.uniform(-2, 2, (40, 32)), spread)
        oracle = gfloat.BlockFormatInfo(format.name, gfloat_row(format.element), 32, gfloat_row(E8M0))
        wanted = np.stack([gfloat.quantize_block(oracle, block, scale_rule, mode) for block in values])
        assert np.array_equal(decode_blocks(round_blocks(values, format, rounding)), wanted), (format, rounding)


def test_nvfp4_as_ml_dtypes(dtype_of):
    values = np.random.default_rng(4).normal(size=(100, 16)).astype(np.float32)
    largest = np.abs(values).max(-1)
    wanted = (largest / np.float32(6)).astype(dtype_of(E4M3)).astype(np.float64)
    blocks = round_blocks(values, NVFP4)
    assert np.array_equal(decode(blocks.scales, E4M3)[:, 0], wanted)
    scaled = values.astype(np.float64) / wanted[:, np.newaxis]
    assert np.array_equal(decode(blocks.elements, E2M1)[:, 0], scaled.astype(np.float32).astype(dtype_of(E2M1)))


def test_blocks_of_every_format():
    bits = {row.name: row.bits_per_value for row in BLOCK_FORMATS.values()}
    assert bits == {
        "MXFP8": 8.25, "MXFP8_E5M2": 8.25, "MXFP6": 6.25, "MXFP6_E3M2": 6.25, "MXFP4": 4.25, "NVFP4": 4.5
    }  # fmt: skip
    for format in BLOCK_FORMATS.values():
        assert (decode_blocks(round_blocks(np.zeros(2 * format.size), format)) == 0).all(), format
        nothing = round_blocks(np.zeros((3, 0)), format)
        assert nothing.elements.shape == (3, 0, format.size)
        assert decode_blocks(nothing).shape == (3, 0)
        tiny, huge = np.full(format.size, 2.0**-300), np.full(format.size, 2.0**300)
        assert (decode_blocks(round_blocks(tiny, format)) == 0).all(), format
        assert (decode_blocks(round_blocks(huge, format)) == format.scale.max * format.element.max).all(), format
        blocks = round_blocks(np.random.default_rng(5).normal(size=(7, 4 * format.size)), format)
        assert blocks.scales.shape == (7, 4)
        assert blocks.elements.shape == (7, 4, format.size)
        values = decode(blocks.elements, format.element)
        assert np.array_equal(round_to(values, format.element), values), format


def test_what_makes_no_block_is_refused():
    for values, explanation in (
        (np.ones(31), r"a multiple of 32, the block size of MXFP4, got shape \(31,\)"),
        (1.0, "a multiple of 32"),
        (np.full(32, np.inf), "an infinity or NaN"),
        (np.full(32, np.nan), "an infinity or NaN"),
    ):
        with pytest.raises(ValueError, match=explanation):
            round_blocks(values, MXFP4)
