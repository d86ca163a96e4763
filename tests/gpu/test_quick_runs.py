"""Time limits and sizes of `labkit gpu` and of its quick runs."""

from pathlib import Path

from labkit import cli, gpu
from labkit.gpu import job as gpu_job
from tests.gpu.rehearsal import job_of


def quick_budgets(*words: str) -> dict[str, float]:
    """Return the time limits of the parts of a quick run with these options, in seconds."""
    return gpu.command.budgets_of(cli.parser_of("gpu").parse_args(["--quick", *words]))


def test_a_quick_run_has_five_parts() -> None:
    assert set(quick_budgets()) == {"ceilings", "size", "layers", "alignment", "tasks"}


def test_a_quick_run_takes_three_minutes() -> None:
    assert sum(quick_budgets().values()) + gpu.GRACE <= gpu.QUICK_LIMIT == 3 * 60


def test_a_quick_rehearsal_on_a_cpu_has_all_parts() -> None:
    assert list(quick_budgets("--device", "cpu")) == list(gpu.PARTS)


def test_a_quick_run_of_a_chosen_part_has_its_time() -> None:
    assert quick_budgets("--only", "mma") == {"mma": gpu.PARTS["mma"].seconds}


def test_all_parts_take_less_than_nine_minutes() -> None:
    assert sum(part.seconds for part in gpu.PARTS.values()) + gpu.GRACE <= gpu.LIMIT < 9 * 60


def test_a_quick_run_has_the_sizes_of_its_device(tmp_path: Path) -> None:
    assert job_of(tmp_path, device="cuda").extent is gpu_job.GPU_SHORT
    assert job_of(tmp_path).extent is gpu_job.QUICK


def test_a_run_that_is_not_quick_has_all_sizes(tmp_path: Path) -> None:
    assert job_of(tmp_path, device="cuda", quick=False).extent is None


def test_a_quick_run_on_a_gpu_reaches_size_4096() -> None:
    assert max(gpu_job.GPU_SHORT.sizes) >= 4096


def test_a_quick_copy_on_a_gpu_takes_less_than_a_gibibyte() -> None:
    # A copy has two tensors of 4 bytes an element; a third may be needed beside them.
    assert 3 * 4 * gpu_job.GPU_SHORT.elements < 2**30
