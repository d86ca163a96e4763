"""Checkpoints: an interrupted run continues bit by bit, and what does not fit is refused."""

import copy
import io
import itertools
import os
import random
import signal
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial, reduce
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from labkit.amp import (
    RECIPES,
    Ema,
    Engine,
    Recipe,
    ScalerConfig,
    WeightRounding,
    load_checkpoint,
    read_checkpoint,
    save_checkpoint,
)
from labkit.amp.checkpoint import generators, set_generators
from labkit.formats import FP16
from labkit.gemm import SEQUENTIAL_FP16, SPECS, TURING_4

# FP16 rounds Adam's default eps of 1e-8 to zero, but not 1e-4, so O3 trains, too.
ADAM = partial(torch.optim.Adam, lr=1e-2, eps=1e-4)
WITHOUT = Recipe("no master", model=FP16, master_weights=False)


def mlp() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3)
    )


def engine_for(recipe: Recipe, seed: int = 0, **options: object) -> Engine:
    torch.manual_seed(seed)
    return Engine(mlp(), ADAM, recipe, **options)


def train(engine: Engine, steps: int, after: Callable[[], None] = lambda: None) -> list[float]:
    """Train some steps and return their losses.

    Batches, labels and dropout come from torch's global generator, noise from those of numpy and
    Python, so a resumed run must restore all three.
    """
    losses = []
    for _ in range(steps):
        engine.zero_grad()
        # numpy's global generator is meant here, because a checkpoint has to restore it.
        noise = random.random() + np.random.rand()  # noqa: NPY002
        with engine.forward():
            loss = F.cross_entropy(engine(torch.randn(8, 6) + noise), torch.randint(3, (8,)))
        engine.backward(loss)
        engine.clip(1.0)
        if engine.step().stepped:
            after()
        losses.append(loss.item())
    return losses


def same(a: Engine, b: Engine) -> bool:
    masters = zip(a.weights.master_weights, b.weights.master_weights, strict=True)
    values = zip(a.model.state_dict().values(), b.model.state_dict().values(), strict=True)
    return (
        all(torch.equal(x, y) for x, y in itertools.chain(masters, values))
        and a.scalers == b.scalers
    )


SCALED = ("FP8 current", "FP8 delayed", "MXFP8", "NVFP4", "unit scaled")
ROWS = {
    **{
        name: RECIPES[name]
        for name in ("FP32", "O1", "O2", "O3", "BF16", "FP8", "FP16 no master", *SCALED)
    },
    "O2, overflowing": replace(
        RECIPES["O2"], scaler=ScalerConfig(init_scale=2.0**20, growth_interval=2)
    ),
    "stochastic": replace(WITHOUT, rounding=WeightRounding.STOCHASTIC),
    "Kahan": replace(WITHOUT, rounding=WeightRounding.KAHAN),
    "FP16 accumulator": replace(RECIPES["O2"], accumulator=SEQUENTIAL_FP16),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_resumed_run_is_bit_equal_to_one_that_never_stopped(name: str, tmp_path: Path) -> None:
    for flat in (False, True):
        through = engine_for(ROWS[name], flat=flat)
        first = train(through, 6)
        path = save_checkpoint(tmp_path / "run.pt", through, epoch=2)
        rest = train(through, 6)
        assert len(set(first + rest)) > 6, "most losses are equal, so the test shows nothing"

        resumed = engine_for(ROWS[name], seed=99, flat=flat)
        random.seed(99)
        np.random.seed(99)  # noqa: NPY002
        train(resumed, 1)
        assert load_checkpoint(path, resumed) == {"epoch": 2}
        assert train(resumed, 6) == rest
        assert same(through, resumed)
        assert resumed.steps == 12


def test_scheduler_and_average_are_saved_along(tmp_path: Path) -> None:
    runs = []
    for _ in range(2):
        engine = engine_for(RECIPES["O2"])
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(engine.optimizer, 20)
        ema = Ema(engine, 0.9)

        def after_step(scheduler: Any = scheduler, ema: Ema = ema) -> None:
            scheduler.step()
            ema.update()

        runs.append((engine, scheduler, ema, after_step))
    (engine, scheduler, ema, after), (engine_2, scheduler_2, ema_2, after_2) = runs
    train(engine, 4, after)
    path = save_checkpoint(
        tmp_path / "run.pt", engine, scheduler=scheduler.state_dict(), ema=ema.state_dict()
    )
    rest = train(engine, 4, after)
    extra = load_checkpoint(path, engine_2)
    scheduler_2.load_state_dict(extra["scheduler"])
    ema_2.load_state_dict(extra["ema"])
    assert train(engine_2, 4, after_2) == rest
    assert scheduler_2.get_last_lr() == scheduler.get_last_lr()
    assert all(torch.equal(ema_2.averages[name], average) for name, average in ema.averages.items())


def test_plain_torch_reads_the_model_in_fp32(tmp_path: Path) -> None:
    for name, recipe in ROWS.items():
        engine = engine_for(recipe)
        train(engine, 3)
        stored = torch.load(save_checkpoint(tmp_path / "run.pt", engine), weights_only=True)
        plain = mlp()
        plain.load_state_dict(stored["model"])
        for key, value in plain.state_dict().items():
            here = engine.model.state_dict()[key]
            assert torch.equal(value, stored["model"][key]), (name, key)
            assert torch.equal(value.to(here.dtype), here), (name, key)
        if recipe.master_weights:
            assert all(
                torch.equal(plain.get_parameter(n), m)
                for n, m in engine.weights.named_masters().items()
            ), name
        theirs = ADAM(plain.parameters())
        theirs.load_state_dict(stored["weights"]["optimizer"])
        for ours, parameter in zip(
            engine.weights.optimizer_weights, plain.parameters(), strict=True
        ):
            state = engine.optimizer.state[ours]
            assert set(theirs.state[parameter]) == set(state), name
            assert all(
                torch.equal(theirs.state[parameter][key], value.float())
                for key, value in state.items()
            ), name


def test_plain_fp32_checkpoint_starts_a_mixed_run() -> None:
    torch.manual_seed(1)
    stored = mlp().state_dict()
    for flat in (False, True):
        engine = engine_for(RECIPES["O2"], seed=2, flat=flat)
        engine.load_model(stored)
        for name, master in engine.weights.named_masters().items():
            here = engine.model.get_parameter(name)
            assert torch.equal(master, stored[name]), name
            assert torch.equal(here, master.to(here.dtype)), name


def test_plain_weights_that_do_not_fit_are_refused() -> None:
    stored = mlp().state_dict()
    engine = engine_for(RECIPES["O2"])
    for change, expected in (
        (lambda s: s.pop("4.bias"), "lacks 4.bias"),
        (lambda s: s.update(extra=torch.zeros(1)), "has what the model lacks: extra"),
        (
            lambda s: s.update({"4.bias": torch.zeros(5)}),
            r"other shapes: 4.bias: \(5,\) for \(3,\)",
        ),
    ):
        other = dict(stored)
        change(other)
        with pytest.raises(ValueError, match=expected):
            engine.load_model(other)
    with pytest.raises(
        ValueError, match="expected the state of an engine, got one without model, weights"
    ):
        engine.load_state_dict(stored)


def test_checkpoint_of_an_engine_made_otherwise_is_refused() -> None:
    state = engine_for(RECIPES["O2"]).state_dict()
    wide = Engine(nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32)), ADAM, RECIPES["O2"])

    def backwards(model: nn.Module) -> list[dict[str, object]]:
        return [{"params": list(model.parameters())[::-1]}]

    other_recipe = "another recipe: autocast None, now 'FP16', model 'FP16', now 'FP32'.*load_model"
    cases = {
        other_recipe: engine_for(RECIPES["O1"]),
        "growth_interval": engine_for(
            replace(RECIPES["O2"], scaler=ScalerConfig(growth_interval=7))
        ),
        "stepped other parameters when it was saved: 4.bias, 4.weight": wide,
        "saved with SGD, .* got one saved with Adam": Engine(
            mlp(), partial(torch.optim.SGD, lr=0.1), RECIPES["O2"]
        ),
        "state with 2 losses, got one with 1. Construct the engine with losses=1": engine_for(
            RECIPES["O2"], losses=2
        ),
        "the same ones in other groups or in another order": engine_for(
            RECIPES["O2"], groups=backwards
        ),
    }
    for expected, engine in cases.items():
        before = [m.clone() for m in engine.weights.master_weights]
        with pytest.raises(ValueError, match=expected):
            engine.load_state_dict(state)
        assert all(map(torch.equal, before, engine.weights.master_weights)), expected


def test_a_file_that_is_not_a_checkpoint_is_refused(tmp_path: Path) -> None:
    whole = save_checkpoint(tmp_path / "whole", engine_for(RECIPES["O2"])).read_bytes()
    unreadable = "is not a checkpoint, or was cut short: torch cannot read it"
    plain = io.BytesIO()
    torch.save(mlp().state_dict(), plain)
    other = io.BytesIO()
    torch.save({"epoch": 3}, other)
    cases = [
        *((content, unreadable) for content in (b"", b"hello\n" * 1000, whole[:100], whole[:-1])),
        (plain.getvalue(), r"got a plain state dict; load it with engine.load_model"),
        (other.getvalue(), "schema None"),
    ]
    engine = engine_for(RECIPES["O2"], seed=3)
    before = str(engine.state_dict())
    for content, expected in cases:
        (tmp_path / "file").write_bytes(content)
        with pytest.raises(ValueError, match=expected):
            load_checkpoint(tmp_path / "file", engine)
    with pytest.raises(ValueError, match="expected a checkpoint file, got the folder"):
        load_checkpoint(tmp_path, engine)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        load_checkpoint(tmp_path / "missing", engine)
    assert str(engine.state_dict()) == before


class RunsCode:
    """An object that makes a file when pickle loads it."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self.mark,)


def test_a_file_with_code_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "code ran"
    bundle = read_checkpoint(save_checkpoint(tmp_path / "run.pt", engine_for(RECIPES["O2"])))
    torch.save({**bundle, "extra": RunsCode(mark)}, tmp_path / "run.pt")
    with pytest.raises(ValueError, match="torch cannot read it"):
        read_checkpoint(tmp_path / "run.pt")
    assert not mark.exists()


def test_a_checkpoint_that_may_not_be_read_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save_checkpoint(tmp_path / "run.pt", engine_for(RECIPES["O2"]))

    def refuse(*_: object) -> None:
        raise PermissionError("expected a file of one's own")

    # Root may read all files, so the refusal is planted.
    monkeypatch.setattr("zipfile.ZipFile.__init__", refuse)
    with pytest.raises(PermissionError):
        read_checkpoint(path)


def test_a_flipped_bit_that_changes_the_content_is_detected(tmp_path: Path) -> None:
    engine = engine_for(RECIPES["O2"])
    flipped = tmp_path / "flipped"
    train(engine, 1)
    # A session in which torch writes no checksums: a checkpoint must have them all the same.
    torch.serialization.set_crc32_options(False)
    try:
        whole = save_checkpoint(tmp_path / "whole", engine, epoch=1).read_bytes()
        assert not torch.serialization.get_crc32_options(), "saving changed the session's setting"
        content = str(read_checkpoint(tmp_path / "whole"))
    finally:
        torch.serialization.set_crc32_options(True)
    tensor = engine.fp32_model()["4.weight"].numpy().tobytes()
    generator = random.Random(0)
    harmless = 0
    inside = [whole.index(tensor) * 8 + generator.randrange(len(tensor) * 8) for _ in range(20)]
    anywhere = [generator.randrange(len(whole) * 8) for _ in range(60)]
    for bit in (*inside, *anywhere):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        flipped.write_bytes(damaged)
        try:
            # Padding between two tensors and time stamps hold no content.
            assert str(read_checkpoint(flipped)) == content, bit
            assert bit not in inside, "a flipped bit of a tensor was not detected"
            harmless += 1
        except ValueError as error:
            message = str(error)
            reasons = ("damaged", "not a checkpoint", "expected a bundle")
            assert any(reason in message for reason in reasons), message
    assert harmless < len(anywhere), "no flipped bit was detected anywhere"


def test_an_entry_that_is_marked_as_a_folder_is_damaged(tmp_path: Path) -> None:
    """torch reads nothing for such an entry, so its tensor would have any numbers."""
    engine = engine_for(RECIPES["O2"])
    path = save_checkpoint(tmp_path / "whole", engine)
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        directory = archive.start_dir
    # Byte 38 of an entry of the directory has its attributes (APPNOTE 6.3.10, 4.3.12).
    content[directory + 38] ^= 0x10
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is damaged"):
        read_checkpoint(path)


def test_a_checkpoint_loads_only_under_an_equal_recipe() -> None:
    # A name and a graph of casts change no number of a training.
    settings = {name: replace(recipe, name="", graph=False) for name, recipe in RECIPES.items()}
    engines = {name: engine_for(recipe) for name, recipe in RECIPES.items()}
    for saved, other in itertools.product(RECIPES, RECIPES):
        refused = pytest.raises(ValueError, match="Build the engine with the same one")
        with nullcontext() if settings[saved] == settings[other] else refused:
            engines[other].load_state_dict(copy.deepcopy(engines[saved].state_dict()))


def test_two_accumulators_of_one_name_are_distinguished() -> None:
    """Two sources describe the accumulator of a T4 differently, and both rows have its name."""
    here, there = (
        engine_for(replace(RECIPES["O2"], accumulator=row)) for row in (SPECS["T4"], TURING_4)
    )
    with pytest.raises(
        ValueError, match=r"another accumulator of the same name: block_length 8, now 4"
    ):
        there.load_state_dict(here.state_dict())
    # Sources and notes change no number, so a row that differs only in them is the same one.
    other_source = replace(SPECS["T4"], source="another paper", note="")
    engine_for(replace(RECIPES["O2"], accumulator=other_source)).load_state_dict(here.state_dict())


DAMAGES: dict[tuple[Any, ...], object] = {
    ("scalers", 0): {"scale": -1.0},
    ("scalers",): 3,
    ("steps",): "many",
    ("model", "4.bias"): "text",
    ("weights", "master", "4.bias"): torch.zeros(2),
    ("weights", "master", "4.weight"): "text",
    ("weights", "optimizer"): {},
    ("weights", "optimizer", "param_groups", 0): 3,
    ("weights", "optimizer", "state", 0): None,
    ("weights", "optimizer", "state", 1): {"exp_avg": torch.zeros(2)},
    ("weights", "optimizer", "state"): 5,
    ("weights", "generator"): torch.zeros(3, dtype=torch.uint8),
    ("recipe",): None,
    ("recipe", "fields", "scaler"): 3,
    ("products", "history", "0.weight:input"): ["much"],
    ("products", "history", "0.weight:weight"): 3,
    ("products", "history"): None,
    ("products", "loss_size"): "none",
    ("products", "generator"): 3,
}


def test_a_state_that_cannot_be_loaded_changes_nothing() -> None:
    saved, engines = (
        {name: engine_for(RECIPES[name], seed) for name in ("O2", "FP8 delayed")} for seed in (0, 3)
    )
    for engine in (*saved.values(), *engines.values()):
        train(engine, 2)
    for (*path, last), value in DAMAGES.items():
        recipe = "FP8 delayed" if "products" in path else "O2"
        before = str(engines[recipe].state_dict())
        state = copy.deepcopy(saved[recipe].state_dict())
        reduce(getitem, path, state)[last] = value
        # Any sentence will do: only the type of the error and the state are checked here.
        with pytest.raises(ValueError, match=r"\w+ \w+ \w+"):
            engines[recipe].load_state_dict(state)
        assert str(engines[recipe].state_dict()) == before, (*path, last)


@pytest.mark.parametrize("flat", [False, True])
def test_training_does_not_change_the_state_that_was_loaded(flat: bool) -> None:
    first, second = (engine_for(RECIPES["O2"], seed, flat=flat) for seed in (0, 3))
    train(first, 2)
    state = first.state_dict()
    before = str(state)
    second.load_state_dict(state)
    train(second, 2)
    assert str(state) == before


def test_nothing_is_saved_between_backward_and_step(tmp_path: Path) -> None:
    engine = engine_for(RECIPES["O2"])
    with engine.forward():
        engine.backward(engine(torch.ones(2, 6)).sum())
    # Unscaling the gradients does not make them complete.
    for read_gradients in (lambda: None, engine.gradients):
        read_gradients()
        with pytest.raises(RuntimeError, match="expected no pending gradients"):
            save_checkpoint(tmp_path / "run.pt", engine)
        assert not list(tmp_path.iterdir())
    engine.step()
    assert save_checkpoint(tmp_path / "run.pt", engine).exists()


def test_extra_values_that_torch_cannot_load_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="Path"):
        save_checkpoint(tmp_path / "run.pt", engine_for(RECIPES["O2"]), where=tmp_path)
    assert not list(tmp_path.iterdir())


class Tagged(torch.Tensor):
    """A subclass, as users define them."""


@pytest.mark.parametrize(
    "make_value",
    [
        lambda: torch.ones(2).as_subclass(Tagged),
        lambda: nn.Parameter(torch.ones(2)).as_subclass(Tagged),
        lambda: tagged_with(Path("a")),
        lambda: lambda: 0,
        lambda: (each for each in ()),
    ],
    ids=["a subclass", "a parameter of a subclass", "an attribute", "a lambda", "a generator"],
)
def test_a_value_that_could_not_be_loaded_keeps_the_old_file(
    make_value: Callable[[], object], tmp_path: Path
) -> None:
    engine = engine_for(RECIPES["O2"])
    path = save_checkpoint(tmp_path / "run.pt", engine, epoch=1)
    with pytest.raises(TypeError, match="expected numbers, text, tensors"):
        save_checkpoint(path, engine, value=make_value())
    assert load_checkpoint(path, engine) == {"epoch": 1}


def test_a_path_in_place_of_a_state_is_refused() -> None:
    engine = engine_for(RECIPES["O2"])
    for call in (engine.load_model, engine.load_state_dict):
        for wrong in ("run.pt", Path("run.pt"), None, [1]):
            with pytest.raises(TypeError, match=r"state: expected a Mapping, got .*from a file"):
                call(wrong)


def tagged_with(value: object) -> torch.Tensor:
    """Return a tensor with an attribute."""
    tensor = torch.ones(2)
    tensor.tag = value
    return tensor


def test_a_tensor_with_a_plain_attribute_is_saved(tmp_path: Path) -> None:
    engine = engine_for(RECIPES["O2"])
    path = save_checkpoint(tmp_path / "run.pt", engine, value=tagged_with("head"))
    assert load_checkpoint(path, engine)["value"].tag == "head"


def draws_of_numpy() -> list[float]:
    """Return three draws of numpy's global generator."""
    return np.random.normal(size=3).tolist()  # noqa: NPY002


@pytest.fixture
def numpy_generator() -> Iterator[None]:
    """Restore numpy's global generator after a test."""
    before = np.random.get_bit_generator()
    yield
    np.random.set_bit_generator(before)


@pytest.mark.usefixtures("numpy_generator")
@pytest.mark.parametrize("kind", ["MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"])
def test_each_generator_of_numpy_is_restored(kind: str, tmp_path: Path) -> None:
    np.random.set_bit_generator(getattr(np.random, kind)(1))
    engine = engine_for(RECIPES["O2"])
    path = save_checkpoint(tmp_path / "run.pt", engine)
    expected = draws_of_numpy()
    load_checkpoint(path, engine)
    assert draws_of_numpy() == expected


@pytest.mark.usefixtures("numpy_generator")
def test_another_kind_of_numpy_generator_is_refused(tmp_path: Path) -> None:
    engine = engine_for(RECIPES["O2"])
    path = save_checkpoint(tmp_path / "run.pt", engine)
    np.random.set_bit_generator(np.random.PCG64(1))
    with pytest.raises(ValueError, match=r"to be MT19937, .* got PCG64"):
        load_checkpoint(path, engine)


def test_the_numpy_state_of_an_older_checkpoint_is_restored() -> None:
    states = generators()
    name, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002
    states["numpy"] = [name, np.asarray(keys).tolist(), *rest]
    expected = draws_of_numpy()
    set_generators(states)
    assert draws_of_numpy() == expected


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the test forks a process and kills it")
@pytest.mark.slow
def test_a_killed_process_leaves_a_complete_checkpoint(tmp_path: Path) -> None:
    """Kill a process that writes one checkpoint after the other, at 20 random moments.

    The process writes a byte into a pipe after each checkpoint. The file must hold the last
    checkpoint that was reported, or the one after it, whose report the kill prevented.
    """
    torch.manual_seed(0)
    engine = Engine(nn.Linear(700, 700), torch.optim.SGD, RECIPES["O2"])
    start = time.perf_counter()
    path = save_checkpoint(tmp_path / "run.pt", engine, written=0)
    duration = time.perf_counter() - start
    generator = random.Random(0)
    written_before = 0
    interruptions = 0
    for _ in range(20):
        reports, report_end = os.pipe()
        child = os.fork()
        if child == 0:
            # The child must never return to the test runner: it writes until it is killed.
            try:
                # fork copies one thread only, and torch must not wait for the others.
                torch.set_num_threads(1)
                for number in itertools.count(written_before + 1):
                    with torch.no_grad():
                        engine.weights.master_weights[0].fill_(number)
                    save_checkpoint(path, engine, written=number)
                    os.write(report_end, b".")
            finally:
                os._exit(1)
        os.close(report_end)
        assert os.read(reports, 1), "the child wrote no checkpoint"
        # Any moment of the next write may be the one of the kill.
        time.sleep(generator.uniform(0, duration))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        reported = 1 + sum(len(chunk) for chunk in iter(partial(os.read, reports, 4096), b""))
        os.close(reports)
        bundle = read_checkpoint(path)
        newest = bundle["extra"]["written"]
        last_reported = written_before + reported
        assert last_reported <= newest <= last_reported + 1
        assert (bundle["model"]["weight"] == newest).all()
        # A killed write leaves a temporary file, which the next one deletes.
        if len(list(tmp_path.iterdir())) > 1:
            interruptions += 1
        written_before = newest
    assert interruptions, "no kill interrupted a write, so the test shows nothing"


def test_stochastic_checkpoint_continues_on_another_device() -> None:
    """A CPU's generator is seeded by the state of a GPU's, which it cannot continue.

    The state of a GPU's generator has 16 bytes. Equal states of a GPU lead to equal steps on a CPU,
    and other states to others.
    """
    message = "drawn on a GPU when this was saved, and are drawn on a CPU now.* not bit for bit"
    for recipe in ("FP16 stochastic", "BF16 stochastic", "NVFP4"):
        weights = []
        # NVFP4 leaves the last layer in FP32 and draws for the gradients of the first one only.
        initial = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 4))
        for gpu_state in (torch.arange(16), torch.arange(16), torch.arange(16) + 1):
            engine = Engine(
                copy.deepcopy(initial), partial(torch.optim.SGD, lr=0.1), RECIPES[recipe]
            )
            state = engine.state_dict()
            owner = state["products" if "products" in state else "weights"]
            owner["generator"] = gpu_state.to(torch.uint8)
            with pytest.warns(UserWarning, match=message):
                engine.load_state_dict(state)
            with engine.forward():
                loss = engine(torch.ones(2, 32)).square().mean()
            engine.backward(loss)
            assert engine.step().stepped, recipe
            weights.append(engine.model[0].weight.detach())
        assert torch.equal(weights[0], weights[1]), recipe
        assert not torch.equal(weights[0], weights[2]), recipe
