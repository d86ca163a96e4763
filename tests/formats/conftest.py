"""Oracles for number formats: labkit's formats in gfloat, ml_dtypes and numpy."""

import gfloat
import ml_dtypes
import numpy as np
import pytest

from labkit.formats import (
    BF16,
    E2M1,
    E2M3,
    E3M2,
    E4M3,
    E5M2,
    E8M0,
    FP16,
    FP32,
    FP64,
    Rounding,
    Specials,
)

DTYPES = {
    FP64: np.float64,
    FP32: np.float32,
    FP16: np.float16,
    BF16: ml_dtypes.bfloat16,
    E5M2: ml_dtypes.float8_e5m2,
    E4M3: ml_dtypes.float8_e4m3fn,
    E3M2: ml_dtypes.float6_e3m2fn,
    E2M3: ml_dtypes.float6_e2m3fn,
    E2M1: ml_dtypes.float4_e2m1fn,
    E8M0: ml_dtypes.float8_e8m0fnu,
}
GFLOAT_MODES = {
    Rounding.NEAREST_EVEN: gfloat.RoundMode.TiesToEven,
    Rounding.NEAREST_AWAY: gfloat.RoundMode.TiesToAway,
    Rounding.TOWARD_ZERO: gfloat.RoundMode.TowardZero,
    Rounding.TOWARD_POSITIVE: gfloat.RoundMode.TowardPositive,
    Rounding.TOWARD_NEGATIVE: gfloat.RoundMode.TowardNegative,
}


def _gfloat_row(format):
    nans = {Specials.IEEE: 2**format.significand_bits - 1, Specials.FN: 1, Specials.NONE: 0}[
        format.specials
    ]
    return gfloat.FormatInfo(
        name=format.name,
        k=format.bits,
        precision=format.significand_bits + 1,
        bias=2 ** (format.exponent_bits - 1) - 1,
        is_signed=format.signed,
        domain=gfloat.Domain.Extended if format.specials is Specials.IEEE else gfloat.Domain.Finite,
        has_nz=format.signed,
        num_high_nans=nans,
        has_subnormals=format.has_zero,
        is_twos_complement=False,
    )


@pytest.fixture
def gfloat_row():
    """Return a function that makes gfloat's FormatInfo of a format."""
    return _gfloat_row


@pytest.fixture
def gfloat_round():
    """Return a function that rounds values to a format by gfloat, in float64."""

    def rounder(values, format, rounding=Rounding.NEAREST_EVEN, saturate=False):
        row = _gfloat_row(format)
        wide = np.asarray(values, np.float64)
        with np.errstate(over="ignore"):
            return gfloat.round_ndarray(row, wide, GFLOAT_MODES[rounding], sat=saturate)

    return rounder


@pytest.fixture
def dtype_of():
    """Return a function from a format to the numpy or ml_dtypes type that stores it."""
    return DTYPES.__getitem__


@pytest.fixture
def assert_same_bits():
    """Return a function that asserts that two float arrays have equal bits; all NaNs are equal."""

    def check(got, wanted, operands=None, *case):
        """Compare two arrays; `operands` and `case` are in the message of a failure."""
        assert got.shape == wanted.shape, case
        assert got.dtype == wanted.dtype, case
        differ = (got.view(f"u{got.itemsize}") != wanted.view(f"u{got.itemsize}")) & ~(
            np.isnan(got) & np.isnan(wanted)
        )
        first = np.flatnonzero(differ)[:3]
        shown = [] if operands is None else operands.ravel()[first]
        summary = f"{case}: {differ.sum()} differ: {shown}"
        assert not len(first), f"{summary} gave {got.ravel()[first]}, not {wanted.ravel()[first]}"

    return check
