"""Memory and time of a class on one machine: real kernels at once, each running all of lesson 06.

    .venv/bin/python -m tests.benchmarks.bench_classroom [--kernels 20] [--lesson 06_loss_scaling]

Printed are the seconds to a kernel's first picture and to its last cell, the memory of a kernel and
of all, and which failed (a cell whose failing is the lesson may). Aims, for 20: none fails, 400 MiB
each, 8 GB in all.
"""

import asyncio
import os
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from labkit.classroom.hub import ENVIRONMENT, STARTUP
from labkit.records import notebooks_folder
from tests.benchmarks.measuring import options

# A cell that takes longer hangs, however busy the machine is.
CELL_SECONDS = 1800


@dataclass
class Learner:
    """What was measured of one kernel.

    Attributes:
        picture: seconds from its start to its first picture; 0 without one.
        done: seconds from its start to its last cell.
        peak: its largest memory, in MiB.
        end: its memory once all kernels are done, in MiB.
        failed: the errors of cells that should not fail.
    """

    picture: float = 0.0
    done: float = 0.0
    peak: float = 0.0
    end: float = 0.0
    failed: list[str] = field(default_factory=list)


def memory_of(process: int) -> float:
    """Return the MiB of a process (PSS): a page that several share is divided among them."""
    text = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="utf-8")
    return int(text.partition("\nPss:")[2].split()[0]) / 1024


async def work(lesson: Path, folder: str, all_there: asyncio.Barrier) -> Learner:
    """Run a lesson in a kernel of its own, which lives until all others have run it, too."""
    learner = Learner()
    notebook = nbformat.read(lesson, 4)
    place = {"metadata": {"path": folder}}
    client = NotebookClient(
        notebook, timeout=CELL_SECONDS, allow_errors=True, kernel_name="python3", resources=place
    )
    began = time.monotonic()
    async with client.async_setup_kernel():
        process = client.km.provisioner.process.pid
        for number, cell in enumerate(notebook.cells):
            if cell.cell_type != "code":
                continue
            try:
                await client.async_execute_cell(cell, number)
            # A kernel has died; the others continue.
            except Exception as error:
                learner.failed.append(f"cell {number}: {type(error).__name__}: {error}"[:100])
                break
            if any("image/png" in output.get("data", ()) for output in cell.outputs):
                learner.picture = learner.picture or time.monotonic() - began
            if "raises-exception" not in cell.metadata.get("tags", ()):
                learner.failed += [
                    output.evalue for output in cell.outputs if output.output_type == "error"
                ]
            learner.end = memory_of(process)
            learner.peak = max(learner.peak, learner.end)
        learner.done = time.monotonic() - began
        await all_there.wait()
        learner.end = memory_of(process) if not learner.failed else learner.end
        await all_there.wait()
    return learner


async def classroom(kernels: int, lesson: Path) -> list[Learner]:
    """Run a lesson in so many kernels at once."""
    barrier = asyncio.Barrier(kernels)
    with tempfile.TemporaryDirectory() as top:
        startup = Path(top, "ipython", "profile_default", "startup", "memory.py")
        startup.parent.mkdir(parents=True)
        startup.write_text(STARTUP, encoding="utf-8")
        os.environ.update(ENVIRONMENT, IPYTHONDIR=str(Path(top, "ipython")))
        folders = [str(Path(top, str(number))) for number in range(kernels)]
        for folder in folders:
            Path(folder).mkdir()
        return await asyncio.gather(*(work(lesson, folder, barrier) for folder in folders))


def main() -> None:
    arguments = options(__doc__, kernels=4, lesson="06_loss_scaling")
    learners = asyncio.run(
        classroom(arguments.kernels, notebooks_folder() / f"{arguments.lesson}.ipynb")
    )
    for what, unit in (("picture", "s"), ("done", "s"), ("peak", "MiB"), ("end", "MiB")):
        values = sorted(getattr(learner, what) for learner in learners)
        print(f"{what:8} median {statistics.median(values):6.0f}, most {values[-1]:6.0f} {unit}")
    print(
        f"all      {sum(learner.end for learner in learners):.0f} MiB at the end, "
        f"{len(learners)} kernels at once"
    )
    failed = [
        f"{number}: {text}" for number, learner in enumerate(learners) for text in learner.failed
    ]
    print(f"failed   {len(failed)}", *failed, sep="\n")


if __name__ == "__main__":
    main()
