"""Uses of the lab in a process, after which the process must be as before.

`python -m tests.untouched.scenarios` imports everything from outside first, then runs one scenario
after another, and prints a JSON object: the number of scenarios, and what each of them changed for
good.
"""

from __future__ import annotations

import copy
import json
import pkgutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import torch
from torch import nn
from torch._opaque_base import OpaqueBase

from tests.untouched.fingerprint import changes, fingerprint

# programs of their own, and adapters of libraries that are not installed here
NOT_IMPORTED = ("__main__", "labkit.classroom.hub_config", "labkit.grading.sandbox.server")
FACES = ("apex.amp", "torch_amp", "torch_cuda_amp", "oneflow", "fastai.basics")
LIST_IMPORTS = "import tests.untouched.scenarios as s; s.import_labkit(); s.print_foreign()"


def use_torch() -> None:
    """Use torch without the lab.

    At their first use torch wraps the step of each optimizer and loads modules; these changes are
    not the lab's.
    """
    import_module("torch._dynamo")
    for make in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
        model = _network()
        optimizer = make(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cpu")
        for _ in range(2):
            with torch.autocast("cpu", torch.float16):
                loss = model(torch.ones(8, 8)).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            copy.deepcopy((model, optimizer))
    # the first such question loads a class of torch's
    assert not isinstance(model, OpaqueBase.__subclasses__()[0])


def labkit_modules() -> Iterator[str]:
    """Yield the names of labkit's modules."""
    labkit = import_module("labkit")
    for module in pkgutil.walk_packages(labkit.__path__, "labkit."):
        if not module.name.endswith(NOT_IMPORTED):
            yield module.name


def import_labkit() -> None:
    """Import every module of labkit whose libraries are installed."""
    for name in labkit_modules():
        with suppress(ModuleNotFoundError):
            import_module(name)


def print_foreign() -> None:
    """Print the modules that are loaded and are not ours."""
    own = ("labkit", "tests", "__")
    print(json.dumps([name for name in sys.modules if not name.startswith(own)]))


def import_foreign() -> None:
    """Import whatever labkit would, in the same order, but not labkit."""
    listed = subprocess.run(
        [sys.executable, "-c", LIST_IMPORTS], capture_output=True, text=True, check=True
    )
    for name in json.loads(listed.stdout.splitlines()[-1]):
        with suppress(ImportError):
            import_module(name)


def region() -> None:
    """Open a region, with an error inside and in a generator that is never finished."""
    from labkit.amp import autocast
    from labkit.gemm import half_storage

    def unfinished() -> Iterator[torch.dtype]:
        with autocast():
            yield (torch.ones(2, 2) @ torch.ones(2, 2)).dtype

    with suppress(ValueError), autocast(), half_storage("cpu"):
        raise ValueError
    generator = unfinished()
    assert next(generator) is torch.float16
    generator.close()


def nested_in_two_threads() -> None:
    """Open a region in a thread, and close it after that of another thread."""
    from labkit.amp import autocast

    opened = threading.Event()
    closed = threading.Event()

    def second() -> None:
        with autocast(), autocast(enabled=False):
            opened.set()
            closed.wait()

    thread = threading.Thread(target=second)
    with autocast():
        thread.start()
        opened.wait()
    closed.set()
    thread.join()


def tf32() -> None:
    """Switch TF32 on, and off inside."""
    from labkit.gemm.precision import fp32_precision

    with fp32_precision("tf32"), fp32_precision("ieee"):
        torch.ones(2, 2) @ torch.ones(2, 2)


def _network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))


def _sgd(weights: object) -> torch.optim.Optimizer:
    return torch.optim.SGD(weights, lr=0.01)


def every_recipe() -> None:
    """Train three steps under each recipe."""
    from labkit.amp import RECIPES, Engine

    for recipe in RECIPES.values():
        engine = Engine(_network(), _sgd, recipe)
        for _ in range(3):
            engine.zero_grad()
            with engine.forward():
                loss = engine(torch.ones(8, 8)).square().mean()
            engine.backward(loss)
            engine.step()


def a_run() -> None:
    """Train a task of the lab."""
    from labkit.amp import RECIPES
    from labkit.train import TASKS, train

    train(next(iter(TASKS.values())), RECIPES["O2"], steps=3)


def watching() -> None:
    """Watch a training with torch's scaler."""
    from labkit.instrument import watch

    model = _network()
    optimizer = _sgd(model.parameters())
    scaler = torch.amp.GradScaler("cpu")
    with watch(model, every=1):
        for _ in range(3):
            with torch.autocast("cpu", torch.float16):
                loss = model(torch.ones(8, 8)).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def diagnosing() -> None:
    """Diagnose a function, and a script that catches every exception."""
    from labkit.clinic import diagnose
    from labkit.clinic.diagnose import diagnose_script

    model = _network()
    optimizer = _sgd(model.parameters())

    def step(batch: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

    diagnose(step, model, optimizer, batches=[torch.ones(2, 8)] * 3)
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "train.py")
        script.write_text(
            "import torch\n"
            "model = torch.nn.Linear(2, 1)\n"
            "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
            "for _ in range(9):\n"
            "    try:\n"
            "        model(torch.ones(1, 2)).sum().backward()\n"
            "        optimizer.step()\n"
            "    except BaseException:\n"
            "        pass\n",
            encoding="utf-8",
        )
        with torch.random.fork_rng(devices=[]):
            diagnose_script(script, [], steps=3)


def every_face() -> None:
    """Import each framework's face, and train with those of torch and apex."""
    for face in FACES:
        import_module(f"labkit.frameworks.{face}")
    from labkit.frameworks import GradScaler, autocast
    from labkit.frameworks.apex import amp

    model = _network()
    optimizer = _sgd(model.parameters())
    scaler = GradScaler("cpu")
    with autocast("cpu", torch.float16):
        loss = model(torch.ones(8, 8)).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    for level in ("O0", "O1", "O2", "O3"):
        model = _network()
        model, optimizer = amp.initialize(model, _sgd(model.parameters()), opt_level=level)
        with amp.scale_loss(model(torch.ones(8, 8)).float().square().mean(), optimizer) as scaled:
            scaled.backward()
        optimizer.step()


def grading() -> None:
    """Check an answer, and run one in the sandbox."""
    from labkit.grading import EXERCISES, check
    from labkit.grading.batch import request_of
    from labkit.grading.judge import grading_cases
    from labkit.grading.sandbox.runner import Runner
    from labkit.grading.sandbox.worker import Limits

    exercise = EXERCISES["start.smallest"]
    check(exercise.id, lambda exponent_bits, significand_bits: 2.0**-24)
    answer = "def smallest_positive(exponent_bits, significand_bits):\n    return 2.0**-24\n"
    with tempfile.TemporaryDirectory() as folder, Runner(Limits(), Path(folder)) as runner:
        runner.run([request_of(grading_cases(exercise, 5), [answer])])


SCENARIOS: tuple[Callable[[], None], ...] = (
    import_labkit,
    region,
    nested_in_two_threads,
    tf32,
    every_recipe,
    a_run,
    watching,
    diagnosing,
    every_face,
    grading,
)


def main() -> None:
    """Run each scenario, and print what it changed."""
    import_foreign()
    use_torch()
    fingerprint()
    changed: dict[str, list[str]] = {}
    for scenario in SCENARIOS:
        before = fingerprint()
        scenario()
        left = changes(before)
        if left:
            changed[scenario.__name__] = left
    print(json.dumps({"scenarios": len(SCENARIOS), "changed": changed}))


if __name__ == "__main__":
    main()
