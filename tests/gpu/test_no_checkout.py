"""`labkit gpu` in an installed lab that is no checkout, so that there are no checks to run."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit import cli, gpu
from labkit.gpu import catalogue, measure, passport, worker
from tests.gpu.rehearsal import Rehearsal, lines_of, rehearsal, rehearse


@pytest.fixture(scope="module")
def no_checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The sentence about checks that are left out, in a lab that is no checkout."""
    why = worker.why_no_checks(tmp_path_factory.mktemp("installed"))
    with pytest.MonkeyPatch.context() as patch:
        for module in (gpu.command, catalogue):
            patch.setattr(module, "why_no_checks", lambda: why)
        yield why


@pytest.fixture(scope="module")
def amp(no_checkout: str, tmp_path_factory: pytest.TempPathFactory) -> Rehearsal:
    """A rehearsal of the part "amp", without its checks."""
    return rehearsal(tmp_path_factory.mktemp("amp"), "amp")


def test_the_sentence_says_what_the_checks_need(no_checkout: str) -> None:
    assert no_checkout.startswith(
        "The checks need a checkout of the lab and are left out; records, measurements and "
    )


def test_a_part_prints_why_its_checks_are_left_out(no_checkout: str, amp: Rehearsal) -> None:
    assert f"{no_checkout}\n" in amp.printed


def test_a_part_without_checks_has_its_measurements(amp: Rehearsal) -> None:
    assert amp.status == 0
    line = lines_of(amp.folder, "amp")["training of MLP of width 64, batch 8"]
    assert list(line["seconds_a_call"]) == [*measure.AMP_WAYS]


@pytest.mark.usefixtures("no_checkout")
def test_parts_of_checks_alone_are_left_out() -> None:
    arguments = cli.parser_of("gpu").parse_args(["--device", "cpu"])
    expected = [part for part in gpu.PARTS if part not in ("mma", "many")]
    assert list(gpu.command.budgets_of(arguments)) == expected


def test_a_part_of_checks_alone_cannot_be_run(
    no_checkout: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rehearse(tmp_path, "mma") == 2
    message = f"labkit gpu: the chosen parts consist of checks. {no_checkout}\n"
    assert capsys.readouterr().err == message


def test_a_passport_is_made_by_the_package(
    no_checkout: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # The end of this passport is the module that its process would run.
    monkeypatch.setattr(passport, "make", lambda path, command, **_: command[2])
    words = ["gpu", "--device", "cpu", "--quick", "--passport", str(tmp_path / "p.jsonl")]
    assert cli.main(words) == 1
    printed = capsys.readouterr().out
    assert printed.startswith(f"{no_checkout}\nlabkit.gpu. The passport is in")
