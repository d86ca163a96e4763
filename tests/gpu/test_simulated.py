"""The simulated card of tests/gpu/simulated: what it is, what it refuses, what it counts."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from tests.gpu import simulated
from tests.gpu.simulated import ROOT, Outcomes


def worked_example() -> list[object]:
    """A tensor on the card: it says so, computes as the CPU does, and its memory is counted."""
    x = torch.tensor([1.0, 2.0, 3.0], device="cuda")
    before = torch.cuda.memory_allocated()
    y = (x * 2 + 1).cpu()
    return [str(x.device), y.tolist(), torch.cuda.get_device_name(), before, torch.cuda.memory_allocated()]


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
    with pytest.raises(ValueError, match="enable_timing"):
        torch.cuda.Event().elapsed_time(ended)
    return [inside, torch.cuda.current_stream() != stream, began.elapsed_time(ended) >= 0, stream.query()]


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


# ---- counting


def counts() -> dict[str, Any]:
    """Return what differs of what each line costs: operations, whether it waits, whether it copies from the host."""
    from tests.gpu.simulated.counting import counted

    x = torch.tensor([1.0, -2.0, 3.0], device="cuda")
    mask = x > 0
    lines = {
        "x + 1": (lambda: x + 1, (1, 0, 0)),
        "x.view(3, 1).t()": (lambda: x.view(3, 1).t(), (0, 0, 0)),
        "torch.empty": (lambda: torch.empty(3, device="cuda"), (0, 0, 0)),
        "x.sum().item()": (lambda: x.sum().item(), (2, 1, 0)),
        "x.tolist()": (lambda: x.tolist(), (1, 1, 0)),
        "x.cpu()": (lambda: x.cpu(), (1, 1, 0)),
        "bool(mask.any())": (lambda: bool(mask.any()), (2, 1, 0)),
        "torch.equal": (lambda: torch.equal(x, x), (1, 1, 0)),
        "torch.where(mask)": (lambda: torch.where(mask), (1, 1, 0)),
        "x[mask]": (lambda: x[mask], (1, 1, 0)),
        "x[mask] = 0": (lambda: x.clone().__setitem__(mask, 0), (2, 0, 0)),
        "x[mask] = tensor": (lambda: x.clone().__setitem__(mask, x[:2]), (2, 1, 0)),
        "torch.tensor([1.0])": (lambda: torch.tensor([1.0], device="cuda"), (0, 0, 1)),
        "torch.ones(3).cuda()": (lambda: torch.ones(3).cuda(), (1, 0, 1)),
        "x * torch.tensor(2.0)": (lambda: x * torch.tensor(2.0), (1, 0, 0)),
        "torch.cuda.synchronize()": (torch.cuda.synchronize, (0, 1, 0)),
        "torch.ones(3).sum().item()": (lambda: torch.ones(3).sum().item(), (0, 0, 0)),
    }
    different = {}
    for line, (run, expected) in lines.items():
        with counted() as counts:
            run()
        cost = counts.operations.total(), len(counts.waits), len(counts.copies)
        if cost != expected:
            different[line] = cost
    with counted() as counts:
        x.sum().item()
    return {"different": different, "place": counts.waits}


def fails() -> None:
    raise ZeroDivisionError


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

    before, said = sorted((ROOT / "data").rglob("*")), {}
    for command in (["race", "digits", "--recipes", "FP32", "--seeds", "0"], ["gpu", "--quick"]):
        with redirect_stderr(io.StringIO()) as words:
            said[command[0]] = [main(command), words.getvalue()]
    record = train(replace(TASKS["digits"], steps=1), RECIPES["FP32"], 0, device="cuda")
    try:
        record.save(data_folder() / "runs" / "simulated.json")
    except ValueError as error:
        said["save"] = str(error)
    said |= {"device": record.device, "saved": record.save(Path(elsewhere) / "simulated.json").exists()}
    return said | {"unchanged": sorted((ROOT / "data").rglob("*")) == before}


# ---- what they found, in one process but for the last


@pytest.fixture(scope="module")
def found(simulated_gpu, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    folder = str(tmp_path_factory.mktemp("saved"))
    alone = [
        worked_example,
        half_numerics,
        what_the_cpu_lacks,
        memory,
        random_states,
        streams_and_events,
        counts,
        fails,
    ]
    return simulated_gpu("T4", [*alone, (copies, folder), (into_the_data_folder, folder), forked_child])


def test_a_tensor_says_cuda_and_computes_as_the_cpu_does(found: Outcomes) -> None:
    assert found[worked_example] == ["cuda:0", [3.0, 5.0, 7.0], "Tesla T4 (simulated)", 512, 512]
    assert all(found[half_numerics]), "half products and norms round once"
    assert all(found[what_the_cpu_lacks]), "kernels that the CPU lacks agree with its own ways"
    assert all(found[copies]), "copies keep devices and sharing"
    assert all(found[streams_and_events])


def test_out_of_memory_is_raised_and_the_process_goes_on(found: Outcomes) -> None:
    words, peak, left, total, summary = found[memory]
    assert words.startswith("CUDA out of memory. Tried to allocate")
    assert (peak, left, total, summary) == (4096, 0, 512.0, True)


def test_a_forked_child_is_refused_in_torchs_words(found: Outcomes) -> None:
    assert "Cannot re-initialize CUDA in forked subprocess" in found[forked_child]


def test_random_states_are_the_cards_own(found: Outcomes) -> None:
    drawn = found[random_states]
    assert drawn["bytes"] == 16
    assert all(drawn["true"])
    torch.manual_seed(3)
    assert drawn["first"] != torch.rand(4).tolist()


def test_operations_waits_and_copies_are_counted_by_hand(found: Outcomes) -> None:
    assert found[counts]["different"] == {}
    (place,) = found[counts]["place"]
    operation, _, where = place.partition(" @ ")
    assert operation == "aten::_local_scalar_dense"
    assert "tests/gpu/test_simulated.py:" in where


def test_a_failure_in_the_process_brings_its_traceback(found: Outcomes) -> None:
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        found[fails]


def test_nothing_simulated_is_written_into_the_labs_data(found: Outcomes) -> None:
    said = found[into_the_data_folder]
    assert said["unchanged"]
    for status, words in (said["race"], said["gpu"]):
        assert status == 2
        assert "expected a real device for records in" in words
        assert "--folder" in words
    assert "Tesla T4 (simulated)" in said["save"]
    assert said["device"] == "Tesla T4 (simulated)"
    assert said["saved"]


@pytest.mark.slow
def test_inductor_is_refused_and_other_backends_work(simulated_gpu: Any) -> None:
    assert simulated_gpu("T4", compiled) == ["True", "BackendCompilerFailed"]


# ---- the process, and commands


def launcher(*words: str) -> Any:
    return subprocess.run(
        [sys.executable, "-m", "tests.gpu.simulated", *words], cwd=ROOT, capture_output=True, text=True
    )


def test_the_launcher_lists_the_cards_when_it_is_called_wrongly() -> None:
    for words in ((), ("P100", "--", "true"), ("T4", "--")):
        done = launcher(*words)
        assert done.returncode == 2
        assert "expected a card, one of T4, V100, A100, H100, and a command" in done.stderr


KERNEL = """
from jupyter_client.manager import start_new_kernel
manager, client = start_new_kernel(kernel_name="python3")
client.execute_interactive("import torch; print(torch.cuda.is_available(), torch.cuda.get_device_name())", timeout=60)
client.stop_channels()
manager.shutdown_kernel(now=True)
"""


def test_a_jupyter_kernel_below_the_launcher_has_the_card(simulated_gpu: Any) -> None:
    done = launcher("A100", "--", "python", "-c", KERNEL)
    assert (done.returncode, done.stdout.strip()) == (0, "True NVIDIA A100-SXM4-40GB (simulated)"), done.stderr


def test_the_launcher_returns_the_commands_status_and_leaves_other_programs_alone(simulated_gpu: Any) -> None:
    done = launcher("T4", "--", "sh", "-c", "echo $LABKIT_SIMULATED_GPU; exit 3")
    assert (done.returncode, done.stdout) == (3, "T4\n")


def test_the_machines_own_sitecustomize_runs_and_torch_is_not_imported(simulated_gpu, tmp_path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.machine = 'its own'")
    code = "import sys; print(machine, 'torch' in sys.modules, 'simulated_cuda' in sys.modules)"
    environment = simulated.environment("T4", {**os.environ, "PYTHONPATH": str(tmp_path)})
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("its own False False\n", "")
