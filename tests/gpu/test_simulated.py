"""The simulated card of tests/gpu/simulated: what it is, what it counts, and the commands below it."""

import io
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.gpu import simulated
from tests.gpu.simulated import ROOT, Outcomes

# ---- on the card


def a_tensor_says_cuda_and_computes_as_the_cpu_does() -> None:
    x = torch.tensor([1.0, 2.0, 3.0], device="cuda")
    assert str(x.device) == "cuda:0"
    assert (x * 2 + 1).cpu().tolist() == [3.0, 5.0, 7.0]
    assert torch.cuda.get_device_name() == "Tesla T4 (simulated)"
    assert torch.cuda.memory_allocated() == 512


def what_the_cpu_lacks() -> None:
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
    for make in (nn.LSTM, nn.GRU):
        assert close(gradients("cuda", make, data), gradients("cpu", make, data)), make

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

    for make, optimizer in product((nn.Embedding, nn.EmbeddingBag), (torch.optim.SGD, torch.optim.SparseAdam)):
        assert close([embedded("cuda", make, optimizer)], [embedded("cpu", make, optimizer)]), (make, optimizer)
    half = torch.randn(2, 5).half()
    x, wide = half.cuda().requires_grad_(), half.float().requires_grad_()
    y = F.softmax(x, -1, dtype=torch.float32)
    y[0, 0].backward()
    F.softmax(wide, -1)[0, 0].backward()
    assert (y.dtype, x.grad.dtype) == (torch.float32, torch.half)
    assert torch.equal(x.grad.cpu(), wide.grad.half())


def what_does_not_fit_raises_and_the_process_goes_on() -> None:
    from tests.gpu.simulated.runtime import limited_memory

    kept = torch.ones(256, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with limited_memory(4096):
        with pytest.raises(torch.OutOfMemoryError, match=r"^CUDA out of memory. Tried to allocate"):
            torch.randn(4096, device="cuda")
        fits = torch.ones(1024, device="cuda")
    assert torch.cuda.max_memory_allocated() - before == 4096
    del fits
    assert torch.cuda.memory_allocated() == before
    assert (kept + 1).sum().item() == 512
    assert "Allocated memory" in torch.cuda.memory_summary()


def random_numbers_are_the_cards_own_with_a_state_of_16_bytes() -> None:
    torch.manual_seed(3)
    host, first = torch.get_rng_state(), torch.rand(4, device="cuda").tolist()
    state = torch.cuda.get_rng_state()
    assert state.numel() == 16
    dropped = F.dropout(torch.ones(100, device="cuda"))
    assert torch.equal(host, torch.get_rng_state())
    torch.cuda.set_rng_state(state)
    assert torch.equal(dropped, F.dropout(torch.ones(100, device="cuda")))
    before = torch.cuda.get_rng_state()
    with torch.random.fork_rng(devices=[0]):
        torch.rand(4, device="cuda")
    assert torch.equal(before, torch.cuda.get_rng_state())
    torch.manual_seed(3)
    assert torch.rand(4, device="cuda").tolist() == first
    assert torch.rand(4, device="cuda", generator=torch.Generator("cuda").manual_seed(3)).tolist() == first
    assert torch.rand(4).tolist() != first


def a_forked_child_is_refused_in_torchs_words() -> None:
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
        assert "Cannot re-initialize CUDA in forked subprocess" in words.read()


def inductor_is_refused_and_other_backends_work() -> None:
    layer, x = nn.Linear(2, 2).cuda(), torch.ones(1, 2, device="cuda")
    assert torch.equal(torch.compile(layer, backend="aot_eager")(x), layer(x))
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed):
        torch.compile(layer)(x)


def operations_waits_and_copies_are_counted() -> None:
    """Each line costs what was counted by hand: operations, waits, copies from the host."""
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
    for line, (run, expected) in lines.items():
        with counted() as counts:
            run()
        cost = counts.operations.total(), counts.waits.total(), counts.copies.total()
        assert cost == expected, f"{line}: {cost}"
    with counted() as counts:
        x.sum().item()
    (place,) = counts.waits
    operation, _, where = place.partition(" at ")
    assert operation == "aten::_local_scalar_dense"
    assert "tests/gpu/test_simulated.py:" in where


def nothing_simulated_is_written_into_the_labs_data() -> None:
    """`labkit compare`, `labkit gpu` and a record refuse to write where everything was measured."""
    from labkit.amp import RECIPES
    from labkit.cli import main
    from labkit.records import data_folder
    from labkit.train import TASKS, train

    before = sorted((ROOT / "data").rglob("*"))
    for command in (["compare", "digits", "--recipes", "FP32", "--seeds", "0"], ["gpu", "--quick"]):
        with redirect_stderr(io.StringIO()) as words:
            assert main(command) == 2
        assert "expected a real device for records in" in words.getvalue()
        assert "--folder" in words.getvalue()
    record = train(replace(TASKS["digits"], steps=1), RECIPES["FP32"], 0, device="cuda")
    assert record.device == "Tesla T4 (simulated)"
    with pytest.raises(ValueError, match=r"Tesla T4 \(simulated\)"):
        record.save(data_folder() / "runs" / "simulated.json")
    with tempfile.TemporaryDirectory() as elsewhere:
        assert record.save(Path(elsewhere) / "simulated.json").exists()
    assert sorted((ROOT / "data").rglob("*")) == before


def fails() -> None:
    raise ZeroDivisionError


ON_CARD = (
    a_tensor_says_cuda_and_computes_as_the_cpu_does, what_the_cpu_lacks,
    what_does_not_fit_raises_and_the_process_goes_on,
    random_numbers_are_the_cards_own_with_a_state_of_16_bytes, operations_waits_and_copies_are_counted,
    nothing_simulated_is_written_into_the_labs_data, a_forked_child_is_refused_in_torchs_words,
)  # fmt: skip


@pytest.fixture(scope="module")
def found(simulated_gpu: Any) -> Outcomes:
    return simulated_gpu("T4", [*ON_CARD, fails])


@pytest.mark.parametrize("function", ON_CARD)
def test_on_the_card(found: Outcomes, function: Callable[[], None]) -> None:
    assert found[function] is None


def test_a_failure_in_the_process_brings_its_traceback(found: Outcomes) -> None:
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        found[fails]


@pytest.mark.slow
def test_torch_compile(simulated_gpu: Any) -> None:
    assert simulated_gpu("T4", inductor_is_refused_and_other_backends_work) is None


# ---- the process, and commands


def launcher(*words: str) -> Any:
    return subprocess.run(
        [sys.executable, "-m", "tests.gpu.simulated", *words], cwd=ROOT, capture_output=True, text=True
    )


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
