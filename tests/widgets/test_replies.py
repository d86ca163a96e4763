"""What the replies of lessons 01, 02, 03 and 05 claim, computed again by numpy and torch, or by the emulator."""

import numpy as np
import pytest
import torch

from labkit.formats import FP16
from labkit.gemm import SPECS, emulate
from labkit.widgets import MmaBlock, predictions
from labkit.widgets.mma_block.errors import sum_errors

EVERY = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float64)


def says(id: str, choice: str, *texts: str) -> None:
    """Hold that the reply to this choice says each of these."""
    reply = predictions()[id].choices[choice]
    assert [text for text in texts if text not in reply] == []


# --- 01 and 02 ---


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


def test_overflow_begins_half_way_and_after_the_largest_code_comes_infinity() -> None:
    assert (half(65510), half(65519.99), half(65520)) == (65504, 65504, np.inf)
    assert EVERY[np.isfinite(EVERY)].max() == 65504 == 65536 - 32
    assert predictions()["numbers.overflow"].answer == "65504"
    says("numbers.overflow", "inf", "65536", "65520")
    assert (EVERY[0x7BFF], EVERY[0x7C00], EVERY[0x8000]) == (65504, np.inf, 0)
    assert np.isnan(EVERY[0x7C01])
    assert np.signbit(EVERY[0x8000])
    says("numbers.next_code", "NaN", "0x7C00 is infinity; 0x7C01 is the first")


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


def test_fp16_takes_half_the_bytes() -> None:
    sizes = [torch.ones(7, dtype=dtype).untyped_storage().nbytes() for dtype in (torch.float32, torch.float16)]
    assert sizes == [28, 14]
    assert predictions()["numbers.bytes"].answer == "14 GB"


def test_ties_go_to_even() -> None:
    assert (half(2049), half(2051)) == (2048, 2052)
    assert sorted(EVERY[(EVERY >= 2048) & (EVERY <= 2052)]) == [2048, 2050, 2052]
    assert predictions()["rounding.tie"].answer == "2048 and 2052"
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
    subnormal = EVERY[(EVERY > 0) & (EVERY < 2.0**-14)].astype(np.float16)
    assert (subnormal + np.float16(2.0**-24) != subnormal).all()


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


# --- 03 ---


def matrices(a: list[float], b: list[float], c: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return np.array([a]), np.array([b]).T, np.array([[c]])


def test_a_product_has_22_bits_and_is_no_fp16_number() -> None:
    assert float(emulate(*matrices([300.0], [300.0], 0.0), SPECS["V100"])[0, 0]) == 90_000
    with np.errstate(over="ignore"):
        assert np.isinf(np.float16(300) * np.float16(300))
        assert np.isinf(emulate(*matrices([300.0], [300.0], 0.0), SPECS["V100"], FP16))
    assert (2047 * 2047).bit_length() == 22
    assert predictions()["tensor.product"].answer == "90,000"
    says("tensor.product", "90,000", "all 22 bits", "Only a D in FP16 would overflow")


def test_how_far_an_fp32_accumulator_counts() -> None:
    for gpu, millions in (("V100", 16.8), ("A100", 33.6), ("H100", 67.1)):
        spec, stop = SPECS[gpu], 2.0 ** (SPECS[gpu].fraction_bits + 1)
        ones = [1.0] * spec.block_length
        at, below = (float(emulate(*matrices(ones, ones, c), spec)[0, 0]) for c in (stop, stop / 2))
        assert (at, below) == (stop, stop / 2 + spec.block_length)
        assert f"{stop / 1e6:.1f}" == str(millions)


def test_only_the_h100_finds_sixteen_times_2_to_the_minus_25() -> None:
    board = MmaBlock("1 and small terms", "V100", -25)
    assert {gpu for gpu, value in board.found.items() if value == 1 + 2.0**-21} == {"H100", "H200", "B200"}
    assert float(np.float32(1 + 2.0**-21)) == 1 + 2.0**-21  # which FP32 can hold beside 1
    total = np.float32(1)
    for _ in range(16):
        total += np.float32(2.0**-25)
    assert total == 1  # one after another in FP32 would lose them all
    assert predictions()["tensor.same"].answer == "the H100 only"


def test_a_batch_of_16_waits_for_memory_and_one_of_128_does_not() -> None:
    def layer(batch):
        return torch.empty(batch, 1024).half(), torch.empty(4096, 1024).half(), torch.empty(batch, 4096).half()

    def flop_per_byte(batch):
        return 2 * batch * 1024 * 4096 / sum(tensor.nbytes for tensor in layer(batch))

    assert round(flop_per_byte(16)) == 16
    assert flop_per_byte(128) > 100 > flop_per_byte(112)
    assert (2 * 16 * 1024 * 4096) // 10**6 == 134
    assert f"{layer(16)[1].nbytes / 1e6:.1f}" == "8.4"
    says("tensor.bound", "the multipliers", "134 million FLOP", "8.4 million bytes", "16 FLOP for each byte")


def test_a_v100_is_a_thousand_times_better_than_an_fp16_accumulator_and_errors_pile_up_with_blocks() -> None:
    last = {name: each[-1] for name, each in sum_errors([8192]).errors.items()}
    assert last["FP16, one by one"] > 1000 * last["V100"]
    assert last["V100"] < 2.0**-11
    assert last["V100"] / last["A100"] == pytest.approx(2, rel=0.2)  # twice the blocks
    assert last["A100"] / last["H100"] == pytest.approx(2, rel=0.2)


# --- 05 ---


def test_a_softmax_by_hand_ends_in_nan() -> None:
    z = np.array([12, 0], dtype=np.float16)
    with np.errstate(all="ignore"):
        powers = np.exp(z)
        by_hand = powers / powers.sum()
    assert np.isinf(powers[0])
    assert np.isnan(by_hand[0])
    assert by_hand[1] == 0
    assert predictions()["autocast.softmax"].answer == "(NaN, 0)"
    assert f"{np.exp(12.0):,.0f}" == "162,755"
    exact = np.exp([12.0, 0.0]) / np.exp([12.0, 0.0]).sum()
    assert [f"{p:.6f}" for p in exact] == ["0.999994", "0.000006"]
    says("autocast.softmax", "(1, 0)", "162,755", "(0.999994, 0.000006)", "65504")


def test_inf_raises_nothing_in_a_backward_pass() -> None:
    weight = torch.ones(2, requires_grad=True)
    ((weight.half() * 60000).float().sum() * 2.0**36).backward()
    assert weight.grad is not None
    assert weight.grad.isinf().all()
    before = weight.detach().clone()
    torch.optim.SGD([weight], lr=0.1).step()
    assert not weight.isfinite().any()
    assert before.isfinite().all()
    says("autocast.stage", "step", "write inf into the weights")
