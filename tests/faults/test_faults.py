"""Faults: broken trainings fail, repaired ones succeed, and error messages lead to their fault."""

import ast
import csv
import re
import textwrap
from pathlib import Path

import pytest
import torch

from labkit import cli
from labkit.faults import FAULTS, Fault, Training, TrainingOutcome, cards, explain, run, snippet
from labkit.faults.snippet import _Decided
from labkit.frameworks import torch_amp
from labkit.widgets.fault_wall.widget import behind

ROOT = Path(__file__).parents[2]
# These take half a second and more each, a minute together; their tests are slow.
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
# Of the test under the lists of CUDA, these run in the quick tests.
QUICK = {"bce_on_probabilities", "gradcheck_in_fp32", "inference_tensors", "mse_underflows"}
slow = [pytest.mark.slow, pytest.mark.timeout(900)]


def losses_fall(fixed: bool) -> Training:
    """An example of a fault: its loss falls only in the repaired form.

    Error: words of its own,
        over two lines
    """
    losses = [1.0 / (number + 1) if fixed else 1.0 for number in range(5)]
    return Training(lambda number: losses[number], range(5), lambda: 1 - losses[-1])


def test_a_training_fails_by_a_low_score() -> None:
    fault = Fault(losses_fall)
    broken = run(fault, fixed=False)
    assert broken == TrainingOutcome((1.0,) * 5, 0.0)
    assert fault.failed(broken)
    fixed = run(fault, fixed=True)
    assert fixed == TrainingOutcome((1.0, 0.5, 1 / 3, 0.25, 0.2), 0.8)
    assert not fault.failed(fixed)


@pytest.mark.parametrize(
    ("message", "failed"),
    [("the disk is full", False), ("words of its own, over two lines, and more", True)],
)
def test_a_training_fails_by_the_error_of_its_fault_only(message: str, failed: bool) -> None:
    outcome = TrainingOutcome((), float("nan"), f"RuntimeError: {message}")
    assert Fault(losses_fall).failed(outcome) is failed


@pytest.mark.filterwarnings("ignore:Detected call of")
@pytest.mark.parametrize(
    "names", [FAULTS.keys() - LONG, pytest.param(LONG, marks=slow)], ids=["quick", "long"]
)
def test_broken_trainings_fail_and_repaired_ones_do_not(names: set[str]) -> None:
    """The error that ends a broken one leads to its fault, and neither changes torch's state."""
    # No name of LONG is outdated.
    assert names <= FAULTS.keys()
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
    """The lab's autocast, which uses the lists of CUDA also on a CPU, replaces torch's.

    Under CUDA's lists `sum` and `exp` are computed in FP32, under those of CPUs they are not.
    """
    faces = {name: getattr(torch_amp, name) for name in ("autocast", "custom_fwd", "custom_bwd")}
    for name, face in faces.items():
        monkeypatch.setattr(torch.amp, name, face)
    monkeypatch.setattr(torch, "autocast", torch_amp.autocast)
    wrong: dict[str, object] = {}
    for name in sorted(names):
        fault = FAULTS[name]
        if fault.shown is not None:
            # It runs in processes of its own, in which torch's autocast is not replaced.
            continue
        broken = run(fault, fixed=False)
        fixed = run(fault, fixed=True)
        is_absent = fault.only == "cpu" or bool(fault.prevented)
        if fault.failed(broken) is is_absent or fault.failed(fixed):
            wrong[name] = broken, fixed
    assert not wrong


WITH_LIMITS = [fault for fault in FAULTS.values() if fault.only or fault.prevented]


@pytest.mark.parametrize("fault", WITH_LIMITS, ids=lambda fault: fault.id)
def test_the_page_of_errors_says_where_a_fault_occurs(fault: Fault) -> None:
    assert fault.only in ("", "cpu", "cuda")
    assert fault.where
    assert fault.where in (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")


def test_explain_says_where_a_fault_occurs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "stale_cast"]) == 0
    assert "labkit's autocast casts a weight again" in " ".join(capsys.readouterr().out.split())


def test_the_fault_wall_says_where_a_fault_occurs() -> None:
    fault = FAULTS["stale_cast"]
    assert behind(fault)["told"][-1] == ["Where", fault.where]


def test_a_fault_of_cpus_says_so() -> None:
    where = "Only torch.autocast('cpu') shows it: the lists of other devices differ."
    assert Fault(losses_fall, only="cpu").where == where


def losses_of_two_batches(model, batches):
    """An answer to a consultation of lesson 10."""
    return [model(x).float().sum() for x, _ in batches[:2]], None


def run_on_a_gpu() -> dict[str, bool]:
    """Run three faults and a consultation, and return facts that must all be true."""
    from labkit_lessons.lesson_10_clinic import look

    torch.manual_seed(12)
    torch.rand(3, device="cuda")
    cpu_state = torch.get_rng_state()
    gpu_state = torch.cuda.get_rng_state()
    facts = {}
    for name in ("mse_underflows", "denominator_underflows", "inference_tensors"):
        facts[f"{name} fails"] = FAULTS[name].failed(run(FAULTS[name], fixed=False))
    facts["the consultation succeeds"] = not look("clip", losses_of_two_batches).error
    facts["the CPU's random state is the same"] = torch.equal(cpu_state, torch.get_rng_state())
    facts["the GPU's random state is the same"] = torch.equal(gpu_state, torch.cuda.get_rng_state())
    return facts


def test_the_loss_of_small_residuals_is_exactly_0() -> None:
    outcome = run(FAULTS["mse_underflows"], fixed=False)
    assert set(outcome.losses) == {0.0}


@pytest.mark.slow
def test_a_gpus_random_state_is_left_as_it_was(simulated_gpu) -> None:
    facts = simulated_gpu("T4", run_on_a_gpu)
    assert len(facts) == 6
    assert [fact for fact, is_true in facts.items() if not is_true] == []


each_fault = pytest.mark.parametrize("fault", FAULTS.values(), ids=lambda fault: fault.id)


@each_fault
def test_texts_of_a_fault_are_sentences(fault: Fault) -> None:
    for text in (fault.title, fault.symptom, fault.cause, fault.reading, fault.repair):
        assert text.rstrip()[-1] in ".?!", text


@each_fault
def test_a_fault_names_threads(fault: Fault) -> None:
    assert fault.threads
    for thread in fault.threads:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+#\d+|https://\S+", thread), thread


def test_claims_of_faults_exist() -> None:
    with (ROOT / "data" / "claims.csv").open(newline="", encoding="utf-8") as file:
        claims = {row["id"] for row in csv.DictReader(file)}
    for name, fault in FAULTS.items():
        assert set(fault.claims) <= claims, name


@each_fault
def test_errors_of_a_fault_lead_to_it(fault: Fault) -> None:
    for words in fault.errors:
        assert fault in explain(f"RuntimeError: {words}\n  at line 5"), words


@each_fault
def test_both_snippets_of_a_fault_are_python(fault: Fault) -> None:
    broken = snippet(fault, fixed=False)
    fixed = snippet(fault, fixed=True)
    assert broken != fixed
    for code in (broken, fixed):
        compile(f"def training():\n{textwrap.indent(code, '    ')}", fault.id, "exec")


@pytest.mark.parametrize(
    ("choice", "fixed", "branch"),
    [
        ("fixed", True, "first()"),
        ("fixed", False, "second()"),
        ("not fixed", True, "second()"),
        ("fixed and True", True, "first()"),
        ("fixed or False", False, "second()"),
    ],
)
def test_a_snippet_has_the_branch_of_its_form(choice: str, fixed: bool, branch: str) -> None:
    tree = ast.parse(f"if {choice}:\n    first()\nelse:\n    second()")
    assert ast.unparse(_Decided(fixed).visit(tree)) == branch


def test_a_snippet_keeps_what_its_form_does_not_decide() -> None:
    decided = _Decided(True).visit(ast.parse("x = fixed and late\ny = late and fixed and last"))
    assert ast.unparse(decided) == "x = late\ny = late and last"


def test_explain_prints_the_repair_of_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "Attempting", "to", "unscale", "FP16", "gradients."]) == 0
    assert "Repair:" in capsys.readouterr().out


def test_explain_lists_all_faults(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(cards())


def test_explain_shows_the_code_and_scores_of_a_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "positions_in_half"]) == 0
    output = capsys.readouterr().out
    assert "dtype = torch.float16" in output
    assert re.search(r"score 0\.\d+; 0\.9 or more is healthy", output)
    assert "score 1; 0.9 or more is healthy" in output


def test_explain_says_that_a_message_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "list index out of range"]) == 1
    assert "No known fault" in capsys.readouterr().err


def test_explain_suggests_the_nearest_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "clip_befor_unscale"]) == 1
    assert "Did you mean `labkit explain clip_before_unscale`?" in capsys.readouterr().err
