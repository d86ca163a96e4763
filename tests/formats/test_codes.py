"""Codes and values: every code of every small format, against oracles."""

import gfloat
import numpy as np
import pytest

from labkit.formats import (
    BF16,
    E2M1,
    E4M3,
    E8M0,
    FORMATS,
    FP16,
    FP32,
    FP64,
    TF32,
    Format,
    decode,
    encode,
    join,
    split,
)

SMALL = [row for row in FORMATS.values() if row.bits <= 16]
MINE = Format("mine", exponent_bits=4, significand_bits=7)


def test_one_code_worked_out_by_hand():
    # 0x3555 = 0 01101 0101010101: 2^(13 - 15) * (1 + 341/1024), the FP16 value nearest to 1/3
    assert split(0x3555, FP16) == (0, 13, 341)
    assert decode(0x3555, FP16) == 2.0**-2 * (1 + 341 / 1024) == 0.333251953125
    assert encode(0.333251953125, FP16) == 0x3555
    assert join(0, 13, 341, FP16) == 0x3555


def test_every_code_decodes_as_ml_dtypes_and_gfloat_decode_it(dtype_of, gfloat_row, assert_same_bits):
    for format in (*SMALL, MINE, TF32):
        codes = np.arange(format.codes).astype(format.code_dtype)
        values = decode(codes, format)
        assert_same_bits(values, gfloat.decode_ndarray(gfloat_row(format), codes.astype(int)), codes, format)
        if format in SMALL:
            with np.errstate(invalid="ignore"):  # signalling NaNs
                assert_same_bits(values, codes.view(dtype_of(format)).astype(np.float64), codes, format)


def test_encode_undoes_decode_join_undoes_split_and_all_nans_become_one():
    for format in (*SMALL, MINE, TF32):
        codes = np.arange(format.codes)
        values = decode(codes, format)
        assert np.array_equal(encode(values, format), np.where(np.isnan(values), format.nan_code or 0, codes)), format
        assert np.array_equal(join(*split(codes, format), format), codes), format


def test_random_wide_codes_are_the_machines_own(assert_same_bits):
    for format, native in ((FP32, np.float32), (FP64, np.float64)):
        codes = np.random.default_rng(3).integers(format.codes, size=500_000, dtype=np.uint64)
        codes = codes.astype(format.code_dtype)
        with np.errstate(invalid="ignore"):
            wanted = codes.view(native).astype(np.float64)
        assert_same_bits(decode(codes, format), wanted, codes, format)
        known = ~np.isnan(wanted)
        assert np.array_equal(encode(wanted[known], format), codes[known]), format


def test_shapes_are_kept_and_memory_layout_does_not_matter():
    assert decode(0x3C00, FP16).shape == decode(np.uint16(0x3C00), FP16).shape == ()
    assert decode([], FP16).shape == (0,)
    assert encode([], FP16).dtype == np.uint16
    grid = np.arange(12).reshape(3, 4)
    assert np.array_equal(decode(grid[:, ::2].T, FP16), decode(grid, FP16)[:, ::2].T)
    assert np.array_equal(encode(np.eye(3)[::-1, ::2], E4M3), encode(np.eye(3), E4M3)[::-1, ::2])
    assert decode(np.array([0x3C00], ">u2"), FP16) == 1.0, "big-endian"


def test_encode_refuses_what_the_format_does_not_hold():
    for value, format, explanation in (
        (0.1, FP16, r"0\.1 is no FP16 value; the nearest is 0\.0999755859375\. Round first: encode\(round_to"),
        (65520.0, FP16, "65520.0 is no FP16 value; the nearest is inf"),
        (np.inf, E4M3, "inf is no E4M3 value"),
        (0.0, E8M0, "0.0 is no E8M0 value"),
        (-1.0, E8M0, "-1.0 is no E8M0 value"),
        (np.nan, E2M1, "E2M1 has no NaN"),
        (2**53 + 1, FP64, "whole numbers beyond 2\\^53"),
    ):
        with pytest.raises(ValueError, match=explanation):
            encode([1.0, value] if isinstance(value, float) else value, format)


def test_a_nan_payload_is_not_kept():
    payload = np.array([0x7C01, 0xFFFF], np.uint16).view(np.float16)
    assert encode(payload, FP16).tolist() == [0x7E00, 0x7E00]
    assert encode(-np.nan, BF16) == 0x7FC0


def test_decode_and_join_refuse_what_is_no_code():
    for codes, error, explanation in (
        (0x10000, ValueError, "FP16 codes have 16 bits: 0 to 0xffff; it was given 0x10000"),
        (-1, ValueError, "it was given -0x1"),
        (1.0, TypeError, r"encode\(values, format\) makes codes of values"),
        ("0x3c00", TypeError, r"parse\(text, format\) of text"),
        (2**64, TypeError, "whole numbers"),
        ([True], TypeError, "it was given bool"),
    ):
        with pytest.raises(error, match=explanation):
            decode(codes, FP16)
    with pytest.raises(ValueError, match="the exponent field of FP16 has 5 bits: 0 to 0x1f; it was given 0x20"):
        join(0, 32, 0, FP16)
