"""`labkit tolerance`: tolerances of operations that a person types."""

import re
from pathlib import Path

import pytest
import torch

from labkit import cli
from labkit.testing import matmul
from labkit.testing.orders import LONGEST
from labkit.testing.tolerance import EXAMPLE, tolerance

ROOT = Path(__file__).parents[2]


def test_the_tolerance_of_the_example_names_the_operation() -> None:
    lines = tolerance(EXAMPLE).splitlines()
    assert lines[0] == "matmul, K=4,096, BF16 operands, BF16 out, accumulator FP32"
    assert '  assert_explained(got, a, b, out=BF16, accumulator="FP32")' in lines


def test_the_tolerance_of_an_operation_does_not_depend_on_case() -> None:
    text = "dot K=16 fp16 out=fp32 accumulate=fp32"
    assert tolerance(text.upper()) == tolerance(text)


def test_the_tolerance_of_the_example_has_four_numbers() -> None:
    lines = tolerance(EXAMPLE).splitlines()
    numbers = [line for line in lines if line.startswith("  ") and "=" not in line]
    bound, reached, typical, half = (float(line.split()[-1]) for line in numbers)
    # 4096 2^-24 times a sum of magnitudes near 4096 * 2 / pi.
    assert 0.5 < bound < 0.8
    assert reached < bound / 100
    assert half == 0.5
    assert typical < half


def rtol_and_atol(text: str) -> tuple[float, float]:
    """Return the tolerances that the last line of a text of `tolerance` proposes."""
    match = re.search(r"rtol=(\S+), atol=(\S+)\)", text)
    assert match is not None, text
    return float(match[1]), float(match[2])


@pytest.mark.parametrize(
    "line",
    [
        "sum K=100 fp16 accumulate=fp16",
        "mean K=100 bf16",
        "dot K=64 e4m3 out=bf16 accumulate=H100",
        "K=1",
        "softmax K=512 fp16",
        "layer_norm K=64 fp32",
        "rms_norm K=64 bf16",
        "matmul K=128 e2m1 out=bf16",
        "matmul K=64 tf32 out=fp32 accumulate=A100",
        "matmul K=512 fp16 out=fp16 accumulate=fp32",
    ],
)
def test_each_operation_has_a_tolerance(line: str) -> None:
    text = tolerance(line)
    assert "assert_explained(got, " in text
    assert min(rtol_and_atol(text)) >= 0.0


@pytest.mark.parametrize("operation", ["softmax", "layer_norm", "rms_norm"])
def test_long_rows_of_a_norm_have_a_tolerance(operation: str) -> None:
    # all 100,000 elements with their rows would need 80 GB
    assert min(rtol_and_atol(tolerance(f"{operation} K=100_000 fp16"))) >= 0.0


@pytest.mark.parametrize("operation", ["softmax", "layer_norm", "rms_norm"])
def test_rows_too_long_to_be_added_one_by_one_have_a_tolerance(operation: str) -> None:
    terms = LONGEST + 1
    assert min(rtol_and_atol(tolerance(f"{operation} K={terms} fp16"))) >= 0.0


@pytest.mark.parametrize("seed", range(20))
def test_right_results_of_other_operands_are_within_tolerance(seed: int) -> None:
    rtol, atol = rtol_and_atol(tolerance("matmul K=512 fp16 out=fp16 accumulate=fp32"))
    torch.manual_seed(seed)
    a = torch.randn(8, 512).half()
    b = torch.randn(512, 8).half()
    exact = torch.from_numpy(matmul(a, b).value)
    got = (a.float() @ b.float()).half().double()
    torch.testing.assert_close(got, exact, rtol=rtol, atol=atol)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("matmul", "expected K=TERMS, the number of terms of each sum, got none"),
        ("matmul K=0", "expected K, the number of terms, from 1 to 1,000,000, got 0"),
        ("matmul K=2000000", "got 2,000,000"),
        ("attention K=4", "expected an operation .* got 'attention'"),
        ("matmul K=_", "got 'K=_'"),
        ("matmul dot K=4", "expected one operation, got 'matmul' and 'dot'"),
        ("matmul K=4 K=8", "expected one K=TERMS, got 'K=4' and 'K=8'"),
        ("matmul K=4 fp16 bf16", "expected one format of operands, got 'fp16' and 'bf16'"),
        ("matmul K=4 accumulate=H1000", "expected an accumulator"),
        ("matmul K=4 bf16 accumulate=V100", "V100 Tensor Cores take FP16"),
    ],
)
def test_a_line_that_is_not_understood_is_refused(
    text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match=message):
        tolerance(text)
    assert cli.main(["tolerance", *text.split()]) == 2
    assert capsys.readouterr().err.startswith("labkit tolerance: ")
