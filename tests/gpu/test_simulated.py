"""The simulated card of tests/gpu/simulated: what it is, what it refuses, what it counts."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from tests.gpu import simulated
from tests.gpu.simulated import ROOT
from tests.gpu.simulated.cards import CARDS


def worked_example() -> list[object]:
    """A tensor on the card: it says so, computes as the CPU does, and its memory is counted."""
    x = torch.tensor([1.0, 2.0, 3.0], device="cuda")
    before = torch.cuda.memory_allocated()
    y = (x * 2 + 1).cpu()
    return [str(x.device), y.tolist(), torch.cuda.get_device_name(), before, torch.cuda.memory_allocated()]


def test_a_tensor_says_cuda_and_computes_as_the_cpu_does(simulated_gpu) -> None:
    assert simulated_gpu("T4", worked_example) == ["cuda:0", [3.0, 5.0, 7.0], "Tesla T4 (simulated)", 512, 512]


def what_the_card_says() -> list[object]:
    properties = torch.cuda.get_device_properties(0)
    native = torch.cuda.is_bf16_supported(including_emulation=False)
    return [properties.name, [properties.major, properties.minor], properties.multi_processor_count, native]


@pytest.mark.parametrize("card", CARDS)
def test_each_card_says_what_the_real_one_says(simulated_gpu, card: str) -> None:
    expected = CARDS[card]
    name, capability, multiprocessors, native_bf16 = simulated_gpu(card, what_the_card_says)
    assert name == expected.device_name
    assert "simulated" in name
    assert tuple(capability) == expected.capability
    assert multiprocessors == expected.multiprocessors
    assert native_bf16 is (card in ("A100", "H100"))


def test_a_failure_in_the_process_brings_its_traceback(simulated_gpu) -> None:
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        simulated_gpu("T4", "1 / 0")


@pytest.mark.parametrize("words", [(), ("P100", "--", "true"), ("T4", "--"), ("T4",)])
def test_the_launcher_lists_the_cards_when_it_is_called_wrongly(words: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "tests.gpu.simulated", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "expected a card, one of T4, V100, A100, H100, and a command" in done.stderr


def half_numerics() -> list[bool]:
    """Products and norms of half tensors compute in FP32 and round once, as a GPU's do."""
    torch.manual_seed(0)
    a, b = torch.randn(32, 64).half(), torch.randn(64, 8).half()
    product = (a.cuda() @ b.cuda()).cpu()
    x, weight = torch.randn(4, 8).half(), torch.randn(8).half()
    norm = torch.nn.functional.layer_norm(x.cuda(), (8,), weight.cuda()).cpu()
    once = torch.nn.functional.layer_norm(x.float(), (8,), weight.float()).half()
    return [torch.equal(product, (a.float() @ b.float()).half()), torch.equal(norm, once), norm.dtype == torch.half]


def what_the_cpu_lacks() -> list[bool]:
    """Fused LSTM and GRU cells, sparse gradients, and softmax from half to FP32 agree with the CPU's own ways."""

    def gradients(device: str, make: type, data: torch.Tensor) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = make(3, 4).to(device)
        result = model(data.to(device))[0]
        result.square().sum().backward()
        return [result.cpu(), *(weight.grad.cpu() for weight in model.parameters())]

    def close(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
        return all(torch.allclose(x, y, rtol=1e-5, atol=1e-6) for x, y in zip(a, b, strict=True))

    data = torch.randn(5, 2, 3)
    cells = [
        close(gradients("cuda", make, data), gradients("cpu", make, data)) for make in (torch.nn.LSTM, torch.nn.GRU)
    ]

    def embedded(device: str, make: type, optimizer: type, **options: float) -> torch.Tensor:
        torch.manual_seed(0)
        model = make(10, 4, sparse=True).to(device)
        steps = optimizer(model.parameters(), lr=0.1, **options)
        for _ in range(3):
            steps.zero_grad()
            model(torch.tensor([[1, 2, 2], [4, 5, 1]], device=device)).square().sum().backward()
            assert model.weight.grad.is_sparse
            assert model.weight.grad.device.type == device
            steps.step()
        return model.weight.detach().cpu()

    sparse = [
        close([embedded("cuda", make, optimizer)], [embedded("cpu", make, optimizer)])
        for make in (torch.nn.Embedding, torch.nn.EmbeddingBag)
        for optimizer in (torch.optim.SGD, torch.optim.SparseAdam)
    ]
    half = torch.randn(2, 5).half()
    x = half.cuda().requires_grad_()
    y = torch.nn.functional.softmax(x, -1, dtype=torch.float32)
    y[0, 0].backward()
    wide = half.float().requires_grad_()
    torch.nn.functional.softmax(wide, -1)[0, 0].backward()
    softmax = [y.dtype == torch.float32, x.grad.dtype == torch.half, torch.equal(x.grad.cpu(), wide.grad.half())]
    return [*cells, *sparse, *softmax]


def memory() -> list[object]:
    """What does not fit raises torch.OutOfMemoryError, and the process goes on."""
    from tests.gpu.simulated.runtime import limited_memory

    kept = torch.ones(256, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with limited_memory(4096):
        try:
            torch.randn(4096, device="cuda")
        except torch.OutOfMemoryError as error:
            words = str(error)
        fits = torch.ones(1024, device="cuda")
    peak = torch.cuda.max_memory_allocated() - before
    del fits
    return [
        words,
        peak,
        torch.cuda.memory_allocated() - before,
        (kept + 1).sum().item(),
        "Allocated memory" in torch.cuda.memory_summary(),
    ]


def random_states() -> dict[str, object]:
    """The card has random numbers of its own, with a state of 16 bytes that another process takes."""
    torch.manual_seed(3)
    host = torch.get_rng_state()
    first = torch.rand(4, device="cuda").tolist()
    state = torch.cuda.get_rng_state()
    dropped = torch.nn.functional.dropout(torch.ones(100, device="cuda"))
    untouched = torch.equal(host, torch.get_rng_state())
    torch.cuda.set_rng_state(state)
    again = torch.equal(dropped, torch.nn.functional.dropout(torch.ones(100, device="cuda")))
    with torch.random.fork_rng(devices=[0]):
        inside = torch.cuda.get_rng_state()
        torch.rand(4, device="cuda")
    forked = torch.equal(inside, torch.cuda.get_rng_state())
    torch.manual_seed(3)
    seeded = torch.rand(4, device="cuda").tolist() == first
    own = torch.Generator("cuda").manual_seed(3)
    alone = torch.rand(4, device="cuda", generator=own).tolist() == first
    return {
        "bytes": state.numel(),
        "first": first,
        "state": state.tolist(),
        "true": [untouched, again, forked, seeded, alone],
    }


def copies(folder: str) -> list[bool]:
    """Tensors on the card are copied, pickled, saved and loaded as torch's own code does."""
    import copy
    import pickle

    x = torch.arange(6.0, device="cuda").view(2, 3)
    torch.save({"x": x, "t": x.t()}, f"{folder}/saved.pt")
    here, there = torch.load(f"{folder}/saved.pt"), torch.load(f"{folder}/saved.pt", map_location="cpu")
    torch.save(torch.arange(6.0), f"{folder}/host.pt")
    pinned = torch.ones(3).pin_memory()
    shared = copy.deepcopy([x, x[0]])
    return [
        here["x"].is_cuda and torch.equal(here["t"], x.t()),
        there["x"].device.type == "cpu" and torch.equal(there["t"], x.t().cpu()),
        here["x"].untyped_storage().data_ptr() == here["t"].untyped_storage().data_ptr(),
        torch.load(f"{folder}/host.pt", map_location="cuda").is_cuda,
        torch.equal(pickle.loads(pickle.dumps(x)), x),
        shared[0].is_cuda and shared[1].data_ptr() == shared[0].data_ptr(),
        pinned.is_pinned() and not x.is_pinned() and pinned.cuda(non_blocking=True).is_cuda,
        x.cpu().tolist() == x.tolist() == [[0, 1, 2], [3, 4, 5]],
    ]


def streams_and_events() -> list[bool]:
    began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    stream = torch.cuda.Stream()
    began.record()
    with torch.cuda.stream(stream):
        inside = torch.cuda.current_stream() == stream
    stream.wait_stream(torch.cuda.current_stream())
    ended.record()
    ended.synchronize()
    try:
        torch.cuda.Event().elapsed_time(ended)
        refused = False
    except ValueError:
        refused = True
    return [inside, torch.cuda.current_stream() != stream, began.elapsed_time(ended) >= 0, stream.query(), refused]


def forked_child() -> str:
    """A child of a process that used the card may not use it: torch's own words, from torch's own code."""
    import os

    torch.ones(1, device="cuda")
    read, write = os.pipe()
    if os.fork() == 0:
        try:
            torch.ones(1, device="cuda")
        except RuntimeError as error:
            os.write(write, str(error).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as words:
        return words.read()


def compiled() -> list[str]:
    """torch.compile works where it compiles nothing; Inductor finds no driver, and torch says so."""
    layer = torch.nn.Linear(2, 2).cuda()
    x = torch.ones(1, 2, device="cuda")
    same = torch.equal(torch.compile(layer, backend="aot_eager")(x), layer(x))
    try:
        torch.compile(layer)(x)
    except RuntimeError as error:
        return [str(same), type(error).__mro__[1].__name__]
    return [str(same), "nothing was refused"]


def several(folder: str) -> dict[str, object]:
    """Everything above in one process, since a process takes seconds to import torch."""
    return {
        "half": half_numerics(), "lacks": what_the_cpu_lacks(), "memory": memory(), "copies": copies(folder),
        "streams": streams_and_events(), "child": forked_child(), "random": random_states(),
    }  # fmt: skip


@pytest.fixture(scope="module")
def found(simulated_gpu, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    return simulated_gpu("T4", several, str(tmp_path_factory.mktemp("saved")))


def test_half_products_and_norms_round_once(found) -> None:
    assert all(found["half"])


def test_kernels_that_the_cpu_lacks_agree_with_its_own_ways(found) -> None:
    assert all(found["lacks"])


def test_out_of_memory_is_raised_and_the_process_goes_on(found) -> None:
    words, peak, left, total, summary = found["memory"]
    assert words.startswith("CUDA out of memory. Tried to allocate")
    assert (peak, left, total, summary) == (4096, 0, 512.0, True)


def test_copies_keep_devices_and_sharing(found) -> None:
    assert all(found["copies"])


def test_streams_and_events_are_torchs(found) -> None:
    assert all(found["streams"])


def test_a_forked_child_is_refused_in_torchs_words(found) -> None:
    assert "Cannot re-initialize CUDA in forked subprocess" in found["child"]


def continued(state: list[int]) -> list[float]:
    torch.cuda.set_rng_state(torch.tensor(state, dtype=torch.uint8))
    return [torch.cuda.initial_seed(), *torch.nn.functional.dropout(torch.ones(8, device="cuda")).tolist()]


def test_random_states_are_the_cards_own_and_another_process_takes_them(found, simulated_gpu) -> None:
    drawn = found["random"]
    assert drawn["bytes"] == 16
    assert all(drawn["true"])
    torch.manual_seed(3)
    assert drawn["first"] != torch.rand(4).tolist()
    assert simulated_gpu("T4", continued, drawn["state"]) == simulated_gpu("H100", continued, drawn["state"])


@pytest.mark.slow
def test_inductor_is_refused_and_other_backends_work(simulated_gpu) -> None:
    assert simulated_gpu("T4", compiled) == ["True", "BackendCompilerFailed"]


# ---- counting


def counts() -> dict[str, list[str]]:
    """What each line costs: the operations it dispatches, whether it waits, whether it copies from the host."""
    from tests.gpu.simulated.counting import counted

    x = torch.tensor([1.0, -2.0, 3.0], device="cuda")
    mask = x > 0
    lines = {
        "x + 1": lambda: x + 1,
        "x.view(3, 1).t()": lambda: x.view(3, 1).t(),
        "torch.empty": lambda: torch.empty(3, device="cuda"),
        "x.sum().item()": lambda: x.sum().item(),
        "x.tolist()": lambda: x.tolist(),
        "x.cpu()": lambda: x.cpu(),
        "bool(mask.any())": lambda: bool(mask.any()),
        "torch.equal": lambda: torch.equal(x, x),
        "torch.where(mask)": lambda: torch.where(mask),
        "x[mask]": lambda: x[mask],
        "x[mask] = 0": lambda: x.clone().__setitem__(mask, 0),
        "x[mask] = tensor": lambda: x.clone().__setitem__(mask, x[:2]),
        "torch.tensor([1.0])": lambda: torch.tensor([1.0], device="cuda"),
        "torch.ones(3).cuda()": lambda: torch.ones(3).cuda(),
        "x * torch.tensor(2.0)": lambda: x * torch.tensor(2.0),
        "torch.cuda.synchronize()": torch.cuda.synchronize,
        "torch.ones(3).sum().item()": lambda: torch.ones(3).sum().item(),
    }
    found = {}
    for line, run in lines.items():
        with counted() as counts:
            run()
        found[line] = [sum(counts.operations.values()), len(counts.waits), len(counts.copies)]
    with counted() as counts:
        x.sum().item()
    found["place"] = counts.waits
    return found


def test_operations_waits_and_copies_are_counted_by_hand(simulated_gpu) -> None:
    found = simulated_gpu("T4", counts)
    (place,) = found.pop("place")
    operation, _, where = place.partition(" @ ")
    assert operation == "aten::_local_scalar_dense"
    assert "tests/gpu/test_simulated.py:" in where
    assert found == {  # operations, waits, copies
        "x + 1": [1, 0, 0],
        "x.view(3, 1).t()": [0, 0, 0],
        "torch.empty": [0, 0, 0],
        "x.sum().item()": [2, 1, 0],
        "x.tolist()": [1, 1, 0],
        "x.cpu()": [1, 1, 0],
        "bool(mask.any())": [2, 1, 0],
        "torch.equal": [1, 1, 0],
        "torch.where(mask)": [1, 1, 0],
        "x[mask]": [1, 1, 0],
        "x[mask] = 0": [2, 0, 0],
        "x[mask] = tensor": [2, 1, 0],
        "torch.tensor([1.0])": [0, 0, 1],
        "torch.ones(3).cuda()": [1, 0, 1],
        "x * torch.tensor(2.0)": [1, 0, 0],
        "torch.cuda.synchronize()": [0, 1, 0],
        "torch.ones(3).sum().item()": [0, 0, 0],
    }


# ---- the lab's data folder, and commands


def into_the_data_folder(elsewhere: str) -> dict[str, object]:
    """What `labkit race`, `labkit gpu` and a record say when they are to write where everything was measured."""
    import io
    from contextlib import redirect_stderr
    from dataclasses import replace
    from pathlib import Path

    from labkit.amp import RECIPES
    from labkit.cli import main
    from labkit.records import data_folder
    from labkit.train import TASKS, train

    said = {}
    for command in (["race", "digits", "--recipes", "FP32", "--seeds", "0"], ["gpu", "--quick"]):
        with redirect_stderr(io.StringIO()) as words:
            said[command[0]] = [main(command), words.getvalue()]
    record = train(replace(TASKS["digits"], steps=1), RECIPES["FP32"], 0, device="cuda")
    try:
        record.save(data_folder() / "runs" / "simulated.json")
    except ValueError as error:
        said["save"] = str(error)
    return said | {"device": record.device, "saved": record.save(Path(elsewhere) / "simulated.json").exists()}


def test_nothing_simulated_is_written_into_the_labs_data(simulated_gpu, tmp_path) -> None:
    before = sorted((ROOT / "data").rglob("*"))
    said = simulated_gpu("T4", into_the_data_folder, str(tmp_path))
    assert sorted((ROOT / "data").rglob("*")) == before
    for status, words in (said["race"], said["gpu"]):
        assert status == 2
        assert "expected a real device for records in" in words
        assert "--folder" in words
    assert "Tesla T4 (simulated)" in said["save"]
    assert said["device"] == "Tesla T4 (simulated)"
    assert said["saved"]


KERNEL = """
from jupyter_client.manager import start_new_kernel
manager, client = start_new_kernel(kernel_name="python3")
client.execute_interactive("import torch; print(torch.cuda.is_available(), torch.cuda.get_device_name())", timeout=60)
client.stop_channels()
manager.shutdown_kernel(now=True)
"""


def test_a_jupyter_kernel_below_the_launcher_has_the_card(simulated_gpu) -> None:
    command = [sys.executable, "-m", "tests.gpu.simulated", "A100", "--", "python", "-c", KERNEL]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "True NVIDIA A100-SXM4-40GB (simulated)"), done.stderr


def test_the_launcher_returns_the_commands_status_and_leaves_other_programs_alone(simulated_gpu) -> None:
    command = [
        sys.executable,
        "-m",
        "tests.gpu.simulated",
        "T4",
        "--",
        "sh",
        "-c",
        "echo $LABKIT_SIMULATED_GPU; exit 3",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (3, "T4\n")


def test_the_machines_own_sitecustomize_runs_and_torch_is_not_imported(simulated_gpu, tmp_path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.machine = 'its own'")
    code = "import sys; print(machine, 'torch' in sys.modules, 'simulated_cuda' in sys.modules)"
    environment = simulated.environment("T4", {**os.environ, "PYTHONPATH": str(tmp_path)})
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("its own False False\n", "")
