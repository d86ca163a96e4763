"""What the replies of lessons 01 and 02 claim, computed again by numpy and torch."""

from __future__ import annotations

import numpy as np
import torch

from labkit.widgets import predictions

EVERY = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float64)


def says(id: str, choice: str, *texts: str) -> None:
    """Hold that the reply to this choice says each of these."""
    reply = predictions()[id].choices[choice]
    assert [text for text in texts if text not in reply] == []


def half(x: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float16(x))


def test_exponent_bits_are_counted_right() -> None:
    assert torch.finfo(torch.float16).bits == 1 + 5 + 10
    assert torch.finfo(torch.float16).max == 2.0 ** (2**4 - 1) * (2 - 2.0**-10)
    # With 4 bits the bias is 7 and the last exponent field is set aside: the largest exponent is 7.
    assert round((2 - 2.0**-11) * 2.0**7) == 256
    says("numbers.exponent_bits", "4", "256")
    says("numbers.exponent_bits", "5", "1 + 5 + 10", "256")
    assert (torch.finfo(torch.bfloat16).bits, torch.finfo(torch.bfloat16).eps) == (1 + 8 + 7, 2.0**-7)
    says("numbers.exponent_bits", "8", "8 bits of exponent, and 7 bits are left")


def test_overflow_begins_half_way() -> None:
    assert (half(65510), half(65519.99), half(65520)) == (65504, 65504, np.inf)
    assert EVERY[np.isfinite(EVERY)].max() == 65504 == 65536 - 32
    assert predictions()["numbers.overflow"].answer == "65504"
    says("numbers.overflow", "inf", "65536", "65520")


def test_underflow_is_gradual() -> None:
    steps = half(3e-5) / 2.0**-24
    assert steps == 503
    assert f"{half(3e-5):.4g}" == "2.998e-05"
    assert int(steps).bit_length() == 9
    for choice in ("0", "6.1e-5", "almost 3e-5"):
        says("numbers.underflow", choice, "503" if choice != "almost 3e-5" else "nine significant bits")


def test_between_powers_of_two_lie_as_many_numbers() -> None:
    for low in (1.0, 1024.0):
        assert sum(low <= value < 2 * low for value in EVERY) == 1024
    whole = EVERY[(EVERY >= 1024) & (EVERY < 2048)]
    assert sorted(whole) == list(range(1024, 2048))
    # A ruler with the marks of [1, 2) would have this many from 1024 to 2048.
    assert 1024 / 2.0**-10 == 1_048_576
    says("numbers.between", "1,024 and 1,024", "whole numbers")


def test_after_the_largest_code_comes_infinity() -> None:
    assert (EVERY[0x7BFF], EVERY[0x7C00]) == (65504, np.inf)
    assert np.isnan(EVERY[0x7C01])
    assert EVERY[0x8000] == 0
    assert np.signbit(EVERY[0x8000])
    says("numbers.next_code", "NaN", "0x7C00 is infinity; 0x7C01 is the first")


def test_fp16_takes_half_the_bytes() -> None:
    sizes = [torch.ones(7, dtype=dtype).untyped_storage().nbytes() for dtype in (torch.float32, torch.float16)]
    assert sizes == [28, 14]
    assert predictions()["numbers.bytes"].answer == "14 GB"


def test_ties_go_to_even() -> None:
    assert (half(2049), half(2051)) == (2048, 2052)
    assert sorted(EVERY[(EVERY >= 2048) & (EVERY <= 2052)]) == [2048, 2050, 2052]
    assert predictions()["rounding.tie"].answer == "2048 and 2052"


def test_2048_plus_1_is_2048_and_2050_plus_1_is_2052() -> None:
    one = np.float16(1)
    assert np.float16(2048) + one == 2048
    assert np.float16(2050) + one == 2052
    assert [int(np.float16(x).view(np.uint16)) & 1 for x in (2048, 2050)] == [0, 1]
    says("rounding.whole", "2050", "(2050 + 1 does go up, to 2052.)")


def test_a_thousand_updates_are_swallowed() -> None:
    weight = np.float16(1)
    for _ in range(1000):
        weight = weight - np.float16(2.0**-12)
    assert weight == 1
    assert f"{1 - 1000 * 2.0**-12:.3f}" == "0.756"
    assert np.nextafter(np.float16(1), np.float16(0)) == 1 - 2.0**-11
    says("rounding.swallowed", "at 1", "half-way between 1 - 2^-11 and 1")


def test_the_rule_holds_for_every_weight_upwards_and_downwards() -> None:
    weights = EVERY[(EVERY >= 2.0**-4) & (EVERY < 2.0**11)]
    for sign in (1, -1):
        for ratio, lost in ((2047.9, False), (4096.1, True)):
            after = (weights + sign * weights / ratio).astype(np.float16)  # numpy rounds a float64 once
            assert ((after == weights) == lost).all()
        for ratio in (2500.0, 3500.0):
            assert 0 < ((weights + weights / ratio).astype(np.float16) == weights).mean() < 1


def test_the_rule_holds_for_subnormal_weights_too() -> None:
    weights = EVERY[(EVERY > 0) & (EVERY < 2.0**-14)].astype(np.float16)
    assert (weights + np.float16(2.0**-24) != weights).all()
    assert float(weights.max()) / 2.0**-24 < 2048


def test_chance_is_right_in_the_mean() -> None:
    lower, upper = 1.0, 1 + 2.0**-10
    part = (1 + 2.0**-12 - lower) / (upper - lower)
    assert part == 1 / 4
    assert (1 - part) * lower + part * upper == 1 + 2.0**-12
    assert (lower + upper) / 2 == 1 + 2.0**-11
    says("rounding.stochastic", "about 1 + 2^-11", "half of 2^-10", "1/4")


def test_an_epsilon_of_1e_8_is_zero() -> None:
    x = torch.zeros(3, dtype=torch.float16)
    assert (x / (x.norm() + 1e-8)).isnan().all()
    assert (x.float() / (x.float().norm() + 1e-8) == 0).all()
    assert half(1e-8) == half(2.9e-8) == 0 < half(3e-8)
    assert (torch.ones(1).half() / x[:1]).item() == np.inf
    says("rounding.epsilon", "NaN", "what is below 3e-8 becomes 0")
