"""The clinic: a diagnosis is true of the lesson's run, any honest repair passes, and what gives something up fails."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from labkit.clinic import CONSULTATIONS, Treatment, look, treat
from labkit.grading import EXERCISES, check
from labkit.grading.alike import Alike, plain
from labkit.grading.exercises.clinic_runs import _near, diagnosed, treated
from labkit.grading.given.child import Question
from labkit.grading.given.keeper import Reply
from labkit.grading.given.wire import Instance, dump, load
from tests.grading.test_doors import cells_of

NAMES = tuple(CONSULTATIONS)


def as_it_came(name: str) -> Treatment:
    """Run the training of the lesson's own cell."""
    names: dict[str, Any] = {"torch": torch, "nn": nn, "F": F, "look": look, "print": lambda *_: None}
    (cell,) = [cell for cell in cells_of("10_clinic") if f"def {name}_as_it_came" in cell.source]
    definitions = cell.source.partition("\nseen = ")[0].partition("\ntreatment_figure")[0].partition("\nprint(")[0]
    exec(definitions.replace("warnings.filterwarnings", "#"), names)
    return look(name, names[f"{name}_as_it_came"])


def diagnosis(name: str) -> tuple[str, Any]:
    """Return what the reference says."""
    said = treat(name, EXERCISES[f"clinic.{name}"].reference, steps=2).diagnosis
    assert isinstance(said, tuple)
    return said


# --- the diagnoses ---


def test_clipped_gradients_are_as_long_as_the_diagnosis_says() -> None:
    assert as_it_came("clip").norms == pytest.approx([diagnosis("clip")[1]] * 40, rel=1e-3)


def test_the_first_nan_is_in_the_batch_that_has_a_text_without_a_token() -> None:
    (empty,) = [n for n, (*_, padding) in enumerate(CONSULTATIONS["mask"].batches(40, 0)) if padding.all(1).any()]
    losses = np.array(as_it_came("mask").losses)
    assert int(np.isnan(losses).argmax()) == diagnosis("mask")[1] == empty


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


@pytest.mark.parametrize(
    ("said", "fits"), [(0.89, False), (0.91, True), (1.0, True), (1, True), (1.09, True), (1.11, False)]
)
def test_a_number_may_be_off_by_a_tenth(said: float, fits: bool) -> None:
    assert _near(1.0, said) == fits
    assert not _near(1.0, "1.0")
    assert _near(11, 11)
    assert not _near(11, 12)


@pytest.mark.parametrize("said", [None, "softmax", ("softmax",), ("a word of my own", 11), ["softmax", 11]])
def test_what_is_no_diagnosis_is_told_what_one_is(said: object) -> None:
    outcome: Any = diagnosed(("softmax", 11), ("softmax", "loss"), Instance("Treatment", {"diagnosis": said}), (0, 2))
    assert not outcome.passed
    assert outcome.says.startswith("a diagnosis is one of 'softmax', 'loss', and how much; not ")


def test_half_a_diagnosis_is_told_nothing_of_its_half() -> None:
    says = [
        str(diagnosed(("log", 0.0), ("log", "loss"), Instance("Treatment", {"diagnosis": said}), ()))
        for said in (("log", 1.0), ("loss", 0.0), ("loss", 1.0))
    ]
    assert len({text[text.index("does not fit") :].partition("facts")[0] for text in says}) == 1


# --- both sides of each limit ---

WELL = Treatment(
    losses=(1.0,) * 40, diagnosis=None, score=0.6, products=200, half=0.9, examples=2560, steps=40, rates=(0.5,) * 40,
    weights=("float32",),
)  # fmt: skip


def judged(name: str = "clip", **changes: Any) -> Any:
    return treated(name, load(dump(replace(WELL, **changes))), (1, None))


@pytest.mark.parametrize(
    ("at", "beyond", "says"),
    [
        ({}, {"score": 0.59}, "it reaches 0.59; 0.6 is asked"),
        ({}, {"score": float("nan")}, "it reaches nan"),
        ({}, {"half": 0.89}, "89% of its products are computed in 16 bits"),
        ({}, {"examples": 2559}, "1 of 2560 examples never went through the model"),
        ({}, {"steps": 39}, "39 of 40 steps were taken"),
        ({}, {"losses": (1.0,) * 39}, "it returns 39 losses of 40 steps"),
        ({}, {"losses": (1.0,) * 39 + (float("inf"),)}, "no finite number, first in step 39"),
        ({}, {"weights": ("float16",)}, "its weights are float16 in the end"),
        ({}, {"still": ("linear1.bias",)}, "linear1.bias never moved"),
    ],
)  # fmt: skip
def test_a_treatment_passes_at_each_limit_and_fails_beyond_it(at: dict, beyond: dict, says: str) -> None:
    assert judged(**at).passed
    assert not judged(**beyond).passed
    assert says in judged(**beyond).says


def test_limits_of_single_consultations() -> None:
    enough = {"losses": (1.0,) * 64, "examples": 4096, "rates": (0.5,) * 30 + (0.05,) * 10}
    assert judged("schedule", **enough).passed
    assert not judged("schedule", **{**enough, "steps": 39}).passed
    for rates in ((0.4, 0.05), (0.5, 0.06), ()):
        assert "the learning rate goes from" in judged("schedule", **{**enough, "rates": rates}).says
    few = {"losses": (1.0,) * 30, "examples": 1920, "steps": 30}
    assert judged("penalty", **few, products=240).passed
    assert "it computes 8 products a step" in judged("penalty", **few, products=239).says
    assert judged("region", steps=38).passed
    assert not judged("region", steps=37).passed


# --- repairs ---


def region(model: Any, batches: Any, *, epsilon: float = 1e-8, cast: bool = True, catches: bool = False) -> Any:
    optimizer, scaler = torch.optim.Adam(model.parameters(), lr=1e-2), torch.amp.GradScaler("cpu")
    losses = []
    for inputs, targets in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            outputs = model(inputs)
        chance = (outputs.float() if cast else outputs).softmax(1)
        wanted = F.one_hot(targets, 10).to(chance.dtype)
        loss = (wanted * ((wanted + epsilon).log() - (chance + epsilon).log())).sum(1).mean()
        losses.append(0.0 if catches else loss.item())
        try:
            assert not catches
            scaler.scale(loss).backward()
        except AssertionError:
            continue
        scaler.step(optimizer)
        scaler.update()
    return losses, ("log", 0.0)


@pytest.mark.parametrize(
    ("how", "points"),
    [({}, 3), ({"epsilon": 1e-3, "cast": False}, 3), ({"cast": False}, 1), ({"catches": True}, 1)],
)
def test_a_repair_may_be_another_one_and_a_catch_is_none(how: dict[str, Any], points: int) -> None:
    grade = check("clinic.region", lambda model, batches: region(model, batches, **how))
    assert grade.points == points, str(grade)
    assert points == 3 or "0 of 40 steps were taken" in str(grade) or "no finite number" in str(grade)


def test_hard_coded_losses_train_nothing() -> None:
    grade = check(
        "clinic.clip",
        lambda model, batches: ([1.0 / (n + 1) for n in range(len(batches))], ("clip_grad_norm_", 2**-16)),
    )
    assert grade.points == 1
    assert "examples never went through the model" in str(grade)


def test_an_answer_of_another_form_is_told_which_is_wanted() -> None:
    assert "a treatment returns two things" in str(check("clinic.clip", lambda model, batches: [1.0]))
    assert "it is called as my_clip_training(model, batches), but yours takes (model)" in str(
        check("clinic.clip", lambda model: None)
    )


def masters(model: Any, batches: Any) -> Any:
    model.bfloat16()
    kept = [p.detach().float().requires_grad_() for p in model.parameters()]
    optimizer, losses = torch.optim.Adam(kept, lr=1e-3), []
    for inputs, targets in batches:
        model.zero_grad()
        loss = F.cross_entropy(model.linear(model.norm(inputs.flatten(1).bfloat16())).float(), targets)
        loss.backward()
        with torch.no_grad():
            for master, parameter in zip(kept, model.parameters(), strict=True):
                master.grad = parameter.grad.float()
            optimizer.step()
            for master, parameter in zip(kept, model.parameters(), strict=True):
                parameter.copy_(master)
        losses.append(loss.item())
    return losses, ("norm.weight", 2**-8)


def buffers_put_back(model: Any, batches: Any) -> Any:
    optimizer, scaler = torch.optim.Adam(model.parameters(), lr=3e-3), torch.amp.GradScaler("cpu")
    losses = [0.0]
    for inputs, targets in batches:
        before, scale = [b.clone() for b in model.buffers()], scaler.get_scale()
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() < scale:
            for buffer, was in zip(model.buffers(), before, strict=True):
                buffer.copy_(was)
        losses.append(loss.item() if loss.isfinite() else losses[-1])
    return losses[1:], ("statistics", 11)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "repair"), [("gains", masters), ("eval", buffers_put_back)])
def test_other_repairs_that_patients_name_pass(name: str, repair: Any) -> None:
    assert check(f"clinic.{name}", repair).points == 3


# --- the look ---


def test_nothing_is_left_behind_and_no_random_number_is_drawn() -> None:
    state, update = torch.get_rng_state(), torch.amp.GradScaler.update
    with pytest.raises(RuntimeError, match="the disk is full"):
        treat("clip", disk_is_full, steps=2)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.amp.GradScaler.update is update
    assert look("clip", disk_is_full).error == "RuntimeError: the disk is full"


def disk_is_full(model: Any, batches: Any) -> Any:
    torch.rand(5)
    raise RuntimeError("the disk is full")


def test_a_seed_decides_the_treatment() -> None:
    work = EXERCISES["clinic.gains"].reference
    assert treat("gains", work, 3, 4) == treat("gains", work, 3, 4) != treat("gains", work, 4, 4)


# --- equal repairs ---


def asks(*program: str) -> Question:
    return Question("clinic.clip", program, "f", "f(model, batches)", [])


def test_programs_that_are_alike_are_run_once() -> None:
    run: list[Question] = []
    said: list[Reply] = []

    class Runner:
        def run(self, questions: list[Question]) -> dict[str, Reply]:
            run.extend(questions)
            return {questions[0].exercise: Reply(questions[0].exercise, f"run {len(run)}")}

    alike = Alike(Runner())  # type: ignore[arg-type]
    first = alike.reply(asks("def f(model, batches):\n    return 1"))
    twin = asks('def f(model, batches):\n    "Mine."\n    return 1  # one')
    thread = threading.Thread(target=lambda: said.append(alike.reply(twin)))
    thread.start()
    thread.join()
    assert said == [first]
    assert [first.note, alike.reply(asks("def f(model, batches): return 2")).note] == ["run 1", "run 2"]
    assert len(run) == 2


def test_a_program_that_is_not_python_is_alike_itself_alone() -> None:
    assert plain("def f(:") == "def f(:"
    assert plain("x = 1") != plain("x = 2")


def test_who_waits_for_a_run_that_breaks_hears_of_it() -> None:
    class Broken:
        def run(self, questions: list[Question]) -> dict[str, Reply]:
            raise OSError("no process")

    alike = Alike(Broken())  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(OSError, match="no process"):
            alike.reply(asks("x = 1"))


def test_a_repair_may_put_another_layer_in_place_and_set_the_scale_itself() -> None:
    def work(model, batches):
        model.norm = nn.Sequential(model.norm)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        for inputs, targets in batches:
            scaler.scale(nn.functional.cross_entropy(model(inputs), targets)).backward()
            scaler.step(optimizer)
            scaler.update(new_scale=4.0)
        return [0.0], None

    seen = look("gains", work)
    assert (seen.error, seen.still, seen.steps) == ("", (), 20)
    assert seen.scales == (8.0, *[4.0] * 19)
