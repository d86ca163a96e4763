"""Verdicts on pairs of trainings whose difference is known."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from labkit.cli import main
from labkit.instrument import Recording, watch
from labkit.instrument.recording import RecordedStep
from labkit.instrument.sketch import sketch
from labkit.testing import (
    TrainingsDiffer,
    TrainingVerdictKind,
    assert_same_training,
    compare_trainings,
)
from labkit.testing.trainings import starts
from labkit.testing.trainings.distance import Cell
from labkit.testing.trainings.page import HEIGHT, page
from labkit.testing.trainings.reasons import other_loss
from tests.testing.training_runs import Training, record

SAME, ROUNDING, OTHER_START, FAULT = TrainingVerdictKind
HEALTHY = Training()
TWO_RANKS = Training(ranks=2)
# What was planted -> the healthy run, the other one, the verdict, and a word of its reason.
PLANTED = {
    "nothing": (HEALTHY, HEALTHY, SAME, "same bits"),
    "another seed": (HEALTHY, replace(HEALTHY, seed=1), OTHER_START, "seeds are 0 and 1"),
    "another batch order": (
        HEALTHY,
        replace(HEALTHY, order=1),
        OTHER_START,
        "another order of batches",
    ),
    "TF32": (HEALTHY, replace(HEALTHY, operands="tf32"), ROUNDING, "TF32"),
    "one layer in FP16": (HEALTHY, replace(HEALTHY, half="6"), ROUNDING, "float16"),
    "a changed epsilon": (HEALTHY, replace(HEALTHY, eps=1e-4), FAULT, "AdamW eps"),
    "a lost all-reduce": (TWO_RANKS, replace(TWO_RANKS, lost_from=9), FAULT, "all-reduce"),
    "another order of sums": (HEALTHY, replace(HEALTHY, sums="slices"), ROUNDING, "order of sums"),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_the_verdict_names_what_was_planted(planted: str, tmp_path: Path) -> None:
    healthy, other, kind, word = PLANTED[planted]
    verdict = compare_trainings(
        record(healthy, tmp_path / "healthy.labkit"), record(other, tmp_path / "other.labkit")
    )
    assert verdict.kind == kind, str(verdict)
    assert word in verdict.reason, str(verdict)


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """Return a recording of three steps."""
    path = tmp_path_factory.mktemp("short") / "run.labkit"
    return Recording.load(record(Training(steps=3), path))


# Changes that alter only the rounding of a training.
ROUNDINGS = {
    "sums in slices": {"sums": "slices"},
    "sums backwards": {"sums": "backwards"},
    "fused optimizer": {"fused": True},
}
each_rounding = pytest.mark.parametrize("rounding", ROUNDINGS)
each_network = pytest.mark.parametrize("network", ["mlp", "cnn", "lstm", "gpt"])
# Optimizer -> its learning rate.
RATES = {"AdamW": 1e-2, "SGD": 5e-2}


def assert_no_fault(training: Training, rounding: str, folder: Path, every: int = 1) -> None:
    """Assert that a training and one that differs by rounding alone are called no fault."""
    verdict = compare_trainings(
        record(training, folder / "healthy.labkit", every),
        record(replace(training, **ROUNDINGS[rounding]), folder / "other.labkit", every),
    )
    assert verdict.kind in (SAME, ROUNDING), str(verdict)
    # A verdict that judged little would prove little.
    assert verdict.judged > 100


@each_network
@each_rounding
def test_rounding_alone_is_not_a_fault(network: str, rounding: str, tmp_path: Path) -> None:
    training = Training(network=network, lr=RATES["AdamW"], batches=8, steps=20)
    assert_no_fault(training, rounding, tmp_path)


def test_other_sums_change_bits_of_a_training(tmp_path: Path) -> None:
    """So the tests of rounding alone do not compare equal trainings."""
    training = Training(steps=20)
    verdict = compare_trainings(
        record(training, tmp_path / "healthy.labkit"),
        record(replace(training, sums="slices"), tmp_path / "other.labkit"),
    )
    assert any(cell.distance for cell in verdict.cells)


@pytest.mark.slow
@each_network
@each_rounding
@pytest.mark.parametrize("optimizer", RATES)
@pytest.mark.parametrize(
    ("steps", "dropout", "every"), [(60, 0.0, 1), (200, 0.2, 10)], ids=["60 steps", "dropout"]
)
def test_long_trainings_that_differ_by_rounding_are_not_a_fault(
    network: str,
    rounding: str,
    optimizer: str,
    steps: int,
    dropout: float,
    every: int,
    tmp_path: Path,
) -> None:
    training = Training(
        network=network,
        optimizer=optimizer,
        lr=RATES[optimizer],
        batches=8,
        steps=steps,
        dropout=dropout,
    )
    assert_no_fault(training, rounding, tmp_path, every)


# Fault -> the training, the change that plants it, and the kind of the first tensor that differs by
# more than rounding.
FAULTS = {
    "epsilon of layer norms": (Training(network="gpt"), {"norm_eps": 1e-3}, "activations"),
    "clipping": (Training(), {"clip": 0.1}, "step gradients"),
    "learning rate": (Training(network="lstm"), {"lr": 1.1e-2}, "updates"),
    "optimizer": (Training(network="cnn"), {"optimizer": "SGD"}, "updates"),
}


@pytest.mark.parametrize("planted", FAULTS)
def test_a_fault_is_named_with_its_step_and_tensor(planted: str, tmp_path: Path) -> None:
    training, change, kind = FAULTS[planted]
    short = replace(training, steps=6)
    verdict = compare_trainings(
        record(short, tmp_path / "healthy.labkit"),
        record(replace(short, **change), tmp_path / "other.labkit"),
    )
    assert verdict.kind == FAULT, str(verdict)
    assert verdict.step == 0, str(verdict)
    assert verdict.tensor is not None
    assert verdict.tensor[0] == kind, str(verdict)
    assert verdict.line


def test_a_fault_in_the_middle_is_located_in_its_step(tmp_path: Path) -> None:
    verdict = compare_trainings(
        record(TWO_RANKS, tmp_path / "healthy.labkit"),
        record(replace(TWO_RANKS, lost_from=9), tmp_path / "other.labkit"),
    )
    assert verdict.step == 9
    assert verdict.tensor is not None
    assert verdict.tensor[0] == "step gradients"


def test_a_fault_between_sampled_steps_is_located_in_the_next(tmp_path: Path) -> None:
    verdict = compare_trainings(
        record(TWO_RANKS, tmp_path / "healthy.labkit", every=10),
        record(replace(TWO_RANKS, lost_from=9), tmp_path / "other.labkit", every=10),
    )
    assert verdict.kind == FAULT, str(verdict)
    assert verdict.step == 10, str(verdict)


# A script with two optimizers, three backward passes for each step, batches of several lengths, and
# an evaluation between steps. Its argument plants a difference.
SCRIPT = """
import sys

import torch
from torch import nn
from torch.nn.functional import cross_entropy

planted = sys.argv[1]
torch.manual_seed(0)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.lstm = nn.LSTM(8, 16, num_layers=2, batch_first=True, dropout=0.1)
        self.out = nn.Linear(16, 5)

    def forward(self, x):
        return self.out(self.lstm(self.embed(x))[0])


model = Tagger()
trained = torch.compile(model, backend="eager") if planted == "compile" else model
optimizers = [
    torch.optim.Adam(model.embed.parameters(), lr=1e-2),
    torch.optim.SGD([*model.lstm.parameters(), *model.out.parameters()], lr=0.1, momentum=0.9),
]
for step in range(12):
    for optimizer in optimizers:
        optimizer.zero_grad()
    for micro in range(3):
        x = torch.randint(20, (4, 5 + (step + micro) % 3))
        loss = cross_entropy(trained(x).flatten(0, 1), x.flatten() % 5) / 3
        if planted != "micro" or step < 6 or micro:
            loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
    # an evaluation between two steps is not part of the training
    model.eval()
    with torch.no_grad():
        model(torch.full((1, 3), 3 if planted == "evaluation" else 4))
    model.train()
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of the script."""
    path = tmp_path_factory.mktemp("script") / "train.py"
    path.write_text(SCRIPT)
    return path


def record_script(script: Path, planted: str) -> Path:
    """Record the script with a planted difference by `labkit watch`, and return the file."""
    folder = script.parent
    path = folder / f"{planted}.labkit"
    options = ["--every", "1", "--folder", str(folder / "report"), "--record", str(path)]
    assert main(["watch", *options, str(script), planted]) == 0
    return path


def test_a_missing_backward_pass_of_a_script_is_named(script: Path) -> None:
    verdict = compare_trainings(record_script(script, "nothing"), record_script(script, "micro"))
    assert verdict.kind == FAULT, str(verdict)
    assert verdict.step == 6, str(verdict)
    assert "2 backward passes instead of 3" in verdict.reason


def test_another_evaluation_between_steps_is_not_a_fault(script: Path) -> None:
    baseline = record_script(script, "nothing")
    verdict = compare_trainings(baseline, record_script(script, "evaluation"))
    assert verdict.kind is SAME, str(verdict)


def test_a_compiled_script_is_compared_by_its_weights(script: Path) -> None:
    verdict = compare_trainings(record_script(script, "nothing"), record_script(script, "compile"))
    assert verdict.kind in (SAME, ROUNDING), str(verdict)
    assert any("only the baseline has activations" in note for note in verdict.notes)


def test_other_dropout_is_another_seed(tmp_path: Path) -> None:
    training = Training(dropout=0.3, steps=4)
    baseline = record(training, tmp_path / "healthy.labkit")
    other = record(replace(training, draws=1), tmp_path / "other.labkit")
    verdict = compare_trainings(baseline, other)
    assert verdict.kind is OTHER_START
    assert "random numbers" in verdict.reason


def test_another_loss_of_the_same_outputs_is_named(tmp_path: Path) -> None:
    training = Training(steps=4)
    baseline = record(training, tmp_path / "healthy.labkit")
    other = record(replace(training, labels=1), tmp_path / "other.labkit")
    verdict = compare_trainings(baseline, other)
    assert verdict.kind == FAULT
    assert verdict.tensor is None
    assert "other targets" in verdict.reason


def test_another_number_of_calls_is_named() -> None:
    # The digests of two halves add up to that of the whole.
    whole = RecordedStep(step=1, batch=((1, 30),))
    halves = replace(whole, batch=((2, 10), (3, 20)))
    runs = SimpleNamespace(sketches=lambda now, kind: {}, run=SimpleNamespace(sampled=[halves]))
    reason = starts._other_batch(runs, (whole, halves))
    assert "the model was called 1 time, and 2 times in the other run" in reason


class Masked(nn.Module):
    """A mean of the vectors of tokens, under a mask of floats."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.last = nn.Linear(8, 3)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return self.last((self.embed(tokens) * mask[..., None]).mean(1))


def test_other_tokens_under_an_equal_mask_are_another_batch(tmp_path: Path) -> None:
    """The recording has a sketch of the mask, and none of the tokens."""
    recordings = []
    for seed in (1, 2):
        torch.manual_seed(0)
        model = Masked()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        drawn = torch.Generator().manual_seed(seed)
        path = tmp_path / f"{seed}.labkit"
        with watch(model, every=1, against_fp32_every=0).record(path):
            for _ in range(2):
                tokens = torch.randint(10, (16, 5), generator=drawn)
                outputs = model(tokens, torch.ones(16, 5))
                optimizer.zero_grad()
                cross_entropy(outputs, torch.arange(16) % 3).backward()
                optimizer.step()
        recordings.append(path)
    verdict = compare_trainings(*recordings)
    assert verdict.kind is OTHER_START
    assert verdict.reason == "another batch in step 0"


def test_a_call_that_only_one_run_makes_is_not_another_start() -> None:
    """It is a fault, such as a lost part of a batch: the other call has the same inputs."""
    ones = sketch(torch.ones(4))
    once = RecordedStep(step=1, batch=((1, 30),))
    twice = replace(once, batch=((1, 30), (2, 20)))
    pairs = {("inputs", "net 1"): (ones, ones)}
    runs = SimpleNamespace(sketches=lambda now, kind: pairs, run=SimpleNamespace(sampled=[twice]))
    assert starts._other_batch(runs, (once, twice)) == ""


@pytest.mark.parametrize(
    ("here", "there", "says"),
    [
        (1.0, math.nan, "the loss is nan instead of 1"),
        (math.inf, 1.0, "the loss is 1 instead of inf"),
        (math.nan, math.nan, ""),
        (math.inf, math.inf, ""),
        (1.0, 1.0 + 1e-7, ""),
    ],
)
def test_a_loss_that_alone_is_not_finite_is_named(here: float, there: float, says: str) -> None:
    ours = RecordedStep(step=1, loss=here, backward=1)
    theirs = replace(ours, loss=there)
    same = Cell(1, ("activations", "0"), distance=0.0, allowed=0.0)
    assert says in other_loss((ours, theirs), [same])
    assert bool(other_loss((ours, theirs), [same])) == bool(says)


def test_scaled_gradients_are_compared_unscaled(tmp_path: Path) -> None:
    training = Training(steps=8)
    path = record(training, tmp_path / "healthy.labkit")
    scaled = record(replace(training, scaled=True), tmp_path / "other.labkit")
    assert compare_trainings(path, scaled).kind in (SAME, ROUNDING)


def test_other_names_are_matched_by_order(tmp_path: Path) -> None:
    training = Training(steps=4)
    path = record(training, tmp_path / "healthy.labkit")
    other = record(replace(training, wrapped=True), tmp_path / "other.labkit")
    verdict = compare_trainings(path, other)
    assert verdict.kind is SAME, str(verdict)
    assert any("matched by order" in note for note in verdict.notes)


def test_other_shapes_are_named_as_not_compared(tmp_path: Path) -> None:
    path = record(Training(steps=4), tmp_path / "healthy.labkit")
    verdict = compare_trainings(path, record(Training("lstm", steps=4), tmp_path / "other.labkit"))
    assert any(note.startswith("only the baseline has") for note in verdict.notes)
    assert verdict.kind is OTHER_START


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Recordings of a training from five seeds."""
    folder = tmp_path_factory.mktemp("seeds")
    return [record(Training(seed=seed, order=seed), folder / f"{seed}.labkit") for seed in range(5)]


@pytest.fixture(scope="module")
def sixth_seed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of the same training from another seed."""
    return record(Training(seed=9, order=9), tmp_path_factory.mktemp("sixth") / "9.labkit")


def test_another_seed_passes_within_the_band(seeds: list[Path], sixth_seed: Path) -> None:
    verdict = assert_same_training(sixth_seed, seeds[0], spread=seeds[1:])
    assert verdict.kind is OTHER_START
    assert verdict.in_band is True


def test_another_seed_does_not_pass_without_a_spread(seeds: list[Path], sixth_seed: Path) -> None:
    with pytest.raises(TrainingsDiffer, match="another"):
        assert_same_training(sixth_seed, seeds[0])


def test_a_run_that_learns_too_little_is_out_of_the_band(seeds: list[Path], tmp_path: Path) -> None:
    slow = record(Training(seed=9, order=9, lr=2e-3), tmp_path / "slow.labkit")
    with pytest.raises(TrainingsDiffer, match="outside of the band"):
        assert_same_training(slow, seeds[0], spread=seeds[1:])


def test_a_healthy_spread_explains_what_it_differs_by(tmp_path: Path) -> None:
    training = Training(steps=10)
    baseline = record(training, tmp_path / "a.labkit")
    second = record(replace(training, eps=1e-4), tmp_path / "b.labkit")
    third = record(replace(training, eps=1.01e-4), tmp_path / "c.labkit")
    assert compare_trainings(baseline, third).kind is FAULT
    assert compare_trainings(baseline, third, spread=[second]).kind is ROUNDING


def test_runs_without_a_common_step_are_refused(tmp_path: Path) -> None:
    path = record(Training(steps=4), tmp_path / "a.labkit", every=2)
    run = Recording.load(path)
    odd = Recording(run.model, 4, 2, run.sampled[1:], settings=run.settings)
    first = Recording(run.model, 4, 2, run.sampled[:1], settings=run.settings)
    with pytest.raises(ValueError, match="the same --every"):
        compare_trainings(first, odd)


@pytest.fixture(scope="module")
def two_epsilons(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The files of a training and of one with another epsilon of AdamW."""
    folder = tmp_path_factory.mktemp("epsilons")
    training = Training(steps=4)
    return [
        str(record(training, folder / "healthy.labkit")),
        str(record(replace(training, eps=1e-4), folder / "other.labkit")),
    ]


def with_losses(run: Recording, loss: float | None) -> Recording:
    """Return a recording whose losses are replaced."""
    return replace(run, sampled=tuple(replace(step, loss=loss) for step in run.sampled))


def test_equal_trainings_whose_losses_are_nan_are_the_same(short: Recording) -> None:
    verdict = compare_trainings(with_losses(short, math.nan), with_losses(short, math.nan))
    assert verdict.kind is SAME


def test_a_run_without_losses_has_the_same_bits(short: Recording) -> None:
    assert compare_trainings(short, with_losses(short, None)).kind is SAME


def test_runs_without_a_common_tensor_are_not_compared(short: Recording) -> None:
    bare = replace(short, sampled=tuple(replace(step, sketches={}) for step in short.sampled))
    with pytest.raises(ValueError, match="tensors that both runs have recorded, got none"):
        compare_trainings(short, bare)


def test_runs_without_a_common_step_are_not_compared(short: Recording) -> None:
    with pytest.raises(ValueError, match="got steps 0, 1, 2 and none"):
        compare_trainings(short, replace(short, sampled=()))


def test_one_recording_in_place_of_a_spread_is_refused(short: Recording) -> None:
    with pytest.raises(TypeError, match=r"spread=\[recording\]"):
        compare_trainings(short, short, spread=short)


def test_a_run_that_is_not_a_recording_is_refused(short: Recording) -> None:
    with pytest.raises(
        TypeError, match="recording: expected a Recording or a Path or a str, got 3"
    ):
        compare_trainings(short, 3)


def test_the_command_prints_the_verdict(
    two_epsilons: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", *two_epsilons]) == 1
    assert "a fault from step 0, updates of 0.weight on" in capsys.readouterr().out


def test_the_command_writes_a_page_without_links(two_epsilons: list[str], tmp_path: Path) -> None:
    path = tmp_path / "diff.html"
    assert main(["diff", *two_epsilons, "--page", str(path)]) == 1
    text = path.read_text()
    assert "Where they are apart" in text
    # Neither scripts nor anything that a browser would load.
    assert not re.search(r"<script|https?://|<link|@import", text)


def test_the_command_prints_json(
    two_epsilons: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", *two_epsilons, "--json"]) == 1
    output = json.loads(capsys.readouterr().out)
    assert output["schema"] == "labkit.diff/1"
    assert output["verdict"] == "a fault"
    assert output["step"] == 0
    assert output["beyond"][0]["units"] > 1
    assert output["settings"] == {"AdamW eps": ["1e-08", "0.0001"]}


def test_the_command_succeeds_on_equal_trainings(two_epsilons: list[str]) -> None:
    assert main(["diff", two_epsilons[0], two_epsilons[0]]) == 0


def test_the_command_refuses_a_file_that_is_not_a_recording(
    two_epsilons: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign = tmp_path / "notes.txt"
    foreign.write_text("loss 1.5")
    assert main(["diff", two_epsilons[0], str(foreign)]) == 2
    assert "expected a recording" in capsys.readouterr().err


def test_the_command_refuses_a_missing_file(
    two_epsilons: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", two_epsilons[0], str(tmp_path / "none.labkit")]) == 2
    assert "none.labkit" in capsys.readouterr().err


def test_a_page_names_each_tensor_and_escapes_it(tmp_path: Path) -> None:
    path = record(Training(steps=3), tmp_path / "a.labkit")
    run = Recording.load(path)
    odd = replace(run, settings=run.settings | {"device": "<b>card</b>"})
    text = page(compare_trainings(run, odd))
    assert "&lt;b&gt;card" in text
    assert "<b>card" not in text
    for _, name in run.sampled[0].sketches:
        assert name in text


@pytest.mark.parametrize("loss", [0.0, 2.5, 1e20])
def test_a_constant_loss_is_a_line_in_the_middle_of_the_page(short: Recording, loss: float) -> None:
    run = with_losses(short, loss)
    assert f'points="0.0,{HEIGHT / 2} ' in page(compare_trainings(run, run))


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        # Dropout keeps other elements.
        ([0.0, 2.0, 3.0, 0.0], True),
        # The elements that both keep differ: a fault in front of a ReLU.
        ([0.0, 2.5, 3.0, 0.0], False),
        # The same elements are zero.
        ([1.0, 2.5, 0.0, 4.0], False),
        ([1.0, 2.0], False),
        # Zeros in one alone are those of an underflow.
        ([0.0, 2.0, 0.0, 4.0], False),
        # One keeps nothing, so nothing is kept by both.
        ([0.0, 0.0, 0.0, 0.0], False),
    ],
)
def test_other_zeros_alone_are_not_a_sign_of_dropout(there: list[float], expected: bool) -> None:
    here = np.array([1.0, 2.0, 0.0, 4.0])
    assert starts.keeps_other_elements(here, np.array(there)) is expected


def test_small_elements_of_another_run_are_not_kept() -> None:
    here = np.array([1.0, 2.0, 0.0, 4.0])
    there = np.array([0.0, 2.5, 3.0, 0.0])
    assert not starts.keeps_other_elements(1e-9 * here, 1e-9 * there)
