"""The report of a passport, which is read although it is damaged.

The passport was written on the simulated T4.
"""

import itertools
import json
from pathlib import Path

import pytest

from labkit import cli
from labkit.gpu import passport
from tests.gpu.served_items import Found

T4 = Path(__file__).with_name("passport_t4_simulated.jsonl")


def read(path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Return the exit status of `labkit gpu --read`, and all that it prints."""
    status = cli.main(["gpu", "--read", str(path)])
    printed = capsys.readouterr()
    return status, printed.out + printed.err


def test_worked_example_of_the_simulated_t4(capsys: pytest.CaptureFixture[str]) -> None:
    status, printed = read(T4, capsys)
    assert status == 0
    assert printed.startswith("Passport of Tesla T4 (simulated), 15 GiB, compute capability 7.5")
    layer_norm = "layer_norm of Half with weights of Float: refused, as expected"
    assert f"{layer_norm}: expected scalar type Half but found Float" in printed
    assert "batch_norm of Half with weights of Float: taken, as expected" in printed
    assert "  O1 " in printed.partition("Host waits of a step")[2]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "got an empty file"),
        (bytes(range(256)), "got 256 bytes of something else"),
        (b'{"cells": [], "nbformat": 4}\n', "got JSON of another kind (dict)"),
        (b"[1, 2]", "got JSON of another kind (list)"),
        (b"[" * 100_000, "got 100000 bytes of something else"),
    ],
    ids=["empty", "bytes", "notebook", "list", "too deep"],
)
def test_a_file_that_is_not_a_passport_is_refused(
    content: bytes, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(content)
    status, printed = read(path, capsys)
    assert status == 2
    assert "expected lines of JSON that `labkit gpu --passport` wrote" in printed
    assert sentence in printed


def test_a_missing_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "missing"
    message = f"labkit gpu: {missing} cannot be read (No such file or directory)\n"
    assert read(missing, capsys) == (2, message)


def test_a_folder_is_not_a_passport(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = f"labkit gpu: {tmp_path} cannot be read (Is a directory)\n"
    assert read(tmp_path, capsys) == (2, message)


def test_half_of_a_passport_has_a_report_of_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = T4.read_bytes()
    path = tmp_path / "p.jsonl"
    half = whole[: len(whole) // 2]
    path.write_bytes(half)
    status, printed = read(path, capsys)
    assert status == 1
    number = half.count(b"\n") + 1
    size = len(half.rpartition(b"\n")[2])
    assert f"DAMAGED: the last line, {number}, was cut off after {size} bytes" in printed
    assert "DAMAGED: the last line, which says how it ended, is missing" in printed
    assert "Passport of Tesla T4" in printed


def test_a_passport_cut_off_anywhere_has_a_report() -> None:
    whole = T4.read_bytes()
    # Every 1997th byte: a prime, so lines are cut at all kinds of places.
    for end in range(whole.index(b"\n"), len(whole), 1997):
        found = passport.parse(whole[:end])
        assert not found.whole
        assert passport.report(found)


def test_a_line_that_cannot_be_read_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = T4.read_bytes().split(b"\n")
    path = tmp_path / "p.jsonl"
    rows[5] = b"\xff\x00\xfe"
    path.write_bytes(b"\n".join(rows))
    status, printed = read(path, capsys)
    assert status == 1
    assert "DAMAGED: line 6 is not a line of a passport" in printed
    # Without that line, and without the empty text after the last newline.
    assert len(passport.parse(path.read_bytes()).lines) == len(rows) - 2


def test_a_wrong_value_in_a_line_hides_no_other_line() -> None:
    rows = [json.loads(row) for row in T4.read_text().splitlines()]
    index_by_kind = {row["kind"] + row["item"].split(" ")[0]: n for n, row in enumerate(rows)}
    for number, junk in itertools.product(index_by_kind.values(), (None, "junk", [], {"a": "b"})):
        for key in rows[number]:
            changed = [*rows[:number], {**rows[number], key: junk}, *rows[number + 1 :]]
            text = passport.report(passport.parse("\n".join(map(json.dumps, changed)).encode()))
            assert "Tesla T4" in text or rows[number]["item"] == "card"


def report_with(*changed: Found) -> str:
    """Return the report of the T4's passport in which these lines replace those of their items."""
    rows = {row["item"]: row for row in map(json.loads, T4.read_text().splitlines())}
    rows |= {row["item"]: row for row in changed}
    return passport.report(passport.parse("\n".join(map(json.dumps, rows.values())).encode()))


def line_of(item: str) -> Found:
    found: Found = passport.read_file(T4).line(item)
    assert found, item
    return found


@pytest.fixture
def a_loss_off() -> Found:
    """The line of a training in FP32 whose second loss is 0.1 % off: far beyond FP32."""
    line = line_of("train digits FP32")
    first, second, third = line["cpu"]
    losses = [first, (float.fromhex(second) * 1.001).hex(), third]
    return {**line, "losses": losses, "again": losses, "ulps": [0, 12345, 0]}


def test_a_report_names_losses_that_differ_from_the_cpu(a_loss_off: Found) -> None:
    text = report_with(a_loss_off)
    assert "step 2: within 9.5e-07 of the CPU's" in text
    assert "0.001 off, 12345 ulps" in text


def test_a_report_names_an_inf_where_the_cpu_has_nan() -> None:
    line = line_of("train digits FP32")
    first, _, third = line["cpu"]
    changed = {"losses": [first, "inf", third], "again": [first, "inf", third]}
    text = report_with({**line, **changed, "cpu": [first, "nan", third]})
    assert "step 2: as on the CPU, nan" in text


def test_a_nan_on_both_devices_is_not_a_difference() -> None:
    line = line_of("train digits FP32")
    losses = [line["cpu"][0], "nan", "nan"]
    text = report_with({**line, "losses": losses, "again": losses, "cpu": losses})
    assert "as on the CPU, nan" not in text


def test_a_difference_within_the_format_is_not_named(a_loss_off: Found) -> None:
    assert "0.001 off" not in report_with({**a_loss_off, "recipe": "BF16"})


def test_a_report_names_losses_that_do_not_repeat() -> None:
    line = line_of("train digits O1")
    changed = {**line, "again": [*line["losses"][:2], (9.0).hex()]}
    assert "the same losses twice" in report_with(changed)


def test_losses_that_repeat_are_not_named() -> None:
    assert "the same losses twice" not in report_with(line_of("train digits O1"))


LAYER_NORM = "layer_norm of Half with weights of Float"


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"refused": False, "message": ""}, f"{LAYER_NORM}: taken, EXPECTED TO BE refused"),
        ({"message": "CUDA error: unknown"}, f"{LAYER_NORM}: refused, BUT FOR ANOTHER REASON"),
        ({"refusal": "a new one"}, "a new one: refused, which is not in the table"),
    ],
)
def test_a_report_names_unexpected_refusals(changed: Found, expected: str) -> None:
    assert expected in report_with({**line_of(f"refusal {LAYER_NORM}"), **changed})


EQUAL = "aten::equal at a.py:1"
COPY = "aten::copy_ at labkit/b.py:2"


@pytest.mark.parametrize(
    ("waits", "copies", "counted", "judged"),
    [
        (1, {}, "1 waits   0 copies", ": within"),
        (5, {COPY: 1}, "5 waits   1 copies", f"ABOVE, most of them {EQUAL}"),
        # the copies of a line count beside its waits
        (3, {EQUAL: 1, COPY: 3}, "3 waits   4 copies", f"ABOVE, most of them {EQUAL}"),
    ],
)
def test_a_report_judges_the_waits_of_a_step(
    waits: int, copies: Found, counted: str, judged: str
) -> None:
    text = report_with({**line_of("waits O1"), "waits": {EQUAL: waits}, "copies": copies})
    (row,) = (row for row in text.splitlines() if row.startswith("  O1  "))
    assert counted in row
    assert row.endswith(judged)


HALF_NOT_FLOAT = "RuntimeError: expected scalar type Half but found Float"


@pytest.fixture
def report_of_two_failures() -> str:
    """The report of a passport in which two trainings failed with the same error."""
    failed = {"outcome": "failed", "error": f"{HALF_NOT_FLOAT}\nmore"}
    changed = [{**line_of(f"train digits {recipe}"), **failed} for recipe in ("FP32", "O1")]
    return report_with(*changed)


def test_equal_failures_share_a_row(report_of_two_failures: str) -> None:
    assert report_of_two_failures.count(f"failed, {HALF_NOT_FLOAT}") == 1
    assert "  the same: train digits O1" in report_of_two_failures


def test_a_failure_names_the_refusal_that_it_equals(report_of_two_failures: str) -> None:
    assert f"(as {LAYER_NORM})" in report_of_two_failures


def test_missing_items_are_counted_by_kind() -> None:
    missing = ["train unet O1", "train unet O2", "pace gpt"]
    text = report_with({**line_of("end"), "outcome": "the time was up", "missing": missing})
    assert "Missing (the time was up): 2 of 'train', 1 of 'pace'" in text
