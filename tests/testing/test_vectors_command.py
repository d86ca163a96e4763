"""`labkit vectors`: test vectors of a format, and the answers to them."""

import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from labkit import cli
from labkit.testing.vectors import NAMES, check, known_mistakes, vectors


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
