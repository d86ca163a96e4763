"""Where is what travels read, and where is what is new written? Never into the package that was installed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from labkit.cli import main
from labkit.records import data_folder, files, on_record, results_folder
from labkit.train import recorded
from labkit.widgets import recipe_table

FP32 = "runs/digits/fp32-seed0.json"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a package far from any checkout, with one record in its data; the home folder is empty."""
    package = tmp_path / "site-packages" / "labkit"
    for name in (FP32, "digits.npz"):
        (package / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(data_folder() / name, package / "data" / name)
    monkeypatch.setattr(files, "PACKAGE", package)
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    return package


def files_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_a_checkout_keeps_results_beside_what_travels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert results_folder() == data_folder()
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path))
    assert results_folder() == tmp_path


def test_a_race_without_a_checkout_writes_into_the_home_folder(
    installed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, own = files_in(installed), tmp_path / "home" / "fp16-lab" / "data"
    assert main(["race", "digits", "--recipes", "FP32", "--seeds", "0", "50", "--device", "cpu", "--workers", "1"]) == 0
    assert files_in(installed) == before
    assert files_in(own) == {FP32, "runs/digits/fp32-seed50.json"}
    assert (own / FP32).read_bytes() == (installed / "data" / FP32).read_bytes(), "on record: not trained again"


def test_lessons_see_both_and_ones_own_first(installed: Path) -> None:
    own = results_folder() / FP32.replace("seed0", "seed7")
    own.parent.mkdir(parents=True)
    shutil.copy(installed / "data" / FP32, own)
    assert {path.is_relative_to(installed) for path in on_record("runs/digits/*.json").values()} == {True, False}
    assert recorded("digits", "FP32", 7).recipe == "FP32"
    assert str(installed) not in recipe_table(["digits"], ["O1"]).missing(), "nobody is told to write there"
    shutil.copy(own, own.with_name("fp32-seed0.json"))
    assert on_record(FP32) == {FP32: own.with_name("fp32-seed0.json")}
