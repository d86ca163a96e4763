"""Block formats against gfloat's."""

from itertools import product

import gfloat
import numpy as np
import pytest

from labkit.formats import (
    BLOCK_FORMATS,
    E2M1,
    E4M3,
    E8M0,
    MXFP4,
    NVFP4,
    Rounding,
    decode,
    decode_blocks,
    round_blocks,
    round_to,
)


def test_one_block_by_hand():
    values = np.zeros(32)
    values[:4] = [12.0, 7.9, -3.0, 0.2]
    blocks = round_blocks(values, MXFP4)
    # 2^floor(log2 12) = 8, and the elements reach to 2^2 * 1.5: the scale is 8 / 4 = 2
    assert decode(blocks.scales, E8M0).tolist() == [2.0]
    assert decode(blocks.elements[0, :4], E2M1).tolist() == [6.0, 4.0, -1.5, 0.0]
    assert decode_blocks(blocks)[:4].tolist() == [12.0, 8.0, -3.0, 0.0]


def test_an_nvfp4_block_by_hand():
    values = np.zeros(16)
    values[:3] = [10.0, 5.0, 0.3]
    blocks = round_blocks(values, NVFP4)
    assert decode(blocks.scales, E4M3).tolist() == [1.625]  # 10 / 6 = 1.667, between 1.625 and 1.75
    assert decode(blocks.elements[0, :3], E2M1).tolist() == [6.0, 3.0, 0.0]
    assert decode_blocks(blocks)[:2].tolist() == [9.75, 4.875]


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
        (np.ones(31), r"MXFP4 takes blocks of 32 values; the last axis of shape \(31,\)"),
        (1.0, "takes blocks of 32 values"),
        (np.full(32, np.inf), "an infinity or NaN"),
        (np.full(32, np.nan), "an infinity or NaN"),
    ):
        with pytest.raises(ValueError, match=explanation):
            round_blocks(values, MXFP4)
