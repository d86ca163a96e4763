"""Recordings of trainings: content, size, and refused files."""

import io
import json
import math
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from labkit.cli import main
from labkit.instrument import (
    NotARecording,
    RecordedStep,
    Recording,
    Watch,
    exponent_histogram,
    watch,
)
from labkit.instrument import recorder as recorder_module
from labkit.instrument import recording as recording_module
from labkit.instrument import script as script_watch
from labkit.instrument.recorder import digests
from labkit.instrument.recording import (
    HEADER,
    MOST_BYTES,
    MOST_CHARACTERS,
    packed,
    unpacked,
)
from labkit.instrument.sketch import NO_ELEMENTS, Sketch, _on_cpu, _on_device, places, sketch


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2))


def train(model: nn.Module, steps: int = 4) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(5, 6)).square().mean().backward()
        optimizer.step()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recorded") / "run.labkit"
    model = network()
    with watch(model, every=1).record(path):
        train(model)
    return path


def test_recording_changes_no_bit_of_a_training(tmp_path: Path) -> None:
    results = []
    for record in (False, True):
        model = network()
        if record:
            with watch(model, every=1).record(tmp_path / "run.labkit"):
                train(model)
        else:
            train(model)
        results.append((model.state_dict(), torch.get_rng_state()))
    (plain, random), (watched, same_random) = results
    assert torch.equal(random, same_random)
    for name, weight in plain.items():
        assert torch.equal(weight, watched[name]), name


def test_a_file_has_the_model_and_the_steps(recorded: Path) -> None:
    found = Recording.load(recorded)
    assert (found.model, found.steps, len(found.sampled)) == ("Sequential", 4, 4)


def test_a_file_has_the_tensors_of_each_step(recorded: Path) -> None:
    step = Recording.load(recorded).sampled[2]
    assert {kind for kind, _ in step.sketches} == {
        "inputs",
        "activations",
        "activation gradients",
        "weight gradients",
        "weights",
        "updates",
    }
    assert step.sketches["updates", "3.bias"].shape == (2,)
    assert step.histograms["weights", "0.weight"].total == 48


def test_a_file_has_the_loss_of_each_step(recorded: Path) -> None:
    losses = [step.loss for step in Recording.load(recorded).sampled]
    assert all(loss is not None and loss > 0 for loss in losses)


def test_a_file_has_the_settings_of_the_training(recorded: Path) -> None:
    settings = Recording.load(recorded).settings
    assert settings["AdamW eps"] == "1e-08"
    assert settings["torch"] == torch.__version__


def test_a_file_has_the_lines_of_layers_and_of_the_step(recorded: Path) -> None:
    lines = Recording.load(recorded).lines
    assert lines["step"].startswith("test_recording.py:")
    assert lines["0"].startswith("test_recording.py:")


def test_a_file_that_is_read_and_written_is_the_same(recorded: Path) -> None:
    assert packed(Recording.load(recorded)) == recorded.read_bytes()


def test_a_sketch_has_norm_maximum_and_elements_of_its_tensor() -> None:
    for tensor in (
        torch.randn(1000),
        torch.randn(7, 30).T,
        torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last),
        torch.randn(300).half(),
        torch.randn(300).bfloat16(),
        torch.tensor(3.0),
        torch.full((70,), 1e30),
        torch.full((70,), 1e-30),
    ):
        found = sketch(tensor)
        wide = tensor.double()
        assert found.norm == pytest.approx(float(wide.norm()), rel=1e-5)
        assert found.largest == pytest.approx(float(wide.abs().max()), rel=1e-6)
        drawn = wide.reshape(-1)[torch.from_numpy(places(tensor.numel()))]
        np.testing.assert_array_equal(found.elements, drawn.float().numpy())


@pytest.mark.filterwarnings("error")
def test_an_element_beyond_the_range_of_fp32_is_inf_without_a_warning() -> None:
    found = sketch(torch.full((3,), 3e38), scale=0.5)
    np.testing.assert_array_equal(found.elements, [math.inf] * 3)


@pytest.mark.parametrize("size", [1, 100])
def test_a_lazily_negated_view_has_a_sketch(size: int) -> None:
    view = torch.complex(torch.ones(size), torch.full((size,), 2.0)).conj().imag
    assert view.is_neg()
    one, other = sketch(view), sketch(view.clone())
    assert (one.norm, one.projection, one.digest) == (other.norm, other.projection, other.digest)


def test_sketches_on_the_cpu_equal_those_on_a_device() -> None:
    for tensor in (torch.randn(1000), torch.randn(7, 30).T, torch.randn(300).half()):
        norm, largest, bits, drawn = _on_cpu(tensor)
        other = _on_device(tensor)
        assert norm == pytest.approx(other[0], rel=1e-5)
        assert largest == other[1]
        assert bits % 2**32 == other[2] % 2**32
        np.testing.assert_array_equal(drawn, other[3])


def test_each_changed_bit_changes_a_digest() -> None:
    tensor = torch.randn(200)
    digest = sketch(tensor).digest
    for index in range(200):
        for bit in range(32):
            changed = tensor.clone()
            changed.view(torch.int32)[index] ^= 1 << bit if bit < 31 else -(1 << 31)
            # A changed exponent may make a signalling NaN, of which numpy warns.
            with np.errstate(invalid="ignore"):
                assert sketch(changed).digest != digest, (index, bit)


def test_digests_distinguish_order_and_content_of_a_batch() -> None:
    batch = torch.randn(16, 3)
    shuffled = batch[torch.randperm(16, generator=torch.Generator().manual_seed(1))]
    ordered, any_order = digests([batch])
    assert digests([shuffled])[0] != ordered
    assert digests([shuffled])[1] == any_order
    assert digests([batch + 1])[1] != any_order


def test_a_scalar_of_a_batch_has_a_digest() -> None:
    assert digests([torch.tensor(0.5)]) != digests([torch.tensor(0.25)])


def random_step(number: int, random: np.random.Generator) -> RecordedStep:
    """Return a step of 200 layers with two parameters each, whose numbers do not compress."""
    kinds = {
        "activations": 200,
        "activation gradients": 200,
        "weights": 400,
        "weight gradients": 400,
        "updates": 400,
    }
    histogram = exponent_histogram(torch.from_numpy(random.standard_normal(5000)).float())
    sketches = {}
    for kind, count in kinds.items():
        for index in range(count):
            elements = random.standard_normal(64).astype(np.float32)
            norm, largest, projection = (float(np.float32(n)) for n in random.standard_normal(3))
            sketches[kind, f"layer.{index}"] = Sketch(
                (100, 50), "float32", abs(norm), abs(largest), projection, index, elements
            )
    return RecordedStep(number, sketches=sketches, histograms=dict.fromkeys(sketches, histogram))


def test_a_file_of_200_modules_and_100_steps_fits_the_limit() -> None:
    random = np.random.default_rng(0)
    run = Recording("Net", 100, 1, tuple(random_step(number, random) for number in range(100)))
    content = packed(run)
    assert len(content) <= MOST_BYTES
    found = unpacked(content)
    assert len(found.sampled) == 100
    assert found.sampled[0].sketches["activations", "layer.0"].elements.shape == (64,)
    assert found.sampled[99].sketches["activations", "layer.0"].elements.shape == (0,)


def small_step(number: int, elements: np.ndarray = NO_ELEMENTS) -> RecordedStep:
    """Return a step with one layer."""
    sketch_of_layer = Sketch((3,), "float32", 1.0, 1.0, 0.5, number % 1000, elements)
    return RecordedStep(
        number, loss=1 / (number + 1), sketches={("weights", "fc"): sketch_of_layer}
    )


def test_dropped_steps_take_no_space_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording_module, "MOST_BYTES", 100_000)
    steps = tuple(small_step(number) for number in range(2000))
    few = len(unpacked(packed(Recording("Net", 1000, 1, steps[:1000]))).sampled)
    many = len(unpacked(packed(Recording("Net", 2000, 1, steps))).sampled)
    assert few < 1000
    assert many == pytest.approx(few, rel=0.05)


def test_a_file_of_many_steps_uses_its_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording_module, "MOST_BYTES", 100_000)
    steps = tuple(small_step(number) for number in range(1000))
    assert 95_000 < len(packed(Recording("Net", 1000, 1, steps))) <= 100_000


def test_long_settings_are_cut_and_stay_distinct() -> None:
    texts = {name: f"{'0.9, ' * 1000}{name}" for name in "ab"}
    found = unpacked(packed(Recording("Net", 1, 1, (small_step(0),), settings=texts))).settings
    assert found["a"].startswith("0.9, 0.9, ")
    assert len(found["a"]) == MOST_CHARACTERS
    assert found["a"] != found["b"]


def test_settings_that_exceed_a_file_are_refused() -> None:
    random = np.random.default_rng(0)
    texts = {str(number): random.bytes(200).hex() for number in range(20_000)}
    with pytest.raises(ValueError, match="2,000,000 bytes, got"):
        packed(Recording("Net", 1, 1, (small_step(0),), settings=texts))


def test_a_step_of_too_many_tensors_is_refused() -> None:
    each = small_step(0).sketches["weights", "fc"]
    sketches = {("weights", str(number)): each for number in range(65_537)}
    with pytest.raises(ValueError, match="at most 65,536 different tensors"):
        packed(Recording("Net", 1, 1, (RecordedStep(0, sketches=sketches),)))


def test_elements_dropped_for_one_of_two_tensors_are_left_out() -> None:
    whole = small_step(0, np.ones(3, dtype=np.float32)).sketches["weights", "fc"]
    without = small_step(0).sketches["weights", "fc"]
    sketches = {("weights", "a"): whole, ("weights", "b"): without}
    (step,) = unpacked(
        packed(Recording("Net", 1, 1, (RecordedStep(0, sketches=sketches),)))
    ).sampled
    assert step.sketches["weights", "a"].norm == pytest.approx(1.0, rel=0.01)
    assert len(step.sketches["weights", "a"].elements) == 0


def test_the_content_of_all_parts_is_limited_together(monkeypatch: pytest.MonkeyPatch) -> None:
    each = small_step(0).sketches["weights", "fc"]
    sketches = {("weights", str(number)): each for number in range(1000)}
    steps = tuple(RecordedStep(number, sketches=sketches) for number in range(50))
    content = packed(Recording("Net", 50, 1, steps))
    # the parts have 950,000 bytes, 19,000 each, which zlib compresses well
    monkeypatch.setattr(recording_module, "MOST_UNPACKED", 900_000)
    with pytest.raises(NotARecording, match="cut or too large"):
        unpacked(content)
    monkeypatch.setattr(recording_module, "MOST_UNPACKED", 960_000)
    assert len(unpacked(content).sampled) == 50


def test_the_number_of_sketches_in_a_file_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    content = packed(Recording("Net", 100, 1, tuple(small_step(number) for number in range(100))))
    monkeypatch.setattr(recording_module, "MOST_SKETCHES", 99)
    with pytest.raises(NotARecording, match="more tensors than a recording can hold"):
        unpacked(content)


@pytest.mark.slow
def test_a_training_of_200_modules_fits_the_limit(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layers = [m for _ in range(100) for m in (nn.Linear(12, 12), nn.LayerNorm(12))]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    path = tmp_path / "run.labkit"
    with watch(model, every=1, against_fp32_every=0).record(path):
        for _ in range(100):
            optimizer.zero_grad()
            model(torch.randn(8, 12)).square().mean().backward()
            optimizer.step()
    assert path.stat().st_size <= MOST_BYTES
    assert len(Recording.load(path).sampled) == 100


def test_steps_in_memory_are_bounded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(recorder_module, "MOST_ELEMENTS", 3000)
    monkeypatch.setattr(recorder_module, "MOST_TENSORS", 200)
    model = network()
    path = tmp_path / "run.labkit"
    with watch(model, every=1, against_fp32_every=0).record(path):
        train(model, 30)
    found = Recording.load(path)
    sketches = [each for step in found.sampled for each in step.sketches.values()]
    assert len(sketches) <= 200
    assert sum(len(each.elements) for each in sketches) <= 3000
    sizes = [len(step.sketches["weights", "0.weight"].elements) for step in found.sampled]
    assert found.steps == 30
    assert sizes[0] == 48
    assert sizes[-1] == 0


def test_a_file_that_cannot_be_written_stops_no_training(tmp_path: Path) -> None:
    model = network()
    blocked = tmp_path / "file"
    blocked.write_text("a file, and no folder")
    with watch(model, every=1).record(blocked / "run.labkit") as watching:
        train(model)
    assert watching.recorded is None
    assert "writing the recording" in " ".join(watching.report().unseen)


def _train_and_fail(model: nn.Module, watching: Watch) -> None:
    with watching:
        train(model)
        raise KeyError("planted")


def test_a_training_that_fails_is_recorded_until_then(tmp_path: Path) -> None:
    model = network()
    path = tmp_path / "run.labkit"
    watching = watch(model, every=1).record(path)
    with pytest.raises(KeyError, match="planted"):
        _train_and_fail(model, watching)
    assert Recording.load(path).steps == 4


@pytest.mark.parametrize("scale", [math.inf, math.nan, 0.0, -1.0])
def test_a_step_with_an_invalid_scale_is_recorded(scale: float) -> None:
    recording = Recording("Net", 1, 1, (RecordedStep(0, scale),))
    (step,) = unpacked(packed(recording)).sampled
    assert repr(step.scale) == repr(scale)


def test_a_truncated_file_is_refused(recorded: Path, tmp_path: Path) -> None:
    content = recorded.read_bytes()
    cut = tmp_path / "cut.labkit"
    # Every length inside the first header, then every 997th.
    for length in (*range(64), *range(64, len(content), 997), len(content) - 1):
        cut.write_bytes(content[:length])
        with pytest.raises(NotARecording, match=r"cut\.labkit: expected a"):
            Recording.load(cut)


def test_a_damaged_file_is_refused_or_reads_the_same(recorded: Path) -> None:
    content = recorded.read_bytes()
    refused = 0
    positions = np.random.default_rng(0).integers(len(content), size=300)
    for position in positions.tolist():
        damaged = bytearray(content)
        damaged[position] ^= 0x10
        try:
            found = unpacked(bytes(damaged))
        except NotARecording:
            refused += 1
        else:
            # The byte is in a field of zip without effect, such as a date.
            assert packed(found) == content
    # Most bytes of the file are content, which has a checksum.
    assert refused > 150


@pytest.mark.parametrize("kind", ["text", "pickle", "archive", "model", "later", "huge"])
def test_a_foreign_file_is_refused_and_runs_nothing(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "foreign.labkit"
    if kind == "text":
        path.write_text("loss 1.5\n")
    elif kind == "pickle":
        path.write_bytes(pickle.dumps({"a": 1}))
    elif kind == "model":
        torch.save(network().state_dict(), path)
    elif kind == "huge":
        path.write_bytes(b"PK" + bytes(2 * MOST_BYTES))
    else:
        header = {"schema": "labkit.recording/2"} if kind == "later" else {"schema": "x/1"}
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr(HEADER if kind == "later" else "a.txt", json.dumps(header))
        path.write_bytes(file.getvalue())
    monkeypatch.setattr(pickle, "loads", None)
    monkeypatch.setattr(pickle, "load", None)
    with pytest.raises(NotARecording, match="expected") as refused:
        Recording.load(path)
    if kind == "later":
        assert "Update labkit" in str(refused.value)


def test_a_field_of_a_later_minor_version_is_ignored(recorded: Path) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(recorded) as old, zipfile.ZipFile(file, "w") as new:
        for member in old.namelist():
            content = old.read(member)
            if member == HEADER:
                content = json.dumps(json.loads(content) | {"new": 1}).encode()
            new.writestr(member, content)
    assert packed(unpacked(file.getvalue())) == recorded.read_bytes()


def test_record_after_the_watch_has_begun_is_refused(tmp_path: Path) -> None:
    with watch(network(), every=1) as watching, pytest.raises(RuntimeError, match="before"):
        watching.record(tmp_path / "run.labkit")


SCRIPT = """
import torch
from torch import nn

torch.manual_seed(0)
probe = nn.Linear(4, 4)
probe(torch.ones(1, 4))  # a model without an optimizer
first, second = nn.Sequential(nn.Linear(4, 3), nn.Tanh()), nn.Linear(3, 1)
optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (first, second)]
for _ in range(3):
    for optimizer in optimizers:
        optimizer.zero_grad()
    second(first(torch.randn(5, 4))).square().mean().backward()
    for optimizer in optimizers:
        optimizer.step()
print(sum(p.sum().item() for p in first.parameters()))
"""


def recordings_of(script: str, folder: Path) -> list[Recording]:
    """Return the recordings of the one or two models of a script, in the order of their numbers."""
    (folder / "train.py").write_text(script)
    words = ["--every", "1", "--folder", str(folder / "seen"), "--record"]
    assert main(["watch", *words, str(folder / "run.labkit"), str(folder / "train.py")]) == 0
    # run.labkit sorts behind run-2.labkit.
    return [Recording.load(path) for path in sorted(folder.glob("run*.labkit"), reverse=True)]


def test_a_model_that_cannot_be_watched_hides_no_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_of = script_watch.model_of

    def failing(parameters: list[torch.Tensor]) -> nn.Module | None:
        if parameters[0].shape == (2, 2):
            raise RuntimeError("this model cannot be watched")
        return model_of(parameters)

    monkeypatch.setattr(script_watch, "model_of", failing)
    third = "other = nn.Linear(2, 2)\nof_other = torch.optim.SGD(other.parameters(), lr=0.1)\nfor _"
    recordings = recordings_of(SCRIPT.replace("for _", third, 1), tmp_path)
    assert [len(each.sampled[0].batch) for each in recordings] == [1, 1]


def test_recordings_have_their_numbers_in_every_run(tmp_path: Path) -> None:
    """The model that is called first has the first number, whatever the garbage collector lists."""
    for run, models in (("one", "first, second"), ("two", "second, first")):
        folder = tmp_path / run
        folder.mkdir()
        script = SCRIPT.replace("for model in (first, second)", f"for model in ({models})")
        first, second = recordings_of(script, folder)
        assert ("activations", "0") in first.sampled[0].sketches
        assert ("activations", "0") not in second.sampled[0].sketches


def test_optimizers_of_earlier_trainings_are_not_recorded(tmp_path: Path) -> None:
    earlier = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    assert len(recordings_of(SCRIPT, tmp_path)) == 2
    # This use keeps the optimizer alive until here.
    assert earlier.param_groups


def test_a_script_is_recorded_from_its_first_step_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    path = tmp_path / "run.labkit"
    script.write_text(SCRIPT)
    before = nn.Module.__call__
    words = ["--every", "1", "--folder", str(tmp_path / "seen"), "--record", str(path)]
    assert main(["watch", *words, str(script)]) == 0
    assert nn.Module.__call__ is before
    assert f"recorded to {path}" in capsys.readouterr().err
    first = Recording.load(path)
    second = Recording.load(tmp_path / "run-2.labkit")
    assert first.steps == 3
    assert second.steps == 3
    assert ("activations", "0") in first.sampled[0].sketches
    assert ("weight gradients", "weight") in second.sampled[0].sketches
    assert first.sampled[0].batch
    assert first.settings["seed"] == "0"
