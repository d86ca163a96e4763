"""`labkit tolerance`, `labkit vectors`, the plugin of pytest, and lesson 03b."""

import os
import re
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

from labkit import cli
from labkit.formats import FP16
from labkit.formats.text import round_fraction
from labkit.grading import EXERCISES
from labkit.testing import Arithmetic, VerdictKind, compare, matmul, sum_error
from labkit.testing.orders import LONGEST
from labkit.testing.tolerance import EXAMPLE, tolerance
from labkit.testing.vectors import NAMES, check, known_mistakes, vectors
from labkit.widgets import predictions
from labkit_lessons.lesson_03b_rounding_or_fault import SIX, six_operands
from tests.grading.cases import cases, reference

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


@pytest.mark.parametrize(
    ("name", "dtype", "bits"),
    [
        ("FP16", np.float16, np.uint16),
        ("BF16", ml_dtypes.bfloat16, np.uint16),
        ("E5M2", ml_dtypes.float8_e5m2, np.uint8),
        ("E4M3", ml_dtypes.float8_e4m3fn, np.uint8),
    ],
)
def test_other_libraries_compute_the_codes_of_vectors(name: str, dtype: type, bits: type) -> None:
    """The inputs are FP32, which numpy and ml_dtypes round once."""
    table = vectors(name)
    with np.errstate(over="ignore"):
        codes = table["x"].astype(dtype).view(bits)
    assert check({**table, "codes": codes}) == []


# The numbers of E2M1 in the order of their codes.
NUMBERS_OF_E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]


def test_ml_dtypes_computes_the_values_of_mxfp4() -> None:
    table = vectors("MXFP4")
    scales = table["given_scales"].view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    # One of the scales is the NaN of E8M0.
    assert np.isnan(scales[3])
    numbers = np.array(NUMBERS_OF_E2M1, np.float32)
    with np.errstate(over="ignore"):
        values = scales[:, None] * numbers[table["given_elements"]]
    assert check({**table, "values": values}) == []


each_format = pytest.mark.parametrize("name", NAMES)


@each_format
def test_the_right_answers_to_vectors_break_no_rule(name: str) -> None:
    assert check(vectors(name)) == []


@each_format
def test_a_format_has_four_known_mistakes_or_more(name: str) -> None:
    assert len(known_mistakes(vectors(name))) >= 4


@each_format
def test_each_known_mistake_breaks_a_rule_and_is_recognised(name: str) -> None:
    table = vectors(name)
    for mistake, answers in known_mistakes(table).items():
        messages = check({**table, **answers})
        # The first message is "RULE: 3 of 9 rows; row 5: ...".
        assert messages[0].split("; ")[1].startswith("row "), mistake
        assert f"these answers are those of a known mistake: {mistake}" in messages, mistake


# Format, a known mistake, and the rules that it breaks.
BROKEN = (
    ("FP16", "ties away from zero", {"ties to even", "subnormal ties"}),
    ("E4M3", "saturates", {"overflow: beyond the largest number", "infinity"}),
    ("BF16", "subnormal numbers are zero", {"subnormal numbers", "subnormal ties"}),
    ("MXFP8", "NaN of E8M0 read as a number", {"NaN of E8M0"}),
    (
        "MXFP4",
        "scale rounded up",
        {
            "rounding of the scale",
            "saturation of elements",
            "scale: just below a power of two, beyond BF16",
            "scale: just below a power of two, beyond FP16",
            "scale: the last FP32 number below a power of two",
        },
    ),
    ("NVFP4", "scale rounded up", {"rounding of the scale", "subnormal scale"}),
)


@pytest.mark.parametrize(("name", "mistake", "rules"), BROKEN)
def test_the_rule_that_is_broken_is_named(name: str, mistake: str, rules: set[str]) -> None:
    table = vectors(name)
    messages = check({**table, **known_mistakes(table)[mistake]})
    broken = {re.sub(r": \d+ of \d+ rows.*", "", line) for line in messages if " rows; " in line}
    assert broken == rules


def test_the_command_lists_the_formats_of_vectors(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["vectors"]) == 0
    assert capsys.readouterr().out.split("\n")[0] == "FP16"


@pytest.fixture
def answers_to_nvfp4(tmp_path: Path) -> Path:
    """The file that `labkit vectors NVFP4` writes, with the right answers."""
    path = tmp_path / "answers.npz"
    assert cli.main(["vectors", "NVFP4", "--out", str(path)]) == 0
    return path


def test_a_file_of_vectors_is_small(answers_to_nvfp4: Path) -> None:
    assert answers_to_nvfp4.stat().st_size < 60_000


def test_the_command_accepts_right_answers(
    answers_to_nvfp4: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["vectors", "--check", str(answers_to_nvfp4)]) == 0
    assert "no rule is broken" in capsys.readouterr().out


def test_the_command_names_a_broken_rule(
    answers_to_nvfp4: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with np.load(answers_to_nvfp4) as file:
        table = dict(file)
    table["scales"] = np.minimum(table["scales"] + 1, 126).astype(np.uint8)
    np.savez(answers_to_nvfp4, **table)
    assert cli.main(["vectors", "--check", str(answers_to_nvfp4)]) == 1
    assert "rounding of the scale: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"codes": np.zeros(3)}, 'expected "name" in the file'),
        ({"name": "FP16", "codes": np.zeros(3)}, "expected 'codes' of shape"),
        ({"name": "FP16"}, "got none"),
        ({"name": "FP17"}, "expected one of 'FP16', 'BF16'"),
    ],
    ids=["no name", "wrong shape", "no codes", "unknown name"],
)
def test_the_command_refuses_wrong_content_of_a_file(
    content: dict[str, object],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, **content)
    assert cli.main(["vectors", "--check", str(path)]) == 2
    assert message in capsys.readouterr().err


def test_the_command_refuses_a_file_that_is_not_an_archive(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.npz"
    path.write_text("no archive")
    assert cli.main(["vectors", "--check", str(path)]) == 2
    assert "expected an .npz file" in capsys.readouterr().err


def test_the_command_refuses_a_missing_file_of_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["vectors", "--check", str(tmp_path / "missing.npz")]) == 2
    assert "missing.npz" in capsys.readouterr().err


def test_names_of_vectors_ignore_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["vectors", "e4m3, SATURATING"]) == 0
    with np.load("E4M3-saturating.npz") as file:
        assert str(file["name"]) == "E4M3, saturating"


def test_an_unknown_name_of_vectors_has_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["vectors", "nvfp5"]) == 2
    message = capsys.readouterr().err
    assert "'E5M2', 'E4M3, saturating', 'E5M2, saturating', 'MXFP8'" in message
    assert message.endswith("got 'nvfp5'. Did you mean 'NVFP4'?\n")


def test_a_name_like_no_format_has_no_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["vectors", "Z"]) == 2
    assert capsys.readouterr().err.endswith("got 'Z'\n")


# A file of tests: the first passes, the second fails by the lab's assertion, the third by another.
TEST = """
import torch
from labkit.testing import assert_explained

a, b = torch.ones(4, 64).half(), torch.full((64, 4), 0.5).half()

def test_right(explained):
    explained((a.float() @ b.float()).half(), a, b)

def test_wrong():
    got = (a[:, 1:].float() @ b[1:].float()).half()
    assert_explained(got, a, b)

def test_other():
    assert 1 == 2
"""


@pytest.fixture(scope="module")
def output_of_the_plugin(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What pytest prints for the file of tests with the plugin."""
    folder = tmp_path_factory.mktemp("plugin")
    (folder / "test_kernel.py").write_text(TEST, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    plugins = ["-p", "labkit.testing.plugin", "-p", "no:cacheprovider"]
    return run_pytest(folder, *plugins)


def run_pytest(folder: Path, *options: str) -> str:
    """Return what pytest prints for a folder of tests."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-q"],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    return done.stdout


def test_the_plugin_shows_the_line_and_the_verdict(output_of_the_plugin: str) -> None:
    failure = (
        "test_kernel.py:12: assert_explained(got, a, b)\n\n"
        "cannot be rounding: matmul [4, 64] @ [64, 4]"
    )
    assert failure in output_of_the_plugin


def test_the_plugin_provides_the_fixture(output_of_the_plugin: str) -> None:
    """The test that uses it is the one that passes."""
    assert "2 failed, 1 passed" in output_of_the_plugin


def test_the_plugin_hides_the_frames_of_the_package(output_of_the_plugin: str) -> None:
    assert "def assert_explained" not in output_of_the_plugin


BASE = """
import torch
from labkit.testing import assert_explained

class Kernel:
    def test_product(self):
        ones = torch.ones(2, 2)
        assert_explained(ones, ones, ones)
"""


def test_the_plugin_shows_the_line_of_an_inherited_test(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(BASE, encoding="utf-8")
    test = "from kernel import Kernel\n\n\nclass TestKernel(Kernel):\n    pass\n"
    (tmp_path / "test_kernel.py").write_text(test, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    printed = run_pytest(tmp_path, "-p", "labkit.testing.plugin", "-p", "no:cacheprovider")
    assert "\nkernel.py:8: assert_explained(ones, ones, ones)\n" in printed


LISTED = "\ntest_kernel.py::test_wrong: cannot be rounding; "


def test_the_plugin_lists_unexplained_differences(output_of_the_plugin: str) -> None:
    *_, summary = output_of_the_plugin.partition("differences that rounding does not explain")
    assert LISTED in summary


@pytest.mark.slow
def test_the_plugin_lists_the_failures_of_workers(tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    (tmp_path / "test_kernel.py").write_text(TEST, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    output = run_pytest(tmp_path, "-p", "labkit.testing.plugin", "-n", "1")
    assert LISTED in output


def test_the_plugin_leaves_other_failures_as_they_are(output_of_the_plugin: str) -> None:
    assert "assert 1 == 2" in output_of_the_plugin


def outputs_on_the_page() -> list[str]:
    """Return the outputs that docs/testing.md shows: a verdict, and broken rules."""
    page = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    return re.findall(r"```text\n(.*?)```", page, flags=re.DOTALL)


def test_the_page_shows_the_verdict_that_is_printed() -> None:
    a, b = six_operands()
    assert outputs_on_the_page()[0] == f"{compare(SIX['D'](a, b), matmul(a, b))}\n"


def test_the_page_shows_the_broken_rules_that_are_printed() -> None:
    table = vectors("NVFP4")
    messages = check({**table, **known_mistakes(table)["scale rounded up"]})
    assert outputs_on_the_page()[1].splitlines() == messages


# --- the six kernels of lesson 03b, and its exercise ----------------------------------------------


@pytest.fixture(scope="module")
def distances() -> dict[str, np.ndarray]:
    """Name of each of the six kernels -> distances of its results from the nearest FP16 numbers."""
    a, b = six_operands()
    nearest = matmul(a, b).value.astype(np.float16).astype(np.float64)
    return {name: np.abs(kernel(a, b).double().numpy() - nearest) for name, kernel in SIX.items()}


def test_the_faulty_kernel_has_the_smallest_largest_distance(
    distances: dict[str, np.ndarray],
) -> None:
    largest = {name: values.max() for name, values in distances.items()}
    assert min(SIX, key=largest.get) == "D"
    assert max(SIX, key=largest.get) in "BCF"
    assert round(largest["D"], 3) == 0.016


def test_the_largest_distance_of_a_right_kernel_is_one_step(
    distances: dict[str, np.ndarray],
) -> None:
    """A step of FP16 is 0.5, 1 or 2, depending on the size of the result."""
    assert {distances[name].max() for name in "ABCEF"} <= {0.5, 1.0, 2.0}


def test_the_faulty_kernel_has_the_most_distances(distances: dict[str, np.ndarray]) -> None:
    assert 3000 <= np.count_nonzero(distances["D"]) <= 3100
    for name in "ABCEF":
        assert 10 < np.count_nonzero(distances[name]) < 100, name


@pytest.mark.parametrize("name", SIX)
def test_only_the_faulty_kernel_of_six_is_impossible(name: str) -> None:
    a, b = six_operands()
    accumulator = "H100" if name == "F" else "FP32"
    verdict = compare(SIX[name](a, b), matmul(a, b), accumulator=accumulator)
    expected = VerdictKind.IMPOSSIBLE if name == "D" else VerdictKind.ROUNDING
    assert verdict.kind is expected


def test_the_lesson_has_two_predictions() -> None:
    assert {"kernels.six", "kernels.bound"} <= set(predictions())


def test_the_answer_of_the_prediction_is_the_bound() -> None:
    bound = float(sum_error(Arithmetic("FP32"), 4096, np.array(1000.0)))
    assert 0.2440 < bound < 0.2445
    assert predictions()["kernels.bound"].answer == "about 0.24"


def test_the_exercise_is_in_the_lesson() -> None:
    assert EXERCISES["kernels.allowed"].lesson == "03b_rounding_or_fault"


def test_the_reference_is_the_formula_in_fractions() -> None:
    for a, b, precision in cases("kernels.allowed"):
        products = [Fraction(x) * Fraction(y) for x, y in zip(a, b, strict=True)]
        magnitude = sum((abs(product) for product in products), Fraction(0))
        unit = Fraction(1, 2**precision)
        error = ((1 + unit) ** max(0, len(a) - 1) - 1) * magnitude
        exact = sum(products, Fraction(0))
        lowest = round_fraction(exact - error, FP16)
        highest = round_fraction(exact + error, FP16)
        assert reference("kernels.allowed")(a, b, precision) == (lowest, highest)
