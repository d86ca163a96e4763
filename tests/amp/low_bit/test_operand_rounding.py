"""Whole tensors in 8 and 4 bits: the numbers of gfloat, of ml_dtypes and of `round_blocks`."""

import itertools

import gfloat
import gfloat.formats as rows
import ml_dtypes
import numpy as np
import pytest
import torch

from labkit.amp.low_bit.operands import round_saturating, round_to_blocks
from labkit.formats import (
    BLOCK_FORMATS,
    E2M1,
    E2M3,
    E3M2,
    E4M3,
    E5M2,
    FP32,
    MXFP4,
    MXFP8,
    NVFP4,
    BlockFormat,
    decode,
    decode_blocks,
    round_blocks,
)

ELEMENTS = {
    E4M3: rows.format_info_ocp_e4m3,
    E5M2: rows.format_info_ocp_e5m2,
    E2M1: rows.format_info_ocp_e2m1,
    E2M3: rows.format_info_ocp_e2m3,
    E3M2: rows.format_info_ocp_e3m2,
}
DTYPES = {
    E4M3: ml_dtypes.float8_e4m3fn, E5M2: ml_dtypes.float8_e5m2, E2M1: ml_dtypes.float4_e2m1fn,
    E2M3: ml_dtypes.float6_e2m3fn, E3M2: ml_dtypes.float6_e3m2fn,
}  # fmt: skip
DEEPSEEK = BlockFormat("1x128", E4M3, FP32, 128)  # arXiv:2412.19437, 3.3.2


def around_every_code(format) -> np.ndarray:
    """Every finite value, every tie between two, and what lies one FP32 step beside them."""
    values = np.unique(decode(np.arange(format.codes), format))
    values = values[np.isfinite(values)].astype(np.float32)
    points = np.concatenate([values, (values[1:] + values[:-1]) / 2, [np.float32(3e38), np.float32(-1e9)]])
    return np.concatenate([points, *(np.nextafter(points, np.float32(way)) for way in (-np.inf, np.inf))])


def blocks_of(count: int, size: int, seed: int) -> np.ndarray:
    """Blocks of numbers of all sizes, as in training: beside each other 2^-24 to 1, and some zeros."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(-24, 1, (count, size)) + rng.integers(-60, 60, (count, 1))
    values = np.ldexp(rng.uniform(-2, 2, (count, size)), sizes).astype(np.float32)
    return np.where(rng.random((count, size)) < 0.05, np.float32(0), values)


def test_every_code_and_every_tie_as_gfloat_and_ml_dtypes() -> None:
    for format, row in ELEMENTS.items():
        points = around_every_code(format)
        ours = round_saturating(torch.from_numpy(points), format).numpy()
        theirs = gfloat.round_ndarray(row, points.astype(np.float64), gfloat.RoundMode.TiesToEven, sat=True)
        assert np.array_equal(ours, theirs), format
        inside = np.abs(points) <= format.max
        assert np.array_equal(ours[inside], points[inside].astype(DTYPES[format]).astype(np.float32)), format


@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(1, 4), marks=pytest.mark.slow)], ids=str)
def test_blocks_are_those_of_round_blocks(seeds) -> None:
    for seed, format in itertools.product(seeds, BLOCK_FORMATS.values()):
        values = blocks_of(10**4, format.size, seed)
        ours = round_to_blocks(torch.from_numpy(values), format).numpy()
        assert np.array_equal(ours, decode_blocks(round_blocks(values, format)).astype(np.float32)), (format.name, seed)


def test_a_scale_in_fp32_divides_in_fp32_as_ml_dtypes_and_numpy_do() -> None:
    values = blocks_of(10**4, DEEPSEEK.size, seed=3)
    scale = np.abs(values).max(-1, keepdims=True) / np.float32(448)
    wanted = (values / scale).clip(-448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * scale
    assert np.array_equal(round_to_blocks(torch.from_numpy(values), DEEPSEEK).numpy(), wanted)


def test_a_scale_that_is_rounded_up_is_the_least_that_saturates_nothing() -> None:
    for format in (MXFP8, MXFP4):
        values = blocks_of(60, format.size, seed=5)
        values[0], values[1] = 0, np.float32(2.0**-126)
        element = ELEMENTS[format.element]
        oracle = gfloat.BlockFormatInfo(format.name, element, format.size, rows.format_info_ocp_e8m0)

        def least(_, block, largest=element.max) -> float:  # by trying
            return next(2.0**e for e in range(-127, 128) if np.abs(block).max() <= largest * 2.0**e)

        wanted = [gfloat.quantize_block(oracle, block.astype(np.float64), least) for block in values]
        ours = round_to_blocks(torch.from_numpy(values), format, scale_up=True)
        assert np.array_equal(ours.numpy(), np.stack(wanted).astype(np.float32)), format.name


def test_a_square_tile_is_the_same_numbers_both_ways_and_edges_count_as_zeros() -> None:
    values = torch.randn(40, 50, generator=torch.Generator().manual_seed(0))
    square = round_to_blocks(values, NVFP4, (16, 16))
    assert torch.equal(round_to_blocks(values.T, NVFP4, (16, 16)).T, square)
    padded = torch.zeros(48, 64)
    padded[:40, :50] = values
    assert torch.equal(round_to_blocks(padded, NVFP4, (16, 16))[:40, :50], square)
    down = round_to_blocks(values, MXFP4, (32, 1))
    assert torch.equal(down, round_to_blocks(values.T.contiguous(), MXFP4).T)


def test_stochastic_rounding_goes_to_a_neighbour_as_often_as_the_distance_says() -> None:
    for format in ELEMENTS:
        values = torch.from_numpy(around_every_code(format)).clamp(-format.max, format.max)
        generator = torch.Generator().manual_seed(1)
        drawn = torch.stack([round_saturating(values, format, generator) for _ in range(400)]).double()
        codes = torch.from_numpy(np.unique(decode(np.arange(format.codes), format)))
        codes = codes[codes.isfinite()]
        place = torch.searchsorted(codes, values.double(), right=True).clamp(max=len(codes) - 1)
        below, above = codes[place - 1], codes[place]
        assert bool(((drawn == below) | (drawn == above) | (drawn == values.double())).all()), format
        # The mean of 400 draws is the value, within 5 standard deviations of at most half a step each.
        assert bool(((drawn.mean(0) - values.double()).abs() <= 5 * (above - below) / 2 / 20).all()), format
