"""The clinic: diagnoses against the faulty runs, limits of the judgement, and equal programs."""

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from labkit.grading import EXERCISES, check
from labkit.grading.batch import SharedReplies
from labkit.grading.program import bare
from labkit.grading.sandbox.supervisor import Reply
from labkit.grading.sandbox.wire import Instance, dump, load
from labkit.grading.sandbox.worker import Request
from labkit_lessons.lesson_10_clinic import CONSULTATIONS, Treatment, look, treat
from tests.grading.cases import cells_of, lesson_module

NAMES = tuple(CONSULTATIONS)
diagnoses = lesson_module("10_clinic", "diagnoses")
runs = lesson_module("10_clinic", "runs")
replay = lesson_module("10_clinic", "replay")


def as_it_came(name: str) -> Treatment:
    """Run the training of the lesson's own cell."""
    names: dict[str, Any] = {
        "torch": torch,
        "nn": nn,
        "F": F,
        "look": look,
        "print": lambda *_: None,
    }
    (cell,) = [cell for cell in cells_of("10_clinic") if f"def {name}_as_it_came" in cell.source]
    definitions = (
        cell.source.partition("\nseen = ")[0]
        .partition("\ntreatment_figure")[0]
        .partition("\nprint(")[0]
    )
    exec(definitions.replace("warnings.filterwarnings", "#"), names)
    return look(name, names[f"{name}_as_it_came"])


def diagnosis(name: str) -> tuple[str, Any]:
    """Return what the reference says."""
    diagnosis = treat(name, EXERCISES[f"clinic.{name}"].reference, steps=2).diagnosis
    assert isinstance(diagnosis, tuple)
    return diagnosis


def test_a_treatment_runs_on_one_thread_and_restores_the_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("LABKIT_THREADS", raising=False)
    counts = []
    before = torch.get_num_threads()

    def work(model: Any, batches: Any) -> object:
        counts.append(torch.get_num_threads())
        return [], None

    torch.set_num_threads(2)
    try:
        treat("clip", work, steps=0)
        counts.append(torch.get_num_threads())
    finally:
        torch.set_num_threads(before)
    assert counts == [1, 2]


# --- the diagnoses ---


def test_clipped_gradients_are_as_long_as_the_diagnosis_says() -> None:
    assert as_it_came("clip").norms == pytest.approx([diagnosis("clip")[1]] * 40, rel=1e-3)


def test_first_nan_is_in_the_batch_with_an_empty_text() -> None:
    (empty,) = [
        n
        for n, (*_, padding) in enumerate(CONSULTATIONS["mask"].batches(40, 0))
        if padding.all(1).any()
    ]
    losses = np.array(as_it_came("mask").losses)
    assert int(np.isnan(losses).argmax()) == empty
    assert diagnosis("mask")[1] == empty


def test_numbers_of_a_format_are_numpys() -> None:
    assert float(np.float16(1e-8)) == diagnosis("region")[1]
    assert float(np.spacing(np.float16(0.125))) / 2 == diagnosis("unscale")[1]
    one = torch.ones((), dtype=torch.bfloat16)
    assert float(torch.nextafter(one, one + 1) - one) / 2 == diagnosis("gains")[1]
    length = diagnosis("overflow")[1]
    with np.errstate(over="ignore"):
        squares = np.square(np.array([0.99 * length, length]), dtype=np.float16, casting="unsafe")
    assert np.isinf(squares).tolist() == [False, True]


@pytest.mark.slow
def test_other_diagnoses_are_what_their_runs_show() -> None:
    with pytest.warns(UserWarning, match="Detected call of"):
        seen = as_it_came("schedule")
    assert 64 - seen.steps == diagnosis("schedule")[1]
    assert as_it_came("gains").still == (diagnosis("gains")[0],)
    losses = np.array(as_it_came("eval").losses)
    assert np.flatnonzero(~np.isfinite(losses)).tolist() == [diagnosis("eval")[1]]
    assert "expected m1 and m2 to have the same dtype" in as_it_came("function").error
    assert "Attempting to unscale FP16 gradients" in as_it_came("unscale").error
    assert diagnosis("penalty")[1] == (2.0**16) ** 2


def test_parameters_of_any_shape_that_did_not_change_are_named() -> None:
    def without_steps(model: nn.Module, batches: list[Any]) -> tuple[list[float], None]:
        with torch.no_grad():
            model.get_parameter("norm.bias").add_(1)
        return [0.0] * len(batches), None

    assert treat("gains", without_steps).still == ("norm.weight", "linear.weight", "linear.bias")


def judged_diagnosis(right: tuple[str, Any], diagnosis: object) -> Any:
    """Return the outcome of a diagnosis, among the place of the right one and the loss."""
    answer = Instance("Treatment", {"diagnosis": diagnosis})
    return diagnoses.Diagnosed(right, (right[0], "loss"))(answer, (0, 2))


@pytest.mark.parametrize(
    ("amount", "fits"),
    [(0.89, False), (0.91, True), (1, True), (1.09, True), (1.11, False), ("1.0", False)],
)
def test_number_may_be_off_by_a_tenth(amount: object, fits: bool) -> None:
    assert judged_diagnosis(("log", 1.0), ("log", amount)).passed is fits


def test_a_count_must_be_exact() -> None:
    assert isinstance(diagnosis("schedule")[1], int)
    assert judged_diagnosis(("log", 20), ("log", 20)).passed
    assert not judged_diagnosis(("log", 20), ("log", 21)).passed


@pytest.mark.parametrize(
    "malformed", [None, "softmax", ("softmax",), ("a word of my own", 11), ["softmax", 11]]
)
def test_a_malformed_diagnosis_names_the_places(malformed: object) -> None:
    outcome = judged_diagnosis(("softmax", 11), malformed)
    assert not outcome.passed
    assert outcome.says.startswith("a diagnosis is one of 'softmax', 'loss', and how much; not ")


def test_a_wrong_diagnosis_does_not_say_which_part_is_wrong() -> None:
    wrong = (("log", 1.0), ("loss", 0.0), ("loss", 1.0))
    outcomes = [judged_diagnosis(("log", 0.0), diagnosis) for diagnosis in wrong]
    assert not any(outcome.passed for outcome in outcomes)
    assert len({outcome.says.partition(" does not fit")[2] for outcome in outcomes}) == 1


# --- both sides of each limit ---


@cache
def well(name: str) -> Treatment:
    """Return the treatment of the reference, on the batches of seed 1."""
    return treat(name, EXERCISES[f"clinic.{name}"].reference, seed=1)


def judged(name: str, **changes: Any) -> Any:
    return runs.treated(name, load(dump(replace(well(name), **changes))), (1, None))


def states(name: str) -> torch.Tensor:
    found = well(name).states
    assert found is not None
    return found.clone()


def test_process_counts_pass_at_each_limit_and_fail_beyond() -> None:
    for fact, at, beyond, says in (
        ("half", 0.9, 0.89, "format of products: 89% of its products are computed in float16"),
        ("examples", 2560, 2559, "examples: 1 of 2560 examples never went through the model"),
        (
            "weights",
            ("float32",),
            ("float16",),
            "format of weights: its weights are float16 in the end",
        ),
    ):
        assert judged("clip", **{fact: at}).passed
        assert says in judged("clip", **{fact: beyond}).says


def test_a_loss_may_be_off_by_four_roundings_of_fp16() -> None:
    for step in (0, 20, 39):
        for roundings, passed in ((3.5, True), (-3.5, True), (5, False)):
            losses = list(well("clip").losses)
            losses[step] += roundings * 2.0**-11 * max(1.0, losses[step])
            outcome = judged("clip", losses=tuple(losses))
            assert outcome.passed == passed, (
                step,
                roundings,
            )
            assert ("losses" in outcome.facts) == (not passed), (
                step,
                roundings,
            )
        assert f"1 of 40 losses are not those of its weights: step {step} returns" in outcome.says


def test_missing_losses_and_unrelated_weights_are_named() -> None:
    right = states("clip")
    other = right.clone()
    other[20] += 0.01
    score = "score: expected the share of test digits that it gets right to be at least 0.6, got 0."
    for name, changes, fact, says in (
        ("clip", {"losses": (1.0,) * 39}, "number of losses", ""),
        ("clip", {"losses": (1.0,) * 39 + (float("inf"),)}, "finite losses", "is not finite"),
        ("clip", {"losses": (1.0,) * 40}, "losses", ""),
        ("clip", {"states": other}, "updates", ""),
        ("clip", {"states": right + 0.01}, "first weights", ""),
        ("clip", {"states": right[:-1]}, "steps", ""),
        ("clip", {"states": right[:2]}, "score", score),
        ("clip", {"states": right[:, 1:]}, "parameters", ""),
        ("clip", {"states": None}, "parameters", ""),
        ("eval", {"buffers": well("eval").buffers[1:]}, "parameters", ""),
    ):
        outcome = judged(name, **changes)
        assert fact in outcome.facts
        assert says in outcome.says


def test_steps_may_be_longer_or_shorter_by_a_twentieth() -> None:
    run = replay.replay("clip", 1, states("clip"), well("clip").losses)
    for rate, passed in {1.0: True, 1.03: True, 0.97: True, 1.08: False, 0.92: False}.items():
        run.lengths = [rate] * 40
        run.clipped = []
        assert ("learning rate" not in runs._problems_of_replay("clip", run, 40)) == passed, rate
        run.clipped = [rate]
        assert ("clipping" not in runs._problems_of_replay("clip", run, 40)) == passed, rate


def test_a_schedule_falls_in_a_line() -> None:
    run = replay.replay("schedule", 1, states("schedule"), well("schedule").losses)
    line = [0.5 * (1 - step / 40) for step in range(40)]
    assert run.rates == pytest.approx(line, abs=0.005)
    for rates in (line[1:], line[:36], [0.5] * 39 + [0.0], []):
        run.rates = rates
        assert "schedule" in runs._problems_of_replay("schedule", run, 64)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_noise_of_steps_tells_the_format(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The noise of a step is the rounding of its format.

    BF16 has three bits less than FP16, so its noise is about 2^3 times as large; a factor between 3
    and 16 is accepted.
    """
    exercise = EXERCISES[f"clinic.{name}"]
    in_fp32 = next(known.answer for known in exercise.mistakes if known.name == "all in FP32")
    wide = treat(name, in_fp32, seed=1)
    assert wide.states is not None
    noises = replay.replay(name, 1, wide.states, wide.losses).noises
    # In eval, the steps after the broken example have more noise: here the last 12 of 30.
    share = 0.5 if name == "eval" else 0.8
    assert replay.quantile(noises, share) < 0.05
    right = replay.quantile(replay.replay(name, 1, states(name), well(name).losses).noises, 0.5)
    assert replay.TEXTS[name].noise[0] < right < replay.TEXTS[name].noise[1]
    if name == "gains":
        # Its format is BF16 already.
        return
    real = torch.autocast
    monkeypatch.setattr(
        torch, "autocast", lambda device, *_, enabled=True: real(device, torch.bfloat16, enabled)
    )
    coarse = treat(name, exercise.reference, seed=1)
    assert coarse.states is not None
    in_bf16 = replay.quantile(replay.replay(name, 1, coarse.states, coarse.losses).noises, 0.5)
    assert 3 < in_bf16 / right < 16


# --- repairs ---


def test_invented_losses_are_refused_with_the_reason() -> None:
    def made_up(model: Any, batches: Any) -> Any:
        return [1.0 / (n + 1) for n in range(len(batches))], ("clip_grad_norm_", 2**-16)

    assert check("clinic.clip", made_up).points == 1
    assert "examples never went through the model" in str(check("clinic.clip", made_up))
    assert "expected a pair, the list of losses and the diagnosis" in str(
        check("clinic.clip", lambda model, batches: [1.0])
    )
    called = "it is called as my_clip_training(model, batches), but yours takes (model)"
    assert called in str(check("clinic.clip", lambda model: None))


# --- the look ---


def disk_is_full(model: Any, batches: Any) -> Any:
    """Draw random numbers, and raise an error."""
    torch.rand(5)
    raise RuntimeError("the disk is full")


def test_a_treatment_that_raises_leaves_torch_as_it_was() -> None:
    state = torch.get_rng_state()
    update = torch.amp.GradScaler.update
    with pytest.raises(RuntimeError, match="the disk is full"):
        treat("clip", disk_is_full, steps=2)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.amp.GradScaler.update is update


def test_look_returns_the_error_of_a_treatment() -> None:
    assert look("clip", disk_is_full).error == "RuntimeError: the disk is full"


def test_a_seed_decides_the_treatment() -> None:
    work = EXERCISES["clinic.gains"].reference
    assert treat("gains", work, 3, 4) == treat("gains", work, 3, 4) != treat("gains", work, 4, 4)


def test_a_check_that_trains_says_in_a_notebook_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    judging = sys.modules[check.__module__]  # labkit.grading.judge is a function
    written: list[str] = []

    def display(shown: Any, display_id: bool) -> Any:
        written.append(shown.data)
        return SimpleNamespace(update=lambda shown: written.append(shown.data))

    monkeypatch.setattr("IPython.display.display", display)
    monkeypatch.setattr(judging, "current_journal", lambda: tmp_path / "answers")
    monkeypatch.setattr(judging, "SECONDS_PER_UPDATE", -1.0)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    for id in ("clinic.clip", "start.smallest"):  # the second one trains nothing
        with judging._progress(EXERCISES[id]):
            optimizer.step()
            optimizer.step()
    steps = ["Training your answer: step 1 ...", "Training your answer: step 2 ..."]
    assert written == [*steps, "Your answer was trained for 2 steps."]


# --- equal repairs ---


def asks(*program: str) -> Request:
    return Request("clinic.clip", program, "f", "f(model, batches)", [])


def test_programs_that_are_alike_are_run_once() -> None:
    run: list[Request] = []

    def answered(questions: list[Request]) -> dict[str, Reply]:
        run.extend(questions)
        return {"clinic.clip": Reply("clinic.clip", f"run {len(run)}")}

    shared = SharedReplies(SimpleNamespace(run=answered))
    first = shared.reply(asks("def f(model, batches):\n    return 1"))
    twin = asks('def f(model, batches):\n    "Mine."\n    return 1  # one')
    with ThreadPoolExecutor() as pool:
        assert pool.submit(shared.reply, twin).result() == first
    other = shared.reply(asks("def f(model, batches): return 2"))
    assert [first.note, other.note] == ["run 1", "run 2"]
    assert len(run) == 2


def test_programs_that_are_alike_share_an_error() -> None:
    run: list[Request] = []

    def fails(questions: list[Request]) -> dict[str, Reply]:
        run.extend(questions)
        raise OSError("no process")

    shared = SharedReplies(SimpleNamespace(run=fails))
    for _ in range(2):
        with pytest.raises(OSError, match="no process"):
            shared.reply(asks("def f(model, batches): return 1"))
    assert len(run) == 1


def test_programs_that_differ_in_a_number_are_not_alike() -> None:
    assert bare("x = 1") != bare("x = 2")


def test_text_that_is_not_python_is_compared_as_it_is() -> None:
    assert bare("def f(:") == "def f(:"
