"""A format is a row; everything else about it follows."""

import dataclasses
import math

import ml_dtypes
import numpy as np
import pytest

from labkit.formats import BF16, E2M1, E4M3, E5M2, E8M0, FORMATS, FP16, FP32, FP64, TF32, Format, Specials

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


def test_formats_differ_in_what_the_last_codes_mean():
    assert (E5M2.max, E5M2.infinity_code) == (57344, 0x7C)  # IEEE: the last exponent is given up
    assert (E4M3.max, E4M3.infinity_code, E4M3.nan_code) == (448, None, 0x7F)  # FN: one code is given up
    assert (E2M1.max, E2M1.nan_code) == (6, None)  # nothing is given up
    assert (E8M0.smallest_normal, E8M0.max, E8M0.sign_mask) == (2.0**-127, 2.0**127, 0)  # no sign, no zero


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
        (0, 0, Specials.IEEE, "exponent_bits is 0"),
        (40, 10, Specials.IEEE, "exponent_bits is 40, it must be a whole number from 2 to 11"),
        (5, 53, Specials.IEEE, "significand_bits is 53"),
        (5, -1, Specials.IEEE, "significand_bits is -1"),
        (5.0, 10, Specials.IEEE, "exponent_bits is 5.0"),
        (True, 10, Specials.IEEE, "exponent_bits is True"),
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
        assert outer.holds(inner) is held, (outer, inner)
        if inner.bits <= 16:
            with np.errstate(over="ignore", invalid="ignore"):
                values = np.arange(inner.codes).astype(inner.code_dtype).view(dtype_of(inner)).astype(np.float64)
                finite = values[np.isfinite(values)]
                kept = finite.astype(np.float32).astype(dtype_of(outer)).astype(np.float64)
            assert (kept == finite).all() == held, (outer, inner)
