"""Rounding of operands to 8 and 4 bits, one by one and in blocks, by gfloat and ml_dtypes."""

import itertools

import gfloat
import numpy as np
import pytest
import torch

from labkit.amp.low_bit.operands import rotate, round_saturating, round_to_blocks
from labkit.formats import BLOCK_FORMATS, E4M3, FP16, MXFP8, decode, decode_blocks, round_blocks
from tests.amp.low_bit.test_products import ELEMENTS


def around_every_code(format) -> np.ndarray:
    """Return every finite value, every tie between two, and their neighbours in FP32.

    Two numbers beyond the range of all formats are among them.
    """
    values = np.unique(decode(np.arange(format.codes), format))
    values = values[np.isfinite(values)].astype(np.float32)
    points = np.concatenate(
        [values, (values[1:] + values[:-1]) / 2, [np.float32(3e38), np.float32(-1e9)]]
    )
    return np.concatenate(
        [points, *(np.nextafter(points, np.float32(limit)) for limit in (-np.inf, np.inf))]
    )


def blocks_of(count: int, size: int, seed: int) -> np.ndarray:
    """Return blocks whose magnitudes vary as in training.

    Inside a block they spread over 2^-24 to 1, between blocks over 2^-60 to 2^60; a twentieth of
    the numbers are zeros.
    """
    rng = np.random.default_rng(seed)
    sizes = rng.integers(-24, 1, (count, size)) + rng.integers(-60, 60, (count, 1))
    values = np.ldexp(rng.uniform(-2, 2, (count, size)), sizes).astype(np.float32)
    return np.where(rng.random((count, size)) < 0.05, np.float32(0), values)


def test_codes_and_ties_round_as_in_gfloat_and_ml_dtypes() -> None:
    for format, (row, dtype) in ELEMENTS.items():
        points = around_every_code(format)
        ours = round_saturating(torch.from_numpy(points), format).numpy()
        theirs = gfloat.round_ndarray(
            row, points.astype(np.float64), gfloat.RoundMode.TiesToEven, sat=True
        )
        assert np.array_equal(ours, theirs), format
        inside = np.abs(points) <= format.max
        assert np.array_equal(ours[inside], points[inside].astype(dtype).astype(np.float32)), format


@pytest.mark.parametrize(
    "seeds", [range(1), pytest.param(range(1, 4), marks=pytest.mark.slow)], ids=str
)
def test_blocks_round_as_in_round_blocks(seeds) -> None:
    for seed, format in itertools.product(seeds, BLOCK_FORMATS.values()):
        values = blocks_of(10**4, format.size, seed)
        ours = round_to_blocks(torch.from_numpy(values), format).numpy()
        assert np.array_equal(
            ours, decode_blocks(round_blocks(values, format)).astype(np.float32)
        ), (format.name, seed)


def test_mean_of_stochastic_rounding_is_the_value() -> None:
    for format in ELEMENTS:
        values = torch.from_numpy(around_every_code(format)).clamp(-format.max, format.max)
        generator = torch.Generator().manual_seed(1)
        drawn = torch.stack(
            [round_saturating(values, format, generator) for _ in range(400)]
        ).double()
        codes = torch.from_numpy(np.unique(decode(np.arange(format.codes), format)))
        codes = codes[codes.isfinite()]
        index = torch.searchsorted(codes, values.double(), right=True).clamp(max=len(codes) - 1)
        below = codes[index - 1]
        above = codes[index]
        assert bool(((drawn == below) | (drawn == above) | (drawn == values.double())).all()), (
            format
        )
        # A draw deviates by at most half a step, so the mean of 400 by half a step / sqrt(400):
        # five standard deviations are allowed.
        assert bool(
            ((drawn.mean(0) - values.double()).abs() <= 5 * (above - below) / 2 / 20).all()
        ), format


def test_rotation_refuses_an_axis_that_is_not_of_a_matrix() -> None:
    for axis in (0, 1, -3):
        with pytest.raises(ValueError, match=f"expected -1 or -2, one of a matrix, got {axis}"):
            rotate(torch.ones(16, 16), axis)


def test_rounding_refuses_values_that_are_not_in_fp32() -> None:
    for dtype in (torch.float64, torch.float16, torch.int32, torch.complex64):
        values = torch.ones(2, 32, dtype=dtype)
        with pytest.raises(TypeError, match=f"expected a tensor in torch.float32, got {dtype}"):
            round_saturating(values, E4M3)
        with pytest.raises(TypeError, match=f"expected a tensor in torch.float32, got {dtype}"):
            round_to_blocks(values, MXFP8)
        with pytest.raises(TypeError, match="tensor: expected a tensor in"):
            rotate(values, -1)


def test_rounding_refuses_a_format_that_fp32_cannot_round_to() -> None:
    values = torch.tensor([0.0, 1 / 3, -70000.0, 2.0**-24])
    assert round_saturating(values, FP16).tolist() == values.clamp(-65504, 65504).half().tolist()
    for format in ("FP64", "FP32", "TF32", "BF16", "E8M0"):
        with pytest.raises(ValueError, match=f"at most the bits of FP16, got {format}"):
            round_saturating(values, format)


def test_rounding_in_blocks_refuses_what_has_no_tiles() -> None:
    for shape in ((), (32,)):
        with pytest.raises(ValueError, match="values: expected matrices, got shape"):
            round_to_blocks(torch.ones(shape), MXFP8)
        with pytest.raises(ValueError, match="tensor: expected matrices, got shape"):
            rotate(torch.ones(shape), -1)
    for tile in ((0, 32), (1, -1), 32, (1.0, 32), (1, 32, 1)):
        with pytest.raises(ValueError, match="tile: expected 1 row and 1 column or more"):
            round_to_blocks(torch.ones(2, 32), MXFP8, tile)
