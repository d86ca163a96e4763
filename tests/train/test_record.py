"""A run's record: saved and loaded, whole or not at all."""

import json
import math
from pathlib import Path

import pytest

from labkit.train import RunRecord, StepRecord, load


def record(**changes: object) -> RunRecord:
    steps = (
        StepRecord(1, 0.5, 1024.0, False, True, 0.25),
        StepRecord(2, math.inf, 1024.0, True, False),
        StepRecord(3, math.nan, 512.0, True, False),
    )
    fields = {
        "task": "digits", "recipe": "FP16 dynamic", "seed": 3, "steps": steps, "metric": 0.5, "metric_name": "accuracy",
        "seconds": 1.5, "device": "CPU", "versions": {"torch": "2.13.0"}, "date": "2026-01-01T00:00:00+00:00",
    }  # fmt: skip
    return RunRecord(**{**fields, **changes})  # type: ignore[arg-type]


def test_worked_example(tmp_path: Path) -> None:
    path = record().save(tmp_path / "run.json")
    back = load(path)
    assert back.steps[0] == record().steps[0]
    assert back.skipped == 2
    assert math.isinf(back.steps[1].loss)
    assert math.isnan(back.steps[2].loss)
    assert back.steps[1].underflow is None
    assert json.loads(path.read_text())["steps"]["loss"] == [0.5, "inf", "nan"], "plain JSON, that any program reads"
    whole = record(steps=record().steps[:2], metric=math.inf, stopped=True)
    assert load(whole.save(path)) == whole


def test_another_file_is_refused_in_words(tmp_path: Path) -> None:
    for text in ("", "not json", "[1, 2]", '{"schema": "other/1"}', '{"schema": "labkit.run/1"}'):
        (tmp_path / "x.json").write_text(text)
        with pytest.raises(ValueError, match="is not a run record"):
            load(tmp_path / "x.json")
