"""A hundred answers to the clinic, run in the sandbox: only right repairs earn all points.

Each answer is the lesson's own cell with some lines replaced, here or in clinic_edits.toml.
"""

import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from labkit.course import lessons
from labkit.grading import EXERCISES
from labkit.grading.batch import answers_in, request_of
from labkit.grading.exercise import Outcome
from labkit.grading.judge import grading_cases, judge, outcomes_of
from labkit.grading.program import program_of
from labkit.grading.sandbox.runner import Runner, scratch
from labkit.grading.sandbox.worker import Limits
from tests.grading.cases import cells_of

NAMES = (
    "clip",
    "unscale",
    "region",
    "schedule",
    "function",
    "mask",
    "gains",
    "eval",
    "penalty",
    "overflow",
)
SEED = 1
# Pairs of a text in the code and its replacement.
Edits = Sequence[Sequence[str]]

AUTOCAST, APPEND = 'torch.autocast("cpu", torch.float16)', "losses.append(loss.item())"
SCALER_STEP = "scaler.step(optimizer)"
IN_FP32 = (AUTOCAST, AUTOCAST[:-1] + ", enabled=False)")
IN_BF16 = (AUTOCAST, AUTOCAST.replace("float16", "bfloat16"))
FALLING = (APPEND, "losses.append(2.3 - 0.05 * len(losses))")
EDITS = tomllib.loads(Path(__file__).with_name("clinic_edits.toml").read_text(encoding="utf-8"))
FAULT: dict[str, Edits] = EDITS["fault"]
STEP: dict[str, tuple[str, str]] = dict.fromkeys(
    NAMES, (f"        {SCALER_STEP}\n", "")
) | dict.fromkeys(("function", "mask", "gains"), ("        optimizer.step()\n", ""))
RATE = ("lr=", "lr=0.6 * ")
# Noise as large as the rounding of FP16.
NOISE = (
    "    for inputs",
    "    for p in model.parameters():\n"
    "        p.register_hook(lambda g: g * (1 + 2.0**-11 * torch.randn_like(g)))\n"
    "    for inputs",
)

# A learner's cell that manipulates the modules that observe the training, as far as it can.
WITNESS = """
import sys
from labkit_lessons.lesson_10_clinic import CONSULTATIONS, Treatment
import dataclasses
observer = sys.modules[Treatment.__module__.replace("treatment", "observer")]
made = Treatment.__init__
def lie(self, *args, **fields):
    better = dict(half=1.0, score=1.0, examples=10**6, steps=64, still=(), decided=10**3)
    made(self, *args, **(fields | better))
Treatment.__init__ = lie
observer.Observations.products = property(lambda self: {"float16": 10**6, "bfloat16": 10**6})
for name, case in CONSULTATIONS.items():
    CONSULTATIONS[name] = dataclasses.replace(case, score=lambda model: 1.0, limit=0.0, half=0.0)
"""
FORGED = """
def forged(model, batches):
    with torch.no_grad():
        for step in range(len(batches)):
            for p in model.parameters():
                p.add_(0.01 * torch.randn_like(p))
            for module in model.modules():
                for hook in list(module._forward_pre_hooks.values()):
                    hook(module, (batches[step][0],))
    return [2.3 - 0.05 * step for step in range(len(batches))], DIAGNOSIS
"""


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with scratch() as folder, Runner(Limits(), folder) as runner:
        yield runner


@pytest.fixture(scope="module")
def programs() -> dict[str, list[str]]:
    cells = cells_of("10_clinic")
    return {name: program_of(cells, EXERCISES[f"clinic.{name}"]) for name in NAMES}


def edited(program: list[str], *edits: Sequence[str], before: str = "") -> list[str]:
    """Return the program with parts of its last cell replaced.

    Args:
        program: The cells of the program.
        *edits: Pairs of a text, which must occur in the last cell, and its replacement.
        before: Code that is put before the last cell.
    """
    *others, own = program
    for old, new in edits:
        assert old in own, (old, own)
        own = own.replace(old, new)
    return [*others, before + own]


def refused_by(runner: Runner, name: str, program: list[str]) -> set[str]:
    """Return the names of the observations that fail an answer; the empty set means full marks.

    A failure without observations counts as "error".
    """
    case_set = grading_cases(EXERCISES[f"clinic.{name}"], SEED)
    (reply,) = runner.run([request_of(case_set, program)]).values()
    assert not reply.note, reply.note
    found = [outcome for group in outcomes_of(case_set, answers_in(reply)) for outcome in group]
    passed = [isinstance(outcome, Outcome) and outcome.passed for outcome in found]
    assert all(passed) == (judge(case_set, answers_in(reply)).points == 3)
    refused = [outcome for outcome, well in zip(found, passed, strict=True) if not well]
    return {str(fact) for outcome in refused for fact in getattr(outcome, "facts", ("error",))}


def falsified(name: str, program: list[str]) -> dict[str, tuple[list[str], set[str]]]:
    """Return wrong answers, each with names of observations, at least one of which must fail it."""
    right = program
    entry = EXERCISES[f"clinic.{name}"].entry
    diagnosis = right[-1].rpartition("return losses, ")[2].splitlines()[0]
    fault = FAULT[name]
    if name == "gains":
        fp32: Edits = (("    model.linear.bfloat16()\n", ""), (".bfloat16()", ""))
        narrow: Edits = (
            ("model.linear.bfloat16()", "model.linear.half()"),
            (".bfloat16()", ".half()"),
        )
    else:
        fp32 = (IN_FP32,)
        narrow = (IN_BF16,)
    broken = {
        "error",
        "losses",
        "updates",
        "steps",
        "finite losses",
        "all parameters",
        "schedule",
        "score",
    }
    special: dict[str, tuple[list[str], set[str]]] = {}
    # The noise of steps is not compared where weights may be BF16.
    if name != "gains":
        noisy = edited(right, *fp32, NOISE, before=WITNESS)
        special["FP32 with noise"] = (noisy, {"rounding of steps"})
    if 'GradScaler("cpu"' in right[-1]:
        off = ('GradScaler("cpu"', 'GradScaler("cpu", enabled=False')
        special["a scaler that is switched off"] = (edited(right, off), {"loss scale"})
    return special | {
        "untreated": (edited(right, *fault), broken),
        "made-up losses": (edited(right, FALLING), {"losses"}),
        "made-up losses, untreated": (edited(right, *fault, FALLING), broken),
        "other format": (edited(right, *narrow), {"format of steps"}),
        "FP32": (edited(right, *fp32), {"format of steps"}),
        "FP32, witness and score patched": (
            edited(right, *fp32, before=WITNESS),
            {"format of steps"},
        ),
        "untreated, witness and score patched": (edited(right, *fault, before=WITNESS), broken),
        "no step": (edited(right, STEP[name]), {"steps", "error"}),
        "another learning rate": (edited(right, RATE), {"learning rate", "schedule", "updates"}),
        "forged weights": (
            [*right[:-1], f"{WITNESS}{FORGED.replace('DIAGNOSIS', diagnosis)}\n{entry} = forged\n"],
            {"updates", "steps", "all parameters"},
        ),
        "every other batch twice": (
            edited(
                right, ("in batches:", "in [batches[n // 2 * 2] for n in range(len(batches))]:")
            ),
            {"losses"},
        ),
    }


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_passes_as_it_is_graded(
    name: str, runner: Runner, programs: dict[str, list[str]]
) -> None:
    """The notebooks' own calls are tested by the slow tests of the lessons."""
    assert refused_by(runner, name, programs[name]) == set()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_dozen_wrong_answers_are_each_refused_by_name(
    name: str, runner: Runner, programs: dict[str, list[str]]
) -> None:
    wrong = falsified(name, programs[name])
    dropped = EDITS["dropped"][name]
    wrong["a condition dropped"] = (
        edited(programs[name], *dropped["edits"]),
        set(dropped["refused_by"]),
    )
    assert len(wrong) >= 10
    found = {what: refused_by(runner, name, program) for what, (program, _) in wrong.items()}
    assert {what: facts for what, facts in found.items() if not facts & wrong[what][1]} == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_unusual_repairs_keep_all_points(
    name: str, runner: Runner, programs: dict[str, list[str]]
) -> None:
    for edits in EDITS["unusual"][name]:
        assert refused_by(runner, name, edited(programs[name], *edits)) == set(), edits


def test_the_observer_of_a_training_needs_no_file_of_its_lesson(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the sandbox, the lessons' folders are hidden after their modules were imported."""
    (observer,) = (
        module for lesson in lessons() if (module := lesson.module("observer")) is not None
    )

    def hidden(path: Path) -> bytes:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_bytes", hidden)
    assert observer.unpatched().unpatched().SOURCE == observer.SOURCE
