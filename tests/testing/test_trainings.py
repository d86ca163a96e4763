"""Verdicts on pairs of trainings whose difference is known."""

import json
import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from labkit.cli import main
from labkit.instrument import Recording
from labkit.testing import (
    TrainingsDiffer,
    TrainingVerdictKind,
    assert_same_training,
    compare_trainings,
)
from labkit.testing.trainings.page import page
from tests.testing.training_runs import Training, record

SAME, ROUNDING, OTHER_START, FAULT = TrainingVerdictKind
HEALTHY = Training()
TWO_RANKS = Training(ranks=2)
# what was planted -> the healthy run, the other one, the verdict, and a word of its reason
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
    found = compare_trainings(
        record(healthy, tmp_path / "healthy.labkit"), record(other, tmp_path / "other.labkit")
    )
    assert found.kind == kind, str(found)
    assert word in found.reason, str(found)


# a training, and one that differs by rounding alone: four networks, two optimizers, and other sums
ROUNDINGS = [
    (Training(network=network, optimizer=optimizer, lr=lr, batches=8), change)
    for (network, (optimizer, lr)), change in product(
        product(("mlp", "cnn", "lstm", "gpt"), (("AdamW", 1e-2), ("SGD", 5e-2))),
        ({"sums": "slices"}, {"sums": "backwards"}, {"fused": True}),
    )
]


def differ_by_rounding(training: Training, change: dict[str, object], folder: Path) -> None:
    """Assert that two trainings have other bits, and are called no fault."""
    every = 10 if training.dropout else 1
    found = compare_trainings(
        record(training, folder / "healthy.labkit", every),
        record(replace(training, **change), folder / "other.labkit", every),
    )
    assert found.kind in (SAME, ROUNDING), str(found)
    assert any(cell.distance for cell in found.cells) or found.kind is SAME
    assert found.judged > 100


@pytest.mark.parametrize("network", ["mlp", "cnn", "lstm", "gpt"])
def test_rounding_alone_is_no_fault(network: str, tmp_path: Path) -> None:
    for training, change in ROUNDINGS:
        if training.network == network and training.optimizer == "AdamW":
            differ_by_rounding(replace(training, steps=20), change, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("pair", range(len(ROUNDINGS)))
def test_long_trainings_that_differ_by_rounding_are_no_fault(pair: int, tmp_path: Path) -> None:
    training, change = ROUNDINGS[pair]
    differ_by_rounding(replace(training, steps=60), change, tmp_path)
    differ_by_rounding(replace(training, steps=200, dropout=0.2), change, tmp_path)


# faults of many kinds, in networks of each kind -> where the first tensor beyond rounding is
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
    found = compare_trainings(
        record(short, tmp_path / "healthy.labkit"),
        record(replace(short, **change), tmp_path / "other.labkit"),
    )
    assert found.kind == FAULT, str(found)
    assert found.step == 0, str(found)
    assert found.tensor is not None
    assert found.tensor[0] == kind, str(found)
    assert found.line


def test_a_fault_in_the_middle_is_found_in_its_step(tmp_path: Path) -> None:
    found = compare_trainings(
        record(TWO_RANKS, tmp_path / "healthy.labkit"),
        record(replace(TWO_RANKS, lost_from=9), tmp_path / "other.labkit"),
    )
    assert found.step == 9
    assert found.tensor is not None
    assert found.tensor[0] == "step gradients"


def test_a_fault_between_two_sampled_steps_is_found_in_the_next(tmp_path: Path) -> None:
    found = compare_trainings(
        record(TWO_RANKS, tmp_path / "healthy.labkit", every=10),
        record(replace(TWO_RANKS, lost_from=9), tmp_path / "other.labkit", every=10),
    )
    assert found.kind == FAULT, str(found)
    assert found.step == 10, str(found)


STRANGE = """
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
def strange(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("strange")
    (folder / "train.py").write_text(STRANGE)
    return folder


def run_strange(folder: Path, planted: str) -> Path:
    """Record the script with something planted, and return the file."""
    path = folder / f"{planted}.labkit"
    words = ["watch", "--every", "1", "--folder", str(folder / "report"), "--record", str(path)]
    assert main([*words, str(folder / "train.py"), planted]) == 0
    return path


def test_a_missing_backward_pass_of_a_script_is_named(strange: Path) -> None:
    found = compare_trainings(run_strange(strange, "nothing"), run_strange(strange, "micro"))
    assert found.kind == FAULT, str(found)
    assert found.step == 6, str(found)
    assert "2 backward passes instead of 3" in found.reason


def test_another_evaluation_between_steps_is_no_fault(strange: Path) -> None:
    found = compare_trainings(run_strange(strange, "nothing"), run_strange(strange, "evaluation"))
    assert found.kind is SAME, str(found)


def test_a_compiled_script_is_compared_by_its_weights(strange: Path) -> None:
    found = compare_trainings(run_strange(strange, "nothing"), run_strange(strange, "compile"))
    assert found.kind in (SAME, ROUNDING), str(found)
    assert any("only the baseline has activations" in note for note in found.notes)


def test_other_dropout_is_another_seed(tmp_path: Path) -> None:
    training = Training(dropout=0.3, steps=4)
    path = record(training, tmp_path / "healthy.labkit")
    found = compare_trainings(path, record(replace(training, draws=1), tmp_path / "other.labkit"))
    assert found.kind is OTHER_START
    assert "random numbers" in found.reason


def test_a_loss_of_the_same_outputs_is_named(tmp_path: Path) -> None:
    training = Training(steps=4)
    path = record(training, tmp_path / "healthy.labkit")
    found = compare_trainings(path, record(replace(training, labels=1), tmp_path / "other.labkit"))
    assert found.kind == FAULT
    assert found.tensor is None
    assert "other targets" in found.reason


def test_scaled_gradients_are_compared_unscaled(tmp_path: Path) -> None:
    training = Training(steps=8)
    path = record(training, tmp_path / "healthy.labkit")
    scaled = record(replace(training, scaled=True), tmp_path / "other.labkit")
    assert compare_trainings(path, scaled).kind in (SAME, ROUNDING)


def test_other_names_are_matched_by_order(tmp_path: Path) -> None:
    training = Training(steps=4)
    path = record(training, tmp_path / "healthy.labkit")
    other = record(replace(training, wrapped=True), tmp_path / "other.labkit")
    found = compare_trainings(path, other)
    assert found.kind is SAME, str(found)
    assert any("matched by order" in note for note in found.notes)


def test_other_shapes_are_named_as_not_compared(tmp_path: Path) -> None:
    path = record(Training(steps=4), tmp_path / "healthy.labkit")
    found = compare_trainings(path, record(Training("lstm", steps=4), tmp_path / "other.labkit"))
    assert any(note.startswith("only the baseline has") for note in found.notes)
    assert found.kind is OTHER_START


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("seeds")
    return [record(Training(seed=seed, order=seed), folder / f"{seed}.labkit") for seed in range(5)]


def test_a_run_from_another_seed_passes_within_the_band(seeds: list[Path], tmp_path: Path) -> None:
    healthy = record(Training(seed=9, order=9), tmp_path / "healthy.labkit")
    found = assert_same_training(healthy, seeds[0], spread=seeds[1:])
    assert (found.kind, found.in_band) == (OTHER_START, True)
    with pytest.raises(TrainingsDiffer, match="another"):
        assert_same_training(healthy, seeds[0])


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


def test_the_command_prints_words_json_and_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = Training(steps=4)
    files = [
        str(record(training, tmp_path / "healthy.labkit")),
        str(record(replace(training, eps=1e-4), tmp_path / "other.labkit")),
    ]
    shown = tmp_path / "diff.html"
    assert main(["diff", *files, "--page", str(shown)]) == 1
    assert "a fault from step 0, updates of 0.weight on" in capsys.readouterr().out
    text = shown.read_text()
    assert "Where they are apart" in text
    assert not re.search(r"<script|https?://|<link|@import", text)
    assert main(["diff", *files, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "labkit.diff/1"
    assert found["verdict"] == "a fault"
    assert found["step"] == 0
    assert found["beyond"][0]["units"] > 1
    assert found["settings"] == {"AdamW eps": ["1e-08", "0.0001"]}
    assert main(["diff", files[0], files[0]]) == 0


def test_the_command_refuses_what_is_no_recording(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = record(Training(steps=2), tmp_path / "healthy.labkit")
    foreign = tmp_path / "notes.txt"
    foreign.write_text("loss 1.5")
    assert main(["diff", str(path), str(foreign)]) == 2
    assert "expected a recording" in capsys.readouterr().err
    assert main(["diff", str(path), str(tmp_path / "none.labkit")]) == 2
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
