"""The doctor meets trainings whose author had not read it: it raises no false alarm, and finds what is broken."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch

from labkit.clinic import diagnose
from labkit.clinic.findings import Report, Status
from tests.clinic.outsiders import BROKEN, HEALTHY, Case

FAST = {"accumulation", "lora", "gradient_penalty", "lora_in_half", "attention_mask_constant", "one_region_for_all"}


def marked(names: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in names]


def examined(case: Case, steps: int = 20) -> Report:
    with torch.random.fork_rng(devices=[]):
        return diagnose(case.step, case.model, case.optimizer, case.scaler, batches=case.batches, steps=steps)


@pytest.mark.slow
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_training_is_healthy_without_the_doctor(name: str) -> None:
    with torch.random.fork_rng(devices=[]):
        case = HEALTHY[name]()
        for batch in case.batches:
            case.step(batch)
    assert all(p.isfinite().all() for p in case.model.parameters())


@pytest.mark.parametrize("name", marked(HEALTHY))
def test_nothing_bad_is_said_of_a_healthy_training(name: str) -> None:
    report = examined(HEALTHY[name]())
    assert list(report.of(Status.BAD)) == [], report


@pytest.mark.parametrize("name", marked(BROKEN))
def test_what_is_broken_is_found_and_its_patient_named(name: str) -> None:
    training, patient = BROKEN[name]
    report = examined(training(), steps=60)
    named = {each for status in (Status.BAD, Status.WARN) for finding in report.of(status) for each in finding.patients}
    assert patient in named, report
