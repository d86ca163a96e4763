"""Faults: broken trainings fail, repaired ones succeed, and error messages lead to their fault."""

import csv
import re
from pathlib import Path

import pytest
import torch

from labkit import cli
from labkit.faults import FAULTS, Fault, Training, TrainingOutcome, cards, explain, run, snippet
from labkit.frameworks import torch_amp
from labkit.widgets.fault_wall.widget import behind

ROOT = Path(__file__).parents[2]
# Half a second each and more: adding them up would cost a minute.
LONG = {
    "average_in_bf16",
    "clip_before_unscale",
    "dice_overflows",
    "layer_made_in_forward",
    "log_of_epsilon",
    "nan_only_in_eval",
    "norm_squared_in_half",
    "penalty_from_scaled",
    "row_all_masked",
    "scale_changes_between",
    "scale_falls_to_zero",
    "softmax_by_hand",
    "stale_cast",
    "switched_off_but_half",
    "forward_overflow",
    "gains_in_bf16",
    "halves_by_hand",
    "adam_in_half",
    "validation_sum",
    "ranks_part",
    "first_steps_refused",
}
QUICK = {"bce_on_probabilities", "gradcheck_in_fp32", "inference_tensors", "mse_underflows"}
slow = [pytest.mark.slow, pytest.mark.timeout(900)]


def losses_fall(fixed: bool) -> Training:
    """A training of this test's own: its loss falls where it is fixed.

    Error: words of its own,
        over two lines
    """
    losses = [1.0 / (number + 1) if fixed else 1.0 for number in range(5)]
    return Training(lambda number: losses[number], range(5), lambda: 1 - losses[-1])


def test_an_error_that_is_not_the_faults_own_is_no_proof_of_it() -> None:
    fault = Fault(losses_fall)
    broken = run(fault, fixed=False)
    fixed = run(fault, fixed=True)
    assert broken == TrainingOutcome((1.0,) * 5, 0.0)
    assert fixed == TrainingOutcome((1.0, 0.5, 1 / 3, 0.25, 0.2), 0.8)
    of_others, its_own = (
        TrainingOutcome((), float("nan"), f"RuntimeError: {words}")
        for words in ("the disk is full", "words of its own, over two lines, and more")
    )
    assert [fault.failed(outcome) for outcome in (broken, fixed, of_others, its_own)] == [
        True,
        False,
        False,
        True,
    ]


@pytest.mark.filterwarnings("ignore:Detected call of")
@pytest.mark.parametrize(
    "names", [FAULTS.keys() - LONG, pytest.param(LONG, marks=slow)], ids=["quick", "long"]
)
def test_broken_trainings_fail_and_repaired_ones_do_not(names: set[str]) -> None:
    """And the error that ends a broken one leads back to its fault."""
    assert names <= FAULTS.keys(), "a name of this test that is no fault"
    wrong: dict[str, object] = {}
    for name in sorted(names):
        fault = FAULTS[name]
        state = torch.get_rng_state()
        broken = run(fault, fixed=False)
        fixed = run(fault, fixed=True)
        if not fault.failed(broken) or fixed.error or fault.failed(fixed):
            wrong[name] = broken, fixed
        if broken.error and fault.errors and fault not in explain(broken.error):
            wrong[name] = broken.error
        assert torch.equal(torch.get_rng_state(), state), f"{name} leaves another random state"
        assert not torch.is_autocast_enabled("cpu"), f"{name} leaves a region open"
    assert not wrong


@pytest.mark.filterwarnings("ignore:Detected call of")
@pytest.mark.parametrize(
    "names", [QUICK, pytest.param(FAULTS.keys() - QUICK, marks=slow)], ids=["quick", "others"]
)
def test_faults_occur_under_the_lists_of_cuda(
    names: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In CUDA's autocast `sum` and `exp` are FP32, in torch's for CPUs they are not. The lab's face
    follows CUDA's.
    """
    faces = {name: getattr(torch_amp, name) for name in ("autocast", "custom_fwd", "custom_bwd")}
    for name, face in faces.items():
        monkeypatch.setattr(torch.amp, name, face)
    monkeypatch.setattr(torch, "autocast", torch_amp.autocast)
    wrong: dict[str, object] = {}
    for fault in (FAULTS[name] for name in sorted(names)):
        if fault.shown is not None:
            # It runs in processes of its own, which have no face in place of torch's autocast.
            continue
        broken = run(fault, fixed=False)
        fixed = run(fault, fixed=True)
        if fault.failed(broken) is bool(fault.only == "cpu" or fault.prevented) or fault.failed(
            fixed
        ):
            wrong[fault.id] = broken, fixed
    assert not wrong


def test_the_limits_of_each_fault_are_stated_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    unseen = [fault for fault in FAULTS.values() if fault.only or fault.prevented]
    assert "stale_cast" in {fault.id for fault in unseen}
    for fault in unseen:
        assert fault.only in ("", "cpu", "cuda")
        assert fault.where in page
    assert cli.main(["explain", "stale_cast"]) == 0
    assert "labkit's autocast casts a weight again" in " ".join(capsys.readouterr().out.split())
    assert behind(FAULTS["stale_cast"])["told"][-1] == ["Where", FAULTS["stale_cast"].where]
    one = Fault(losses_fall, only="cpu")
    assert one.where == "Only torch.autocast('cpu') shows it: the lists of other devices differ."


def states_after_a_fault_and_a_consultation() -> list[bool]:
    """Return whether the random states of the CPU and of the GPU are what they were, and a fault
    still fails.
    """
    from labkit_lessons.lesson_10_clinic import look

    torch.manual_seed(12)
    torch.rand(3, device="cuda")
    before = torch.get_rng_state(), torch.cuda.get_rng_state()
    outcomes = [
        FAULTS[name] for name in ("mse_underflows", "denominator_underflows", "inference_tensors")
    ]
    failed = [fault.failed(run(fault, fixed=False)) for fault in outcomes]
    error = look(
        "clip", lambda model, batches: ([model(x).float().sum() for x, _ in batches[:2]], None)
    ).error
    after = torch.get_rng_state(), torch.cuda.get_rng_state()
    return [not error, *failed, *(torch.equal(a, b) for a, b in zip(before, after, strict=True))]


@pytest.mark.slow
def test_a_gpus_random_state_is_left_as_it_was(simulated_gpu) -> None:
    assert simulated_gpu("T4", states_after_a_fault_and_a_consultation) == [True] * 6


def test_each_card_is_complete() -> None:
    with (ROOT / "data" / "claims.csv").open(newline="", encoding="utf-8") as file:
        claims = {row["id"] for row in csv.DictReader(file)}
    for name, fault in FAULTS.items():
        for text in (fault.title, fault.symptom, fault.cause, fault.reading, fault.repair):
            assert text.rstrip()[-1] in ".?!", (name, text)
        assert fault.threads, name
        assert all(
            re.fullmatch(r"[\w.-]+/[\w.-]+#\d+|https://\S+", thread) for thread in fault.threads
        ), name
        assert set(fault.claims) <= claims, name
        assert all(
            fault in explain(f"RuntimeError: {words}\n  at line 5") for words in fault.errors
        ), name
        broken = snippet(fault, fixed=False)
        fixed = snippet(fault, fixed=True)
        assert broken != fixed, name
        for code in (broken, fixed):
            compile(
                f"def training():\n{re.sub('^', '    ', code, flags=re.MULTILINE)}", name, "exec"
            )
            assert not re.search(r"\bcured\b", code), name


def test_the_command_explains_lists_and_shows(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "Attempting", "to", "unscale", "FP16", "gradients."]) == 0
    assert "Repair:" in capsys.readouterr().out
    assert cli.main(["explain"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(cards())
    assert cli.main(["explain", "positions_in_half"]) == 0
    shown = capsys.readouterr().out
    assert "dtype = torch.float16" in shown
    assert re.search(r"score 0\.\d+; 0\.9 or more is healthy", shown)
    assert "score 1; 0.9 or more is healthy" in shown
    assert cli.main(["explain", "list index out of range"]) == 1
    assert "No known fault" in capsys.readouterr().err
    assert cli.main(["explain", "clip_befor_unscale"]) == 1
    assert "Did you mean `labkit explain clip_before_unscale`?" in capsys.readouterr().err
