"""Training on the simulated card beyond plain steps: checkpoints across devices, copies, instruments, full memory.

The functions after `# ---- on the card` run in one process with the card, each by itself; a test holds each outcome.
"""

from __future__ import annotations

import copy
import pickle
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from labkit.amp import RECIPES, Engine, load_checkpoint, save_checkpoint
from labkit.train import TASKS, TrainingRun
from tests.slowness import slowness

pytestmark = pytest.mark.slow

ON_CARD: dict[str, Callable[[], None]] = {}
DRAWING = {"FP16 stochastic", "BF16 stochastic", "NVFP4"}  # their random numbers are the device's own
FLAT_TOO = {"O2", "BF16", "FP16 Kahan", "FP16 stochastic"}
ADAM = partial(torch.optim.AdamW, lr=1e-2)


def on_card(function: Callable[[], None]) -> Callable[[], None]:
    ON_CARD[function.__name__] = function
    return function


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 48), nn.LayerNorm(48), nn.ReLU(), nn.Linear(48, 16))


def engine(recipe: str = "O2", device: str = "cuda", **options: Any) -> Engine:
    return Engine(network().to(device), ADAM, RECIPES[recipe], **options)


def steps(engine: Engine, count: int = 3, seed: int = 0) -> list[str]:
    """Take steps on batches that the seed decides, and return their losses in hexadecimal, so that NaN equals NaN."""
    generator, losses = torch.Generator().manual_seed(seed), []
    for _ in range(count):
        x = torch.randn(8, 32, generator=generator).to(engine.device)
        engine.zero_grad()
        with engine.forward():
            loss = (engine(x) - x.mean(1, keepdim=True)).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item().hex())
    return losses


def finite(losses: list[str]) -> bool:
    return not {"nan", "inf", "-inf"} & set(losses)


def weights(engine: Engine) -> dict[str, bytes]:
    return {name: master.float().cpu().numpy().tobytes() for name, master in engine.weights.named_masters().items()}


@contextmanager
def said() -> Iterator[list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        words: list[str] = []
        yield words
        words += [str(warning.message) for warning in caught]


# ---- on the card


@on_card
def checkpoints_go_on_on_the_other_device() -> None:
    """Every recipe, both ways: bit for bit, or with a warning where random numbers are the device's own."""
    with tempfile.TemporaryDirectory() as folder:
        for recipe in RECIPES:
            for here, there in (("cuda", "cpu"), ("cpu", "cuda")):
                first = engine(recipe, here)
                steps(first, 2)
                path = save_checkpoint(Path(folder, "run.pt"), first, epoch=3)
                before = weights(first)
                second = engine(recipe, there)
                with said() as words:
                    assert load_checkpoint(path, second) == {"epoch": 3}
                assert weights(second) == before, (recipe, here)
                assert all(p.device.type == there for p in second.model.parameters())
                if recipe in DRAWING:
                    assert len(words) == 1, (recipe, here, words)
                    assert "not bit for bit" in words[0]
                    losses = steps(second, 2, seed=1)
                    assert finite(losses), (recipe, losses)
                else:
                    assert words == [], (recipe, here, words)
                    assert steps(first, 2, seed=1) == steps(second, 2, seed=1), (recipe, here)
                    assert weights(first) == weights(second), (recipe, here)


@on_card
def checkpoints_go_on_on_the_card_bit_for_bit() -> None:
    """Every recipe, flat master weights and stochastic rounding included."""
    with tempfile.TemporaryDirectory() as folder:
        for recipe in RECIPES:
            for flat in (False, True)[: 2 if recipe in FLAT_TOO else 1]:
                first = engine(recipe, flat=flat)
                steps(first, 2)
                path = save_checkpoint(Path(folder, "run.pt"), first)
                going_on = steps(first, 2, seed=1)
                second = engine(recipe, flat=flat, seed=9)
                load_checkpoint(path, second)
                assert steps(second, 2, seed=1) == going_on, (recipe, flat)


@on_card
def a_checkpoint_puts_the_cards_random_numbers_back() -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.Dropout(0.5), nn.Linear(32, 1)).cuda()
    dropping = Engine(model, ADAM, RECIPES["O1 graph"])
    with tempfile.TemporaryDirectory() as folder:
        steps(dropping)
        path = save_checkpoint(Path(folder, "run.pt"), dropping)
        going_on = steps(dropping, seed=1)
        load_checkpoint(path, dropping)
        assert steps(dropping, seed=1) == going_on


@on_card
def copies_train_on_by_themselves() -> None:
    for recipe in RECIPES:
        for flat in (False, True)[: 2 if recipe in FLAT_TOO else 1]:
            first = engine(recipe, flat=flat)
            steps(first, 2)
            copied, pickled = copy.deepcopy(first), pickle.loads(pickle.dumps(first))
            expected = steps(first, 1, seed=1)
            for other in (copied, pickled):
                assert steps(other, 1, seed=1) == expected, (recipe, flat)
                assert all(p.is_cuda for p in other.model.parameters())


@on_card
def flat_masters_change_no_bit() -> None:
    for recipe in ("O2", "FP16 Kahan", "BF16"):
        assert steps(engine(recipe, flat=True)) == steps(engine(recipe))


@on_card
def groups_have_their_own_learning_rates() -> None:
    def groups(model: nn.Module) -> list[dict[str, Any]]:
        return [{"params": list(model[0].parameters()), "lr": 0.0}, {"params": list(model[1:].parameters()), "lr": 0.1}]

    for flat in (False, True):
        both = [engine("O2", device, groups=groups, flat=flat) for device in ("cuda", "cpu")]
        before = weights(both[0])
        losses = [steps(one) for one in both]
        assert losses[0] == losses[1]
        after = weights(both[0])
        assert after == weights(both[1])
        assert after["3.weight"] != before["3.weight"]


@on_card
def forks_and_twins_of_a_run() -> None:
    for recipe in ("FP16 dynamic", "O1", "BF16 stochastic", "FP8 delayed", "NVFP4"):
        run = TrainingRun(TASKS["digits_cnn"], RECIPES[recipe], 0, device="gpu")
        for _ in range(2):
            run.step()
        fork, twin, other = run.fork(), run.fp32_twin(), run.fork(RECIPES["FP32"])
        assert [run.step().loss for _ in range(2)] == [fork.step().loss for _ in range(2)], recipe
        for derived in (fork, twin, other):
            derived.step()
            assert all(p.is_cuda for p in derived.model.parameters())


@on_card
def averages_of_weights() -> None:
    from labkit.amp import Ema

    averages = []
    for device in ("cuda", "cpu"):
        trained = engine("O2", device)
        average = Ema(trained, decay=0.5)
        for seed in range(3):
            steps(trained, 1, seed)
            average.update()
        with average.in_model():
            inside = trained.model[0].weight.float().cpu()
        averages.append([inside, {name: value.cpu() for name, value in average.averages.items()}])
        again = Ema(trained, decay=0.9)
        again.load_state_dict(torch.load(_saved(average.state_dict()), map_location="cpu"))
        assert all(again.averages[name].device.type == device for name in again.averages)
    (inside, first), (also, second) = averages
    assert torch.equal(inside, also)
    assert all(torch.equal(first[name], second[name]) for name in first)


def _saved(state: dict[str, Any]) -> Any:
    import io

    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return file


@on_card
def scales_of_single_layers() -> None:
    from labkit.amp import layer_scales

    gradients = []
    for device in ("cuda", "cpu"):
        model = network().to(device)
        with layer_scales(model, {"0": 8}) as left:
            model(torch.ones(2, 32, device=device)).square().sum().backward()
        assert left == {}
        gradients.append(model[0].weight.grad.cpu())
    assert torch.equal(*gradients)


@on_card
def histograms_and_probes() -> None:
    from labkit.instrument import exponent_histogram, probe

    values = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * 1e-6
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        card, cpu = (exponent_histogram(values.to(device, dtype)) for device in ("cuda", "cpu"))
        assert (card.counts == cpu.counts).all()
    found = []
    for device in ("cuda", "cpu"):
        model = network().to(device)
        with probe(model) as seen:
            model(torch.ones(2, 32, device=device)).square().mean().backward()
        found.append({name: exponent_histogram(gradient).counts.tolist() for name, gradient in seen.gradients.items()})
    assert found[0] == found[1]
    assert found[0]


@on_card
def films_of_gradients() -> None:
    from dataclasses import replace

    from labkit.train import train

    records = [
        train(replace(TASKS["digits_cnn"], steps=3), RECIPES["O2"], 0, device=device, watch=["weight gradients"])
        for device in ("cuda", "cpu")
    ]
    first, second = (record.snapshots[0].layers for record in records)
    assert first.keys() == second.keys()
    assert all((first[name].counts == second[name].counts).all() for name in first)
    assert records[0].memory.keys() == records[1].memory.keys()


def watched(device: str, spoil: bool = False) -> Any:
    """A training with torch's own autocast and GradScaler, watched; one gradient becomes inf."""
    from labkit.instrument import watch

    model = network().to(device)
    optimizer, scaler = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler(device, init_scale=2.0**10)
    generator = torch.Generator().manual_seed(0)
    with watch(model) as seen:
        for step in range(4):
            x = torch.randn(8, 32, generator=generator).to(device)
            optimizer.zero_grad()
            with torch.autocast(device, torch.float16):
                loss = model(x).float().square().mean() * (1e30 if spoil and step == 2 else 1)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    return seen.report()


@on_card
def a_watched_training() -> None:
    report = watched("cuda")
    assert report.steps == 4
    assert not report.skips
    assert report.findings == ()
    spoiled, on_cpu = (watched(device, spoil=True) for device in ("cuda", "cpu"))
    assert len(spoiled.skips) == 1
    assert (spoiled.findings, spoiled.skips) == (on_cpu.findings, on_cpu.skips)
    casts = [line for line in str(report).splitlines() if "casts in a step" in line]
    assert ["from float32 to float16" in line for line in casts] == [True, False]
    assert "1 from float16 to float32" in casts[1], "the layer norm's, which CUDA's autocast keeps in FP32"


@on_card
def a_watched_engine() -> None:
    from labkit.instrument import watch

    plain, seen = engine("O2"), engine("O2")
    with watch(seen) as watching:
        losses = steps(seen)
    assert losses == steps(plain)
    assert watching.report().steps == 3


SCRIPT = """
import torch, torch.nn.functional as F
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3)).cuda()
optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
for number in range(1000):
    optimizer.zero_grad()
    with torch.autocast("cuda", torch.float16):
        loss = F.cross_entropy(model(torch.randn(16, 8, device="cuda")), torch.randint(3, (16,), device="cuda"))
    scaler.scale(loss).backward()
    CLIP
    scaler.step(optimizer)
    scaler.update()
"""
EARLY = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"


@on_card
def the_doctor_in_a_script_that_trains_on_the_card() -> None:
    import io
    from contextlib import redirect_stdout

    from labkit.cli import main

    with tempfile.TemporaryDirectory() as folder:
        for code, words in ((SCRIPT.replace("CLIP", "pass"), ""), (SCRIPT.replace("CLIP", EARLY), "clip")):
            path = Path(folder, "own.py")
            path.write_text(code)
            with redirect_stdout(io.StringIO()) as out:
                main(["diagnose", str(path)])
            assert "Error" not in out.getvalue(), out.getvalue()
            assert words in out.getvalue(), out.getvalue()
            assert ("clip_before_unscale" in out.getvalue()) == bool(words), out.getvalue()


@on_card
def the_clinics_faults_beside_a_card() -> None:
    """The patients train on the CPU wherever there is a card; looking at them moves no random number of it."""
    from labkit.clinic import patients
    from labkit.clinic.patient import run

    before = torch.cuda.get_rng_state()
    for name in ("mask_constant", "log_of_epsilon", "decay_is_lost"):
        patient = patients()[name]
        assert patient.failed(run(patient, cured=False)), name
        assert not patient.failed(run(patient, cured=True)), name
    assert torch.equal(torch.cuda.get_rng_state(), before)


@on_card
def a_model_moved_after_the_engine_was_made() -> None:
    """Master weights and optimizer stay where they were made: the engine says so, and what to do."""
    for recipe in ("FP32", "O1", "O2", "FP16 no master"):
        for flat in (False, True):
            moved = engine(recipe, "cpu", flat=flat)
            steps(moved)
            moved.model.cuda()
            with pytest.raises(RuntimeError, match=r"moved to cuda:0 after the engine was made, .* are on cpu"):
                moved.forward()


@on_card
def a_batch_on_another_device_is_refused_and_the_engine_goes_on() -> None:
    for recipe in ("FP32", "O1", "O1 graph", "O2", "BF16", "FP8 delayed", "NVFP4"):
        trained = engine(recipe)
        steps(trained)
        expected = steps(copy.deepcopy(trained), seed=1)
        trained.zero_grad()
        with pytest.raises(RuntimeError, match="cpu"), trained.forward():
            trained(torch.ones(4, 32))
        assert steps(trained, seed=1) == expected, recipe


@on_card
def a_card_that_is_full_in_a_step() -> None:
    """The step ends by OutOfMemoryError wherever memory runs out; nothing has moved, and the next step goes on."""
    from tests.gpu.simulated.runtime import limited_memory

    for recipe in ("FP32", "O1", "O1 graph", "O2", "FP16 no master", "BF16 stochastic", "FP8 delayed", "NVFP4"):
        plain = engine(recipe)
        steps(plain)
        expected = steps(copy.deepcopy(plain), 2, seed=1)
        ended_in = set()
        for size in (2**9 * 3**k for k in range(9)):
            trained = copy.deepcopy(plain)
            try:
                with limited_memory(size):
                    steps(trained, 1, seed=1)
                ended_in.add("nowhere")
            except torch.OutOfMemoryError as error:
                files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
                in_optimizer = any("torch/optim" in file for file in files)
                ended_in.add("optimizer" if in_optimizer else "elsewhere")
                again = steps(trained, 2, seed=1)
                assert finite(again), (recipe, size)
                if not in_optimizer and "without_master.py" not in files[-1]:  # which draws random numbers
                    assert again == expected, (recipe, size, files[-3:])
        assert {"elsewhere", "nowhere"} <= ended_in, (recipe, ended_in)


@on_card
def sparse_embeddings() -> None:
    for recipe in ("FP32", "O1"):
        losses = []
        for device in ("cuda", "cpu"):
            torch.manual_seed(0)
            model = nn.Sequential(nn.EmbeddingBag(10, 4, sparse=True), nn.Linear(4, 1)).to(device)
            trained = Engine(model, partial(torch.optim.SGD, lr=0.1), RECIPES[recipe])
            losses.append([])
            for _ in range(3):
                trained.zero_grad()
                with trained.forward():
                    loss = trained(torch.tensor([[1, 2, 2], [4, 5, 1]], device=device)).square().mean()
                trained.backward(loss)
                losses[-1] += [loss.item(), trained.step().stepped]
        assert losses[0] == losses[1], recipe
        assert losses[0][-1], recipe


class Recurrent(nn.Module):
    def __init__(self, kind: type) -> None:
        super().__init__()
        self.cells, self.head = kind(8, 16, num_layers=2, bidirectional=True, batch_first=True), nn.Linear(32, 1)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.cells(x)[0])


@on_card
def recurrent_layers() -> None:
    for kind in (nn.LSTM, nn.GRU, nn.RNN):
        for recipe in ("FP32", "O1", "O1 graph", "O2", "BF16", "FP8 delayed", "NVFP4"):
            losses = []
            for device in ("cuda", "cpu"):
                torch.manual_seed(0)
                trained = Engine(Recurrent(kind).to(device), ADAM, RECIPES[recipe])
                generator = torch.Generator().manual_seed(0)
                losses.append([])
                for _ in range(3):
                    x = torch.randn(4, 5, 8, generator=generator).to(device)
                    trained.zero_grad()
                    with trained.forward():
                        loss = (trained(x) - x.mean(2, keepdim=True)).square().mean()
                    trained.backward(loss)
                    trained.step()
                    losses[-1].append(loss.item())
            pairs = list(zip(*losses, strict=True))[: 1 if recipe in DRAWING else 3]
            assert all(abs(a - b) <= 2**-7 * b for a, b in pairs), (kind, recipe, losses)
            assert torch.tensor(losses).isfinite().all(), (kind, recipe, losses)


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(16, 2, batch_first=True), nn.Linear(16, 1)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> Any:
        return self.head(self.attention(x, x, x, attn_mask=mask, need_weights=False)[0])


@on_card
def masks_of_the_lowest_fp32_number() -> None:
    """Under O2, too: such a mask goes in as it is, and no attention weight is NaN."""
    for recipe in ("FP32", "O1", "O2", "BF16"):
        losses = []
        for device in ("cuda", "cpu"):
            torch.manual_seed(0)
            trained = Engine(Masked().to(device), ADAM, RECIPES[recipe])
            mask = torch.full((4, 4), torch.finfo(torch.float32).min).triu(1).to(device)
            x = torch.randn(2, 4, 16, generator=torch.Generator().manual_seed(0)).to(device)
            losses.append([])
            for _ in range(3):
                trained.zero_grad()
                with trained.forward():
                    loss = (trained(x, mask) - 1).square().mean()
                trained.backward(loss)
                losses[-1].append(loss.item())
                trained.step()
            assert trained.scaler.scale >= 1
        card, cpu = torch.tensor(losses[0]), torch.tensor(losses[1])
        assert card.isfinite().all(), (recipe, losses)
        assert (card - cpu).abs().max() <= 2**-7, (recipe, losses)


@on_card
def several_losses_and_engines() -> None:
    found = []
    for device in ("cuda", "cpu"):
        encoder, head = engine("O2", device), Engine(nn.Linear(16, 1).to(device), ADAM, RECIPES["O1"], losses=2)
        with torch.no_grad():
            head.model.weight.fill_(0.1), head.model.bias.zero_()
        head.weights.adopt()
        x = torch.randn(8, 32, generator=torch.Generator().manual_seed(0)).to(device)
        losses = []
        for _ in range(6):
            encoder.zero_grad(), head.zero_grad()
            with encoder.forward():
                middle = encoder(x)
            with head.forward():
                first, second = head(middle).square().mean(), head(middle.detach()).mean() * 1e-6
            head.backward(first, 0, also=[encoder])
            head.backward(second, 1)
            encoder.clip(1.0), head.clip(1.0)
            reports = [encoder.step(), head.step()]
            losses += [first.item(), second.item(), *(report.found_inf for report in reports)]
        found.append([losses, [s.scale for s in head.scalers], encoder.scaler.scale])
    assert found[0] == found[1]


@on_card
def what_is_accumulated_clipped_and_scheduled() -> None:
    found = []
    for device in ("cuda", "cpu"):
        trained = engine("O2", device)
        schedule = torch.optim.lr_scheduler.StepLR(trained.optimizer, 1, 0.5)
        norms = []
        for step in range(4):
            trained.zero_grad()
            for part in range(2):
                x = torch.randn(4, 32, generator=torch.Generator().manual_seed(2 * step + part)).to(device)
                with trained.forward():
                    loss = trained(x).square().mean() / 2
                trained.backward(loss)
            norms.append(trained.clip(0.1).float().item())
            if trained.step().stepped:
                schedule.step()
        found.append([norms, weights(trained), schedule.get_last_lr()])
    assert found[0] == found[1]


@on_card
def a_race_into_a_folder_of_ones_own() -> None:
    from dataclasses import replace

    from labkit.train.race import race

    task = replace(TASKS["digits"], steps=4)
    with tempfile.TemporaryDirectory() as folder:
        records = race(task, [RECIPES["FP32"], RECIPES["O2"]], [0, 1], Path(folder), device="gpu", workers=1)
        kept = sorted(path.relative_to(folder).parts[0] for path in Path(folder).rglob("*.json"))
    assert [len(record.steps) for record in records] == [4] * 4
    assert set(kept) == {"tesla-t4-simulated"}


@on_card
def an_emulated_accumulator() -> None:
    from dataclasses import replace

    from labkit.gemm import SPECS

    x = torch.randn(8, 32, generator=torch.Generator().manual_seed(0))
    for name in ("O1", "O2"):
        recipe, found = replace(RECIPES[name], name="V100", accumulator=SPECS["V100"]), []
        for device in ("cuda", "cpu"):
            torch.manual_seed(0)
            trained = Engine(nn.Linear(32, 8).to(device), ADAM, recipe)
            with trained.forward():
                loss = trained(x.to(device)).square().mean()
            trained.backward(loss)
            found.append([loss.item(), *(g.cpu().numpy().tobytes() for g in trained.gradients().values())])
        assert found[0] == found[1]


# ---- the tests

CROSSING = ("O1", "O2", "FP8 delayed", "BF16 stochastic", "NVFP4")


def gone_on(folder: str, save: bool) -> dict[str, list[str]]:
    """Save a run of each recipe, or load what was saved; take steps, and return the losses."""
    losses = {}
    for recipe in CROSSING:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        trained = engine(recipe, device)
        path = Path(folder, f"{recipe} {device if save else {'cuda': 'cpu', 'cpu': 'cuda'}[device]}.pt")
        if save:
            steps(trained)
            save_checkpoint(path, trained)
        else:
            load_checkpoint(path, trained)
        losses[recipe] = steps(trained, seed=1)
    return losses


def saved_and_gone_on(folder: str) -> list[dict[str, list[str]]]:
    return [gone_on(folder, save) for save in (True, False)]


def test_a_run_goes_on_on_a_machine_without_a_gpu_and_back(simulated_gpu: Any, tmp_path: Path) -> None:
    on_cpu = gone_on(str(tmp_path), save=True)
    on_card, resumed_on_card = simulated_gpu("T4", saved_and_gone_on, str(tmp_path))
    with said() as words:
        resumed_on_cpu = gone_on(str(tmp_path), save=False)
    assert sum("not bit for bit" in word for word in words) == 2
    for recipe in CROSSING:
        if recipe in DRAWING:
            assert finite(resumed_on_card[recipe] + resumed_on_cpu[recipe])
        else:
            assert resumed_on_card[recipe] == on_cpu[recipe], recipe
            assert resumed_on_cpu[recipe] == on_card[recipe], recipe


def every_patient() -> dict[str, list[bool]]:
    from labkit.clinic import patients
    from labkit.clinic.patient import run

    return {name: [p.failed(run(p, cured=cured)) for cured in (False, True)] for name, p in patients().items()}


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_patient_fails_when_broken_and_not_when_cured_beside_a_card(simulated_gpu: Any) -> None:
    failed = simulated_gpu("T4", every_patient, timeout=1800 * slowness())
    assert {name: found for name, found in failed.items() if found != [True, False]} == {}


def outcomes() -> dict[str, str]:
    """Run each function, and return its traceback, "" where there is none."""
    found = {}
    for name, function in ON_CARD.items():
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(warnings, "showwarning", lambda *_, **__: None)
                function()
            found[name] = ""
        except BaseException:
            found[name] = traceback.format_exc()
    return found


@pytest.fixture(scope="module")
def ran(simulated_gpu: Any) -> dict[str, str]:
    return simulated_gpu("T4", outcomes, timeout=200 * slowness())


@pytest.mark.parametrize("name", ON_CARD)
def test_on_the_card(ran: dict[str, str], name: str) -> None:
    assert ran[name] == "", ran[name]
