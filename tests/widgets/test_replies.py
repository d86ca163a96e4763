"""Claims in the replies to predictions, computed by numpy, torch, the emulator or real runs.

Each test is named after its lesson.
"""

import re

import numpy as np
import pytest
import torch

from labkit.amp import RECIPES
from labkit.course import lessons
from labkit.formats import FP16
from labkit.gemm import SPECS, emulate
from labkit.instrument import fate, merge, underflow, zeros_inside
from labkit.train import TASKS, TrainingRun, gradient_snapshot, scattered_digits
from labkit.widgets import MmaBlock, predictions, recorded_trace
from labkit.widgets.mma_block.errors import sum_errors

EVERY = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float64)
ONE = np.float16(1)


def assert_reply_says(id: str, choice: str, *texts: str) -> None:
    """Assert that the reply to a choice contains each text."""
    reply = predictions()[id].choices[choice]
    assert [text for text in texts if text not in reply] == []


def right(id: str) -> str:
    return predictions()[id].answer


def half(x: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float16(x))


def test_01_exponent_bits() -> None:
    assert torch.finfo(torch.float16).bits == 1 + 5 + 10
    assert torch.finfo(torch.float16).max == 2.0 ** (2**4 - 1) * (2 - 2.0**-10)
    # With 4 bits the bias is 7, and the last exponent is that of infinity and NaN: the largest
    # exponent is 7.
    assert round((2 - 2.0**-11) * 2.0**7) == 256
    assert_reply_says("numbers.exponent_bits", "4", "256")
    assert_reply_says("numbers.exponent_bits", "5", "1 + 5 + 10", "256")
    assert torch.finfo(torch.bfloat16).bits == 1 + 8 + 7
    assert torch.finfo(torch.bfloat16).eps == 2.0**-7
    assert_reply_says("numbers.exponent_bits", "8", "8 bits of exponent, and 7 bits are left")


def test_01_overflow_begins_at_65520() -> None:
    assert half(65510) == 65504
    assert half(65519.99) == 65504
    assert half(65520) == np.inf
    assert EVERY[np.isfinite(EVERY)].max() == 65504
    assert right("numbers.overflow") == "65504"
    assert_reply_says("numbers.overflow", "inf", "65536", "65520")


def test_01_codes_after_the_largest_number() -> None:
    assert (EVERY[0x7BFF], EVERY[0x7C00], EVERY[0x8000], np.signbit(EVERY[0x8000])) == (
        65504,
        np.inf,
        0,
        True,
    )
    assert np.isnan(EVERY[0x7C01])
    assert_reply_says("numbers.next_code", "NaN", "0x7C00 is infinity; 0x7C01 is the first")


def test_01_gradual_underflow() -> None:
    steps = half(3e-5) / 2.0**-24
    assert steps == 503
    assert int(steps).bit_length() == 9
    assert f"{half(3e-5):.4g}" == "2.998e-05"
    assert_reply_says("numbers.underflow", "0", "503")
    assert_reply_says("numbers.underflow", "6.1e-5", "503")
    assert_reply_says("numbers.underflow", "almost 3e-5", "nine significant bits")


def test_01_numbers_between_powers_of_two() -> None:
    for low in (1.0, 1024.0):
        assert sum(low <= value < 2 * low for value in EVERY) == 1024
    assert sorted(EVERY[(EVERY >= 1024) & (EVERY < 2048)]) == list(range(1024, 2048))
    assert_reply_says("numbers.between", "1,024 and 1,024", "whole numbers")
    assert ((EVERY > 0) & (EVERY < 1)).sum() == 15_359


def test_01_bytes_of_a_network() -> None:
    weights = 7 * 10**9
    gigabytes = weights * torch.float16.itemsize / 10**9
    assert right("numbers.bytes") == f"{gigabytes:.0f} GB"
    assert_reply_says("numbers.bytes", "14 GB", "Two bytes instead of four")


def test_02_ties_go_to_even() -> None:
    assert half(2049) == 2048
    assert half(2051) == 2052
    assert sorted(EVERY[(EVERY >= 2048) & (EVERY <= 2052)]) == [2048, 2050, 2052]
    assert right("rounding.tie") == "2048 and 2052"
    assert [np.float16(x) + ONE for x in (2048, 2050)] == [2048, 2052]
    assert_reply_says("rounding.whole", "2050", "(2050 + 1 does go up, to 2052.)")


def test_02_a_thousand_updates_are_swallowed() -> None:
    weight = ONE
    for _ in range(1000):
        weight = weight - np.float16(2.0**-12)
    assert weight == 1
    assert f"{1 - 1000 * 2.0**-12:.3f}" == "0.756"
    assert np.nextafter(ONE, np.float16(0)) == 1 - 2.0**-11
    assert_reply_says("rounding.swallowed", "at 1", "half-way between 1 - 2^-11 and 1")
    assert_reply_says("rounding.stochastic", "about 1 + 2^-11", "half of 2^-10", "1/4")


def test_02_rule_of_swallowed_updates_holds_for_every_weight() -> None:
    weights = EVERY[(EVERY >= 2.0**-4) & (EVERY < 2.0**11)]
    for sign in (1, -1):
        for ratio, lost in ((2047.9, False), (4096.1, True)):
            # numpy rounds the float64 result once.
            after = (weights + sign * weights / ratio).astype(np.float16)
            assert ((after == weights) == lost).all()
        for ratio in (2500.0, 3500.0):
            assert 0 < ((weights + weights / ratio).astype(np.float16) == weights).mean() < 1
    subnormal = EVERY[(EVERY > 0) & (EVERY < 2.0**-14)].astype(np.float16)
    assert (subnormal + np.float16(2.0**-24) != subnormal).all()


def test_02_an_epsilon_of_1e_8_is_zero() -> None:
    x = torch.zeros(3, dtype=torch.float16)
    assert (x / (x.norm() + 1e-8)).isnan().all()
    assert (x.float() / (x.float().norm() + 1e-8) == 0).all()
    assert half(1e-8) == half(2.9e-8) == 0 < half(3e-8)
    assert (torch.ones(1).half() / x[:1]).item() == np.inf
    assert_reply_says("rounding.epsilon", "NaN", "what is below 3e-8 becomes 0")


def product(a: list[float], b: list[float], c: float, gpu: str, out: object = None) -> float:
    """Return a row times a column plus c on the Tensor Core of a GPU."""
    arguments = np.array([a]), np.array([b]).T, np.array([[c]]), SPECS[gpu]
    return float(emulate(*arguments, *([out] if out else []))[0, 0])


def test_03_a_product_has_22_bits() -> None:
    assert product([300.0], [300.0], 0.0, "V100") == 90_000
    assert product([300.0], [300.0], 0.0, "V100", FP16) == np.inf
    assert (2047 * 2047).bit_length() == 22
    assert right("tensor.product") == "90,000"
    assert_reply_says("tensor.product", "90,000", "all 22 bits", "Only a D in FP16 would overflow")


@pytest.mark.parametrize(("gpu", "millions"), [("V100", 16.8), ("A100", 33.6), ("H100", 67.1)])
def test_03_a_sum_of_ones_stops_at_the_stated_number(gpu: str, millions: float) -> None:
    stop = 2.0 ** (SPECS[gpu].fraction_bits + 1)
    ones = [1.0] * SPECS[gpu].block_length
    assert product(ones, ones, stop, gpu) == stop
    assert product(ones, ones, stop / 2, gpu) == stop / 2 + len(ones)
    assert f"{stop / 1e6:.1f}" == str(millions)
    (text,) = [each.text for each in lessons() if each.name == "03_tensor_cores"]
    assert re.search(rf"an? {gpu}\s(# )?(counts )?to {millions}", text.read_text(encoding="utf-8"))


def test_03_hopper_and_later_keep_sixteen_tiny_terms() -> None:
    board = MmaBlock("1 and small terms", "V100", -25)
    assert {gpu for gpu, value in board.found.items() if value == 1 + 2.0**-21} == {
        "H100",
        "H200",
        "B200",
    }
    total = np.float32(1)
    for _ in range(16):
        total += np.float32(2.0**-25)
    # Added one after the other in FP32, all small terms are lost.
    assert total == 1
    assert np.float32(1 + 2.0**-21) != 1
    assert right("tensor.same") == "the H100 only"


def test_03_errors_of_long_sums() -> None:
    last = {name: errors[-1] for name, errors in sum_errors([8192]).errors.items()}
    assert last["FP16, one by one"] > 1000 * last["V100"]
    assert last["V100"] < 2.0**-11
    # The V100 has twice as many blocks, and rounds after each.
    assert last["V100"] / last["A100"] == pytest.approx(2, rel=0.2)
    assert last["A100"] / last["H100"] == pytest.approx(2, rel=0.2)


def test_03_a_batch_of_16_waits_for_memory() -> None:
    def flop_per_byte(batch):
        return 2 * batch * 1024 * 4096 / (2 * (batch * 1024 + 4096 * 1024 + batch * 4096))

    assert round(flop_per_byte(16)) == 16
    assert flop_per_byte(128) > 100
    assert flop_per_byte(112) < 100
    assert (2 * 16 * 1024 * 4096) // 10**6 == 134
    assert f"{2 * 4096 * 1024 / 1e6:.1f}" == "8.4"
    assert_reply_says(
        "tensor.bound",
        "the multipliers",
        "134 million FLOP",
        "8.4 million bytes",
        "16 FLOP for each byte",
    )


def test_05_a_softmax_by_hand_ends_in_nan() -> None:
    z = np.array([12, 0], dtype=np.float16)
    with np.errstate(all="ignore"):
        by_hand = np.exp(z) / np.exp(z).sum()
    np.testing.assert_array_equal(by_hand, [np.nan, 0])
    assert right("autocast.softmax") == "(NaN, 0)"
    powers = np.exp([12.0, 0.0])
    assert [f"{powers[0]:,.0f}", *(f"{p:.6f}" for p in powers / powers.sum())] == [
        "162,755",
        "0.999994",
        "0.000006",
    ]
    assert_reply_says("autocast.softmax", "(1, 0)", "162,755", "(0.999994, 0.000006)", "65504")


def test_05_a_step_writes_inf_into_the_weights() -> None:
    weight = torch.ones(2, requires_grad=True)
    ((weight.half() * 60000).float().sum() * 2.0**36).backward()
    assert weight.grad is not None
    assert weight.grad.isinf().all()
    torch.optim.SGD([weight], lr=0.1).step()
    assert not weight.isfinite().any()
    assert_reply_says("autocast.stage", "step", "write inf into the weights")


def test_06_steps_of_the_shipped_scaler_below_the_safe_scales() -> None:
    """In these steps of the recorded trace, 2^16 loses more than 1% of the gradients."""
    loses = np.array(recorded_trace().keeps_from) > 16
    assert np.flatnonzero(~loses).max() + 1 == 379
    assert loses.sum() == 1651
    assert_reply_says(
        "scaling.shipped", "about a third", "from step 379 on it stays above: 1,651 steps in all"
    )


def test_06_a_quotient_in_fp16_becomes_0() -> None:
    arrived = np.float16(2.0**-27 * 2**10)
    assert np.float32(arrived / np.float16(2**10)) == 0
    assert np.float32(arrived) / 2**10 == 2.0**-27
    assert_reply_says("scaling.order", "0", "2^-27 is nearer to 0 than to 2^-24")


def test_06_a_scale_of_2_to_the_40_overflows() -> None:
    assert half(2.0**-20 * 2.0**40) == np.inf
    assert_reply_says(
        "scaling.too_high", "gradients turn into inf", "2^-20 times 2^40 is 2^20, and that is inf"
    )


def test_06_the_mean_of_a_batch_divides_by_552_960() -> None:
    pixels = scattered_digits().train_targets[0].numel()
    assert TASKS["segmentation"].batch_size * pixels == 552_960
    assert_reply_says("scaling.lost", "most of them", "The mean divides by 552,960")


def test_06_most_gradients_of_segmentation_underflow() -> None:
    run = TrainingRun(TASKS["segmentation"], RECIPES["FP16"])
    histogram = merge(gradient_snapshot(run).layers.values())
    assert fate(histogram, FP16).underflowed > 0.5
    assert right("scaling.lost") == "most of them"


def test_04_zeros_of_digits_are_zeros_in_fp32() -> None:
    run = TrainingRun(TASKS["digits"], RECIPES["FP16"])
    weights = "weight gradients"
    assert f"{zeros_inside(run.next_gradients(weights)):.0%}" == "24%"
    assert zeros_inside(run.fp32_twin().next_gradients(weights)) > 0.23
    assert_reply_says("gradients.zeros", "the one with 24%", "these are zero in FP32 too")


def test_04_segmentation_has_few_zeros_and_loses_most() -> None:
    run = TrainingRun(TASKS["segmentation"], RECIPES["FP16"])
    assert f"{zeros_inside(run.next_gradients('weight gradients')):.0%}" == "2%"
    assert underflow(run.fp32_twin().next_gradients(), run.next_gradients()) > 0.5
    assert_reply_says("gradients.zeros", "the one with 2%", "has lost most of its activation")
