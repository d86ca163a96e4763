"""Patients: each broken training really fails, each repaired one comes through, and its error leads back to it."""

import csv
import re
from pathlib import Path

import pytest
import torch

from labkit import cli
from labkit.clinic import Outcome, Patient, Training, cards, explain, patients, run, snippet
from labkit.frameworks import torch_amp
from labkit.widgets.patient_wall.widget import behind

ROOT = Path(__file__).parents[2]
PATIENTS = patients()
# Half a second each and more: adding them up would cost a minute.
LONG = {
    "average_in_bf16", "clip_before_unscale", "dice_overflows", "layer_made_in_forward", "log_of_epsilon",
    "nan_only_in_eval", "norm_squared_in_half", "penalty_from_scaled", "row_all_masked", "scale_changes_between",
    "scale_falls_to_zero", "softmax_by_hand", "stale_cast", "switched_off_but_half", "forward_overflow",
    "gains_in_bf16", "halves_by_hand", "adam_in_half", "validation_sum", "ranks_part", "first_steps_refused",
}  # fmt: skip
QUICK = {"bce_on_probabilities", "gradcheck_in_fp32", "inference_tensors", "mse_underflows"}
slow = [pytest.mark.slow, pytest.mark.timeout(900)]


def losses_fall(cured: bool) -> Training:
    """A training of this test's own: its loss falls where it is cured."""
    seen: list[float] = []

    def step(number: int) -> float:
        seen.append(1.0 / (number + 1) if cured else 1.0)
        return seen[-1]

    return Training(step, range(5), lambda: 1 - seen[-1])


def test_worked_example_a_run_has_losses_and_a_score() -> None:
    patient = Patient(losses_fall, symptom="", cause="", reading="", repair="")
    broken, cured = run(patient, cured=False), run(patient, cured=True)
    assert broken == Outcome((1.0,) * 5, 0.0)
    assert cured == Outcome((1.0, 0.5, 1 / 3, 0.25, 0.2), 0.8)
    assert patient.failed(broken)
    assert not patient.failed(cured)


def test_an_error_that_is_not_the_patients_own_is_no_proof_of_it() -> None:
    patient = Patient(losses_fall, symptom="", cause="", reading="", repair="", errors=("words of its own",))
    assert not patient.failed(Outcome((), float("nan"), "RuntimeError: the disk is full"))
    assert patient.failed(Outcome((), float("nan"), "RuntimeError: words of its own, and more"))


@pytest.mark.filterwarnings("ignore:Detected call of")
@pytest.mark.parametrize("names", [PATIENTS.keys() - LONG, pytest.param(LONG, marks=slow)], ids=["quick", "long"])
def test_each_broken_training_fails_and_each_repaired_one_does_not(names: set[str]) -> None:
    """And the error that ends a broken one leads back to its patient."""
    assert names <= PATIENTS.keys(), "a name of this test that is no patient"
    wrong: dict[str, object] = {}
    for name in sorted(names):
        patient, state = PATIENTS[name], torch.get_rng_state()
        broken, cured = run(patient, cured=False), run(patient, cured=True)
        if not patient.failed(broken) or cured.error or patient.failed(cured):
            wrong[name] = broken, cured
        if broken.error and patient.errors and patient not in explain(broken.error):
            wrong[name] = broken.error
        assert torch.equal(torch.get_rng_state(), state), f"{name} leaves another random state"
        assert not torch.is_autocast_enabled("cpu"), f"{name} leaves a region open"
    assert not wrong


# Torch's CPU autocast and CUDA's have other lists: in CUDA's `sum` and `exp` are FP32. The lab's face follows CUDA's.
AUTOCAST = {name: getattr(torch_amp, name) for name in ("autocast", "custom_fwd", "custom_bwd")}


def under_cudas_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, function in AUTOCAST.items():
        monkeypatch.setattr(torch.amp, name, function)
    monkeypatch.setattr(torch, "autocast", torch_amp.autocast)


@pytest.mark.filterwarnings("ignore:Detected call of")
@pytest.mark.parametrize("names", [QUICK, pytest.param(PATIENTS.keys() - QUICK, marks=slow)], ids=["quick", "others"])
def test_each_fails_under_cudas_lists_too_or_says_that_it_does_not(
    names: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    under_cudas_lists(monkeypatch)
    wrong: dict[str, object] = {}
    for patient in (PATIENTS[name] for name in sorted(names)):
        if patient.shown is not None:
            continue  # it runs in processes of its own, which have no face in place of torch's autocast
        broken, cured = run(patient, cured=False), run(patient, cured=True)
        if patient.failed(broken) is bool(patient.only == "cpu" or patient.prevented) or patient.failed(cured):
            wrong[patient.id] = broken, cured
    assert not wrong


def test_where_a_fault_is_not_seen_is_said_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    unseen = [patient for patient in PATIENTS.values() if patient.only or patient.prevented]
    assert "stale_cast" in {patient.id for patient in unseen}
    for patient in unseen:
        assert patient.only in ("", "cpu", "cuda")
        assert patient.where in page
    assert cli.main(["explain", "stale_cast"]) == 0
    assert "labkit's autocast casts a weight again" in " ".join(capsys.readouterr().out.split())
    assert behind(PATIENTS["stale_cast"])["told"][-1] == ["Where", PATIENTS["stale_cast"].where]
    one = Patient(losses_fall, symptom="", cause="", reading="", repair="", only="cpu")
    assert one.where == "Only torch.autocast('cpu') shows it: the lists of other devices are others."


def states_after_a_patient_and_a_consultation() -> list[bool]:
    """Return whether the random states of the CPU and of the GPU are what they were, and a fault still fails."""
    import torch.nn.functional as F

    from labkit.clinic import look

    def work(model, batches):  # type: ignore[no-untyped-def]
        return [F.cross_entropy(model(inputs), targets) for inputs, targets in batches[:2]], None

    torch.manual_seed(12)
    torch.rand(3, device="cuda")
    before = torch.get_rng_state(), torch.cuda.get_rng_state()
    outcomes = [patients()[name] for name in ("mse_underflows", "denominator_underflows", "inference_tensors")]
    failed = [patient.failed(run(patient, cured=False)) for patient in outcomes]
    error = look("clip", work).error
    after = torch.get_rng_state(), torch.cuda.get_rng_state()
    return [not error, *failed, *(torch.equal(a, b) for a, b in zip(before, after, strict=True))]


@pytest.mark.slow
def test_a_gpus_random_state_is_left_as_it_was(simulated_gpu) -> None:  # type: ignore[no-untyped-def]
    assert simulated_gpu("T4", states_after_a_patient_and_a_consultation) == [True] * 6


def test_each_says_all_that_a_card_needs_and_shows_two_forms_of_code() -> None:
    with (ROOT / "data" / "claims.csv").open(newline="", encoding="utf-8") as file:
        claims = {row["id"] for row in csv.DictReader(file)}
    for name, patient in PATIENTS.items():
        for text in (patient.title, patient.symptom, patient.cause, patient.reading, patient.repair):
            assert text.rstrip()[-1] in ".?!", (name, text)
        assert patient.threads, name
        assert all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+|https://\S+", thread) for thread in patient.threads), name
        assert set(patient.claims) <= claims, name
        assert all(patient in explain(f"RuntimeError: {words}\n  at line 5") for words in patient.errors), name
        broken, cured = snippet(patient, cured=False), snippet(patient, cured=True)
        assert broken != cured, name
        for code in (broken, cured):
            compile(f"def training():\n{re.sub('^', '    ', code, flags=re.MULTILINE)}", name, "exec")
            assert not re.search(r"\bcured\b", code), name


def test_an_error_that_belongs_to_nobody_is_explained_by_nobody() -> None:
    for text in (
        "IndexError: list index out of range",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (64x10 and 64x128)",
        "ModuleNotFoundError: No module named 'half'",
        "ValueError: Using a target size (torch.Size([3])) that differs from the input size in binary_cross_entropy",
        "error",
        "dtype",
        "",
    ):
        assert explain(text) == [], text
    for name in ("c10::Half", "at::Half"):  # the new and the old name of a type
        (found,) = explain(f"RuntimeError: value cannot be converted to type {name} without overflow")
        assert found.id == "mask_constant"


def test_the_command_explains_lists_and_shows(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "Attempting", "to", "unscale", "FP16", "gradients."]) == 0
    assert "Repair:" in capsys.readouterr().out
    assert cli.main(["explain"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(cards())
    assert cli.main(["explain", "positions_in_half"]) == 0
    shown = capsys.readouterr().out
    assert "dtype = torch.float16" in shown
    assert re.search(r"a score of 0\.\d+, and it is well from 0\.9 on", shown)
    assert "a score of 1, and it is well" in shown
    assert cli.main(["explain", "list index out of range"]) == 1
    assert "No patient" in capsys.readouterr().err
