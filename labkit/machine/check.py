"""Check of the machine: Python, packages, device, memory, widgets, data and disk.

Idea: a check is a function from measurements to a Finding, so that a test can reach every answer,
the rare ones too; `check_machine` measures, and lists the findings.

Invariant: `check_machine` always returns a report. A check that fails is a finding, never a
traceback.
"""

from __future__ import annotations

import importlib.metadata
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.findings import CheckReport, Finding, Status, ratio_text
from labkit.machine import resources
from labkit.machine.front_end import extension_folders, front_end, host, server_prefix
from labkit.machine.published import Published, card_named, published
from labkit.records import data_folder

if TYPE_CHECKING:
    from labkit.machine.device import DeviceReport

GIB = 2**30
# JupyterLab and one kernel with torch hold about 0.7 GiB.
MEMORY_NEEDED = 1 * GIB
# Enough for a second kernel, or a browser on the same machine.
MEMORY_COMFORT = 2 * GIB
# The distribution that pip installs; `labkit` on the package index is another project.
DISTRIBUTION = "fp16-lab"
# Notebooks, records and figures of the whole course take some tens of MiB.
DISK_COMFORT = GIB // 4
# The largest number of timed passes of a tiny training step.
MOST_PASSES = 1000


def check_machine(folder: Path | str = ".") -> CheckReport:
    """Check this Python, its packages, each of which is imported, and this machine.

    It takes a few seconds.

    Args:
        folder: where notebooks will be saved.

    >>> [finding.name for finding in check_machine().findings][:2]
    ['Python', 'labkit']
    """
    checks: list[tuple[str, Callable[[], Iterable[Finding]]]] = [
        ("Python", lambda: [python(sys.version_info[:3], sys.executable)]),
        ("packages", lambda: packages(requirements(), installed_version, import_problems)),
        (
            "labkit",
            lambda: other_labkit(importlib.metadata.packages_distributions().get("labkit", [])),
        ),
        ("device", lambda: [device()]),
        ("good for", lambda: [good_for(*device_facts())]),
        ("formats", lambda: published_speeds(device_facts()[0])),
        ("threads", lambda: [threads()]),
        ("memory", lambda: [memory(resources.available_memory(), resources.container_memory())]),
        (
            "widgets",
            lambda: [front_end(extension_folders(), server_prefix(), host(os.environ))],
        ),
        ("data", lambda: [data()]),
        ("disk", lambda: [disk(Path(folder))]),
    ]
    findings: list[Finding] = []
    for name, check in checks:
        try:
            # a list first: a check that fails half-way has one finding
            results = list(check())
        except Exception as error:
            what = f"could not be checked: {type(error).__name__}: {error}"
            remedy = "run `make setup`; if that does not help, show this line to your teacher"
            results = [Finding(name, Status.BAD, what, remedy)]
        findings.extend(results)
    return CheckReport(tuple(findings))


def python(version: tuple[int, ...], executable: str) -> Finding:
    """Judge the version of the running Python.

    >>> python((3, 10, 4), "/usr/bin/python3").status
    <Status.BAD: 'bad'>
    """
    what = f"{'.'.join(map(str, version))} ({executable})"
    if version[:2] < (3, 11):
        return Finding(
            "Python", Status.BAD, what, "install Python 3.11, 3.12 or 3.13, then `make clean lab`"
        )
    if version[:2] > (3, 13):
        return Finding(
            "Python", Status.WARN, what, "the lab is tested with 3.11 to 3.13; use one of those"
        )
    return Finding("Python", Status.OK, what)


def packages(
    needed: dict[str, str] | None,
    installed: Callable[[str], str | None],
    problems: Callable[[Sequence[str]], dict[str, str]] = lambda names: {},
) -> Iterable[Finding]:
    """Judge labkit and each package it needs.

    Args:
        needed: package -> lowest sufficient version; None if labkit itself is not installed.
        installed: returns the version of a package, or None if it is not installed.
        problems: (packages) -> package -> what stopped its import.

    >>> installed = {"fp16-lab": "0.1", "numpy": "1.26.4"}
    >>> [str(f.status) for f in packages({"numpy": "2"}, installed.get)]
    ['ok', 'bad']
    """
    if needed is None:
        remedy = (
            "in the checkout: `make setup`, or `pip install -e .` in an environment that has torch "
            "already"
        )
        yield Finding("labkit", Status.BAD, "is not installed in this Python", remedy)
        return
    yield Finding("labkit", Status.OK, installed(DISTRIBUTION) or "")
    broken = problems([name for name in needed if installed(name) is not None])
    for name, lowest in needed.items():
        version = installed(name)
        if version is None:
            yield Finding(
                name,
                Status.BAD,
                "is not installed",
                "`make setup`, or `pip install -e .` in the checkout",
            )
        elif _numbers(version) < _numbers(lowest):
            yield Finding(
                name, Status.BAD, f"{version} is too old", f"`pip install -U '{name}>={lowest}'`"
            )
        elif broken.get(name):
            what = f"{version} cannot be imported: {broken[name]}"
            remedy = f"`pip install --force-reinstall {name}`"
            yield Finding(name, Status.BAD, what, remedy)
        else:
            yield Finding(name, Status.OK, version)


def other_labkit(owners: Iterable[str]) -> Iterable[Finding]:
    """Warn of every distribution but this lab's own that contains a package `labkit`.

    Args:
        owners: the distributions that hold a package of this name.

    >>> [finding.what for finding in other_labkit(["fp16-lab", "labkit"])]
    ['the distribution labkit brings another package of this name, and Python may import either']
    """
    for owner in sorted(set(owners) - {DISTRIBUTION}):
        what = (
            f"the distribution {owner} brings another package of this name, and Python may import "
            "either"
        )
        remedy = (
            f"`pip uninstall {owner}`, then install the lab again, with --force-reinstall --no-deps"
        )
        yield Finding("labkit", Status.WARN, what, f"{remedy}; in a checkout, `make clean lab`")


def import_problems(names: Sequence[str]) -> dict[str, str]:
    """Import each package that is not imported yet, in a process of its own.

    Returns:
        Package -> what stopped its import, for each package that failed.

    >>> import_problems(["numpy", "no-such-package"])
    {'no-such-package': "ModuleNotFoundError: No module named 'no_such_package'"}
    """
    modules = {name: name.replace("-", "_") for name in names}
    modules = {name: module for name, module in modules.items() if module not in sys.modules}
    with ThreadPoolExecutor(max(1, resources.usable_cores())) as pool:
        found = pool.map(import_error, modules.values())
    return {name: problem for name, problem in zip(modules, found, strict=True) if problem}


def import_error(module: str, seconds: float = 120.0) -> str:
    """Import a module in a new process; return its error in one line, or ""."""
    command = [sys.executable, "-c", f"import {module}"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return f"the import took longer than {seconds:.0f} s"
    if done.returncode == 0:
        return ""
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"Python exited with status {done.returncode} and no message"


def requirements() -> dict[str, str] | None:
    """Return the requirements in labkit's metadata: package -> lowest version."""
    try:
        lines = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    lowest = {}
    for line in lines:
        # "torch<3,>=2.10"; a requirement of an extra has a semicolon, and is left out
        match = re.match(r"([\w.-]+)[^;]*>=\s*([\d.]+)[^;]*$", line)
        if match:
            lowest[match[1]] = match[2]
    return lowest


def installed_version(name: str) -> str | None:
    """Return a package's version, or None where it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version without zeros at the end: 2.13.0+cpu -> (2, 13)."""
    match = re.match(r"\d+(\.\d+)*", version)
    if match is None:
        return ()
    numbers = [int(part) for part in match[0].split(".")]
    # 2.10 and 2.10.0 are one version
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def device() -> Finding:
    """Report the device that training uses, and any GPU that torch cannot use."""
    import torch

    from labkit.machine.device import device_report, usable_gpus

    report = device_report()
    if report.kind == "cuda" and not usable_gpus():
        what = (
            f"{report.name} is here, but torch {torch.__version__} has no programs for it; the lab "
            "trains on the CPU"
        )
        return Finding(
            "device",
            Status.WARN,
            what,
            "install a torch that has them: https://pytorch.org/get-started",
        )
    if report.kind == "cpu" and shutil.which("nvidia-smi"):
        why = "torch cannot reach the driver"
        if torch.version.cuda is None:
            why = "this torch was built without CUDA"
        remedy = (
            "to use the GPU, repair its driver or install a CUDA build of torch into this "
            "environment"
        )
        return Finding("device", Status.WARN, f"CPU; an NVIDIA driver is here, but {why}", remedy)
    return Finding("device", Status.OK, f"{report.facts}. {report.meaning}")


def device_facts() -> tuple[DeviceReport, bool]:
    """Return what the device reports, and whether torch reaches an Apple GPU."""
    import torch

    from labkit.machine.device import device_report

    return device_report(), torch.backends.mps.is_available()


def good_for(report: DeviceReport, mps: bool = False) -> Finding:
    """Return what the lessons can show on this machine, from its hardware for 16-bit products.

    Nothing is timed.

    Source: torch.cuda.is_bf16_supported(including_emulation=False), which asks for compute
        capability 8.0.

    >>> from labkit.machine.device import DeviceReport
    >>> good_for(DeviceReport("cpu", "Some CPU", 0, 2)).what
    'every lesson; how fast a GPU is, is shown from records and from what others published'
    """
    what = "every lesson; FP16 saves memory here, and gains little speed"
    if report.kind == "cpu" and mps:
        what = (
            "every lesson, on the CPU. On the Apple GPU beside it torch has autocast and a "
            "GradScaler, but no FP64, and its fused optimizers ignored found_inf until mid-2026: "
            "the lab does not train there"
        )
    elif report.kind == "cpu":
        what = (
            "every lesson; how fast a GPU is, is shown from records and from what others published"
        )
    elif report.tensor_cores and "BF16" not in report.tensor_cores:
        what = (
            "every lesson, live; FP16 is this card's only fast 16-bit format, which makes loss "
            "scaling a must. It emulates BF16: is_bf16_supported() says True, "
            "is_bf16_supported(including_emulation=False) says False"
        )
    elif report.tensor_cores:
        what = f"every lesson, live, with {', '.join(report.tensor_cores)} on Tensor Cores"
    return Finding("good for", Status.OK, what)


def published_speeds(report: DeviceReport) -> list[Finding]:
    """Report how published measurements rank the 16-bit formats against FP32 on this card.

    Of several products in one format, the largest one counts.

    Returns:
        One finding, or [] for a card of which no product was published.

    >>> from labkit.machine.device import DeviceReport
    >>> card = DeviceReport("cuda", "NVIDIA GeForce RTX 2080 Ti", 11 * 2**30, 68, (7, 5))
    >>> print(published_speeds(card)[0].what.split("; ")[0])
    large products on a card of this name, as others published: FP16 4.5 times as fast as FP32
    """
    card = card_named(report.name)
    if card is None:
        return []
    largest: dict[str, Published] = {}
    for row in published("product", card):
        if row.format not in ("FP16", "BF16") or row.reference != "FP32" or row.ratio is None:
            continue
        if row.format not in largest or _size(row) > _size(largest[row.format]):
            largest[row.format] = row
    if not largest:
        return []
    speeds = [_speed(row.format, row.ratio or 1.0, report) for row in largest.values()]
    sources = dict.fromkeys(row.source for row in largest.values())
    what = "large products on a card of this name, as others published: "
    what += "; ".join(speeds)
    what += f". Source: {'; '.join(sources)}"
    return [Finding("formats", Status.OK, what)]


def _size(row: Published) -> float:
    """Return the side of a product; a row without sides is the best of several large ones."""
    return row.side or math.inf


# Published ratios from 10% below to 20% above 1 are called no difference: measurements of one card
# at other sizes and clocks differ by as much.
SLOWER = 0.9
FASTER = 1.2


def _speed(format: str, ratio: float, report: DeviceReport) -> str:
    """Describe a published ratio.

    BF16 is emulated on NVIDIA's cards before compute capability 8.0.
    """
    if ratio >= FASTER:
        return f"{format} {ratio:.2g} times as fast as FP32"
    if ratio > SLOWER:
        return f"{format} no faster than FP32"
    slower = f"{format} slower than FP32, which takes {ratio:.2g} of its time"
    if format == "BF16" and report.capability is not None and report.capability < (8, 0):
        return f"{slower}: this card emulates BF16"
    return slower


def threads() -> Finding:
    """Measure a tiny training step on one thread and on all that torch would use."""
    import torch

    several = torch.get_num_threads()
    seconds = {count: seconds_per_tiny_step(count) for count in sorted({1, several})}
    return judge_threads(resources.usable_cores(), seconds)


def seconds_per_tiny_step(threads: int, budget: float = 0.15) -> float:
    """Return the seconds of one forward and backward pass of a two-layer convolution.

    The input is 8 images of 48 x 48. The fastest of several passes counts, since other programs can
    only slow a pass down. torch's thread count and its state of random numbers are restored.

    Args:
        threads: torch's number of threads.
        budget: seconds for all passes; at least one is timed.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        # The first weights are random numbers of the CPU.
        with torch.random.fork_rng(devices=[]):
            model = torch.nn.Sequential(
                torch.nn.Conv2d(1, 16, 3), torch.nn.ReLU(), torch.nn.Conv2d(16, 16, 3)
            )
        images = torch.ones(8, 1, 48, 48)
        # the first pass also allocates and initialises, and is not timed
        model(images).mean().backward()
        passes: list[float] = []
        while not passes or (len(passes) < MOST_PASSES and sum(passes) < budget):
            start = time.perf_counter()
            model(images).mean().backward()
            passes.append(time.perf_counter() - start)
        return min(passes)
    finally:
        torch.set_num_threads(before)


def judge_threads(cores: int, seconds: dict[int, float]) -> Finding:
    """Judge torch's thread count.

    Args:
        cores: number of cores that this process may use.
        seconds: thread count -> seconds of a tiny step, for 1 and for torch's count.

    >>> judge_threads(2, {1: 0.010, 2: 0.180}).what
    '2 cores; a tiny step takes 10.0 ms on 1 thread, 180.0 ms on 2 (18 times as long)...'
    """
    several = max(seconds)
    what = f"{cores} cores; " if cores > 1 else "1 core; "
    what += f"a tiny step takes {seconds[1] * 1e3:.1f} ms on 1 thread"
    if several > 1:
        times = ratio_text(seconds[several] / seconds[1])
        what += f", {seconds[several] * 1e3:.1f} ms on {several} ({times} times as long)"
    what += ". Tiny training runs on one thread"
    if several > cores:
        remedy = (
            f"torch starts {several} threads; before Python starts, set OMP_NUM_THREADS={cores}"
        )
        return Finding("threads", Status.WARN, what, remedy)
    # Less than twice the speed is not worth the cores, which the browser and other kernels use.
    if several > 1 and seconds[several] < seconds[1] / 2:
        return Finding(
            "threads",
            Status.OK,
            what,
            f"more threads pay here: set LABKIT_THREADS={several} if you like",
        )
    return Finding("threads", Status.OK, what)


def memory(available: int | None, container: int | None = None) -> Finding:
    """Judge the memory for a new program.

    Args:
        available: bytes that it could use; None if unknown.
        container: memory limit of this container in bytes, or None without one.

    >>> memory(3 * 2**30).what
    '3.0 GiB available'
    """
    if available is None:
        return Finding(
            "memory", Status.WARN, "this system does not say how much", "have about 2 GiB free"
        )
    what = f"{available / GIB:.1f} GiB available"
    if container is not None:
        what += f", in a container that may use {container / GIB:.1f} GiB"
        if container < MEMORY_COMFORT:
            remedy = (
                "give the container 2 GiB or more (docker run --memory 4g, or the hub's memory "
                "limit)"
            )
            status = Status.WARN if available >= MEMORY_NEEDED else Status.BAD
            return Finding("memory", status, what, remedy)
    if available < MEMORY_NEEDED:
        return Finding(
            "memory",
            Status.BAD,
            what,
            "close other programs and idle kernels: the lab needs about 1 GiB",
        )
    if available < MEMORY_COMFORT:
        return Finding(
            "memory",
            Status.WARN,
            what,
            "enough for one notebook; shut its kernel down before the next",
        )
    return Finding("memory", Status.OK, what)


def data() -> Finding:
    """Judge whether the data files of the lab can be read."""
    import numpy as np

    try:
        with np.load(data_folder() / "digits.npz") as stored:
            count = len(stored["images"])
        for file in sorted(path for path in data_folder().rglob("*") if path.is_file()):
            with file.open("rb") as stream:
                stream.read(1)
    # numpy raises EOFError for an empty file; a truncated one is not a zip archive
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
        return Finding(
            "data",
            Status.BAD,
            str(error),
            "in the checkout: `git checkout -- data` brings the files back",
        )
    return Finding("data", Status.OK, f"{count:,} digits read from {data_folder()}")


def disk(folder: Path) -> Finding:
    """Judge whether notebooks can be saved in a folder."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"written by labkit check")
    except OSError as error:
        remedy = "copy the lab to a folder of your own and start JupyterLab there"
        return Finding(
            "disk", Status.BAD, f"{folder.resolve()} cannot be written: {error.strerror}", remedy
        )
    free = shutil.disk_usage(folder).free
    what = f"{folder.resolve()} can be written, {free / GIB:.1f} GiB free"
    if free < DISK_COMFORT:
        return Finding("disk", Status.WARN, what, "free some space, or notebooks may not be saved")
    return Finding("disk", Status.OK, what)
