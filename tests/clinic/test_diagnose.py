"""The doctor in somebody's own loop: the patients it claims to find are found, and healthy trainings are well."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from labkit import cli
from labkit.clinic import Report as Diagnosis
from labkit.clinic import Status, claims, diagnose, patients
from tests.clinic.healthy import HEALTHY

# The batch that a fault waits for; what comes before is not looked at.
WAITS = {
    "clip_with_inf": 49,
    "nan_only_in_eval": 29,
    "row_all_masked": 36,
    "validation_sum": 390,
    "softmax_by_hand": 45,
}
FAST = {"mask_constant", "stale_cast", "decay_is_lost", "optimizer_made_before"}


def diagnosed(name: str, cured: bool, steps: int = 6) -> Diagnosis:
    """The doctor's report on one form of a patient, from the batch on that its fault waits for."""
    with torch.random.fork_rng(devices=[]):
        training = patients()[name].training(cured)
        batches, start = list(training.batches), WAITS.get(name, 0)
        for batch in batches[:start]:
            training.step(batch)
        rest = batches[start : start + (60 if start > 100 else 15 if start else len(batches))]
        steps = len(rest) if start else steps
        report = diagnose(training.step, training.model, training.optimizer, training.scaler, rest, steps)
        if torch.is_autocast_enabled("cpu"):
            training.step(batches[-1])  # which ends the region that one of them opens
        assert not torch.is_autocast_enabled("cpu")
        return report


def found(name: str, report: Diagnosis) -> set[str]:
    return {f.name for f in report.findings if f.status is not Status.OK and name in f.patients}


@pytest.mark.filterwarnings("ignore:Detected call of")
@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in FAST else pytest.mark.slow) for n in claims()])
def test_each_patient_that_is_claimed_is_found_when_broken_and_not_when_cured(name: str) -> None:
    steps = 16 if name == "positions_in_half" else 6
    assert found(name, diagnosed(name, cured=False, steps=steps)) & claims()[name]
    assert not found(name, diagnosed(name, cured=True, steps=steps))


def healthy_step() -> tuple:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    optimizer, scaler = torch.optim.AdamW(model.parameters(), lr=1e-3), torch.amp.GradScaler("cpu")

    def step(batch):
        inputs, targets = batch
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    batches = [(torch.randn(16, 8), torch.randint(3, (16,))) for _ in range(6)]
    return step, model, optimizer, scaler, batches


def test_worked_example_a_healthy_training_is_well_and_goes_on_as_if_nobody_looked() -> None:
    step, model, optimizer, scaler, batches = healthy_step()
    report = diagnose(step, model, optimizer, scaler, batches)
    assert report.healthy, report
    looked_at = [p.clone() for p in model.parameters()]
    step, model, optimizer, scaler, batches = healthy_step()
    for batch in batches:
        step(batch)
    assert all(map(torch.equal, looked_at, model.parameters())), "bit for bit"


@pytest.mark.parametrize(
    "make", [pytest.param(h, marks=() if h.__name__ in ("cnn", "gan") else pytest.mark.slow) for h in HEALTHY]
)
def test_nothing_bad_is_said_about_a_healthy_training(make) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        assert not (report := diagnose(*make())).findings[:-1], report


def test_an_error_is_told_with_its_line_and_its_patient() -> None:
    report = diagnosed("mask_constant", cured=False)
    (first, *_) = report.findings
    assert (first.name, first.status, first.patients) == ("exception", Status.BAD, ("mask_constant",))
    assert first.where.startswith("mask_constant.py:")
    assert "labkit explain mask_constant" in str(report)


def test_nothing_is_left_behind_by_a_step_that_raises() -> None:
    before = torch.autograd.backward, torch.amp.GradScaler.step, torch.amp.autocast_mode.autocast.__enter__
    diagnosed("mask_constant", cured=False)
    assert before == (torch.autograd.backward, torch.amp.GradScaler.step, torch.amp.autocast_mode.autocast.__enter__)


def test_what_is_no_training_is_refused_in_words() -> None:
    step, model, optimizer, scaler, batches = healthy_step()
    with pytest.raises(ValueError, match="batches is empty"):
        diagnose(step, model, optimizer, scaler, [])
    with pytest.raises(TypeError, match="step is a function"):
        diagnose(3, model, optimizer, scaler, batches)
    with pytest.raises(ValueError, match="has no parameter"):
        diagnose(step, torch.nn.ReLU(), optimizer, scaler, batches)
    with pytest.raises(ValueError, match="steps is a positive"):
        diagnose(step, model, optimizer, scaler, batches, steps=0)


SCRIPT = """
import sys, torch, torch.nn.functional as F
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
for number in range(1000):
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.float16):
        loss = F.cross_entropy(model(torch.randn(16, 8)), torch.randint(3, (16,)))
    scaler.scale(loss).backward()
    if "early" in sys.argv:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    print("done", number)
"""


def test_the_command_says_by_its_exit_status_how_a_script_is(tmp_path, capsys) -> None:
    script, none = tmp_path / "train.py", tmp_path / "none.py"
    script.write_text(SCRIPT, encoding="utf-8")
    none.write_text("print('no training')", encoding="utf-8")
    assert cli.main(["diagnose", str(script), "--steps", "3"]) == 0
    assert "done 2" in (said := capsys.readouterr().out)
    assert "done 4" not in said, "it stops after the steps that were asked for"
    assert cli.main(["diagnose", str(script), "--steps", "3", "early"]) == 1
    assert "labkit explain clip_before_unscale" in capsys.readouterr().out
    assert cli.main(["diagnose", str(none)]) == 2
    assert "before any training step" in capsys.readouterr().err
    assert cli.main(["diagnose", str(tmp_path / "missing.py")]) == 2
    assert "there is no script" in capsys.readouterr().err


def test_the_published_table_is_that_of_the_rows() -> None:
    text = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    known, claimed = set(patients()), set(claims())
    assert f"| {len(known)} | {len(claimed)} | {len(claimed)} | 0 | {len(HEALTHY)} | 0 |" in text
    assert "Not claimed: " + ", ".join(f"`{name}`" for name in sorted(known - claimed)) + "." in text


def test_a_scaler_that_begins_very_high_is_still_looking_for_its_scale() -> None:
    _, model, optimizer, _, batches = healthy_step()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60)

    def step(batch) -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(batch[0]), batch[1])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    report = diagnose(step, model, optimizer, scaler, batches * 2)
    assert report.healthy, report
    assert "12 skipped" in str(report)
