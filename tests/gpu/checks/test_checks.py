"""Checks of a GPU, run by `pytest -m gpu` and by `labkit gpu`.

On a CPU, `labkit gpu --device cpu` rehearses them, and compares labkit's autocast with itself.
"""

import base64
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from labkit.bench import device_report
from labkit.bench.triton_gemm import TILES, Tile, matmul, why_unavailable
from labkit.gemm.mma import SPECS
from tests.amp.distributed import ranks
from tests.gpu import against_torch
from tests.gpu.capture import tiles as capture
from tests.gpu.capture.kernel import COLUMNS, INSTRUCTIONS, Instruction
from tests.gpu.conftest import CheckRun

HAS_GPU = os.environ.get("LABKIT_CHECKS_DEVICE") != "cpu" and torch.cuda.is_available()
CAPABILITY = device_report("cuda").capability if HAS_GPU else None
WITHOUT_TRITON = bool(why_unavailable("cuda" if HAS_GPU else "cpu"))
# Before compute capability 8.0, Triton's compiler may abort the process at a product of BF16.
WITHOUT_BF16 = WITHOUT_TRITON or (CAPABILITY or (8, 0)) < (8, 0)
# Each shape is compiled, which takes a second or two.
SHAPES = ((129, 257, 65), (300, 500, 700), (4096, 4096, 4096))
pytestmark = [pytest.mark.gpu]


def named(name: str, *values: Any, skip: bool = False) -> Any:
    return pytest.param(
        *values, id=name, marks=pytest.mark.skipif(skip, reason="this device does not have it")
    )


def check_unlike(check_run: CheckRun, results: dict[str, str]) -> None:
    """Record how many calls were compared and which differ from torch's.

    Fail if a call differs that torch itself can compute.
    """
    unlike = {call: text for call, text in results.items() if text != against_torch.EQUAL}
    wrong = {
        call: text for call, text in unlike.items() if not text.startswith(against_torch.UNUSABLE)
    }
    check_run.found |= {"calls": len(results), "unlike": unlike}
    counts = f"{len(results) - len(unlike)} equal to torch's bit for bit, {len(wrong)} not"
    check_run.found["summary"] = f"{counts}, {len(unlike) - len(wrong)} that torch itself refuses"
    assert not wrong, "; ".join(f"{call}: {text}" for call, text in wrong.items())


@pytest.mark.check("amp", "autocast")
@pytest.mark.parametrize(
    "group", [named(f"autocast {group}", group) for group in against_torch.groups()]
)
def test_each_call_of_torchs_autocast_lists(check_run: CheckRun, group: str) -> None:
    with against_torch.repeatable():
        check_unlike(
            check_run,
            against_torch.lists(group, check_run.device, *against_torch.pairs(check_run.device)),
        )


@pytest.mark.check("amp", "autocast")
@pytest.mark.parametrize(
    "layer", [named(f"autocast {layer}", layer) for layer in against_torch.RECURRENT]
)
def test_recurrent_layers_forward_and_backward(check_run: CheckRun, layer: str) -> None:
    """They are on no list of autocast, but ask torch whether autocast is on."""
    theirs, ours = (region for region, _ in against_torch.pairs(check_run.device))
    width = 256 if check_run.thorough else 64
    found = {}
    with against_torch.repeatable():
        for name, packed in ((layer, False), (f"{layer}, packed", True)):
            outcomes = [
                against_torch.outcome(
                    against_torch.recurrent(layer, width, packed, check_run.device), region()
                )
                for region in (theirs, ours)
            ]
            found[name] = against_torch.compare(*outcomes)
    check_unlike(check_run, found)


@pytest.mark.check("amp", "autocast")
@pytest.mark.parametrize(
    "network", [named(f"torch.amp {name}", name) for name in against_torch.TRAINED]
)
def test_training_has_the_losses_and_scales_of_torch_amp(check_run: CheckRun, network: str) -> None:
    width, steps = (256, 30) if check_run.thorough else (64, 12)
    pairs = against_torch.pairs(check_run.device)
    check_unlike(
        check_run,
        {network: against_torch.compare_training(network, *pairs, check_run.device, width, steps)},
    )


@pytest.mark.check("mma", "capture")
@pytest.mark.parametrize(
    "row",
    [
        named(f"capture {row.name}", row, skip=not row.runs_on(CAPABILITY))
        # Grouped instructions are last, because one that fails may end the process.
        for row in sorted(INSTRUCTIONS, key=lambda row: row.grouped)
    ],
)
def test_a_real_tensor_core_equals_the_emulator(check_run: CheckRun, row: Instruction) -> None:
    # Of each family 512 rows of 8 sums: 4096 sums for each of five seeds.
    tiles, seeds = (512 // row.m, 5) if check_run.thorough else (2, 1)
    answers = capture.ask(row, tiles)
    check_run.found |= {"spec": answers.spec, "npz": base64.b64encode(answers.to_bytes()).decode()}
    check_run.found |= {
        "file": f"{row.name}.npz",
        "summary": "kept; no row of SPECS models this GPU",
    }
    if not answers.spec:
        return
    spec = SPECS[answers.spec].for_operands(row.operands)
    counts = Counter[str]()
    # Only the answers of the first seed are saved.
    for seed_answers in (answers, *(capture.ask(row, tiles, seed) for seed in range(1, seeds))):
        counts.update(seed_answers.mismatches(spec))
    wrong = {family: count for family, count in counts.items() if count}
    check_run.found["mismatches"] = wrong
    sums = seeds * len(answers.a) * row.m * COLUMNS
    summary = f"{sum(wrong.values())} of {sums} sums differ from the emulator's"
    check_run.found["summary"] = summary
    assert not wrong, f"{summary}: {wrong}"


def wrong_products(tile: Tile, dtype: torch.dtype, m: int, n: int, k: int, device: str) -> int:
    """Return how many elements of a product are wrong.

    Sums of small integers are exact in FP32, so a result is rounded once, and no tolerance is
    needed.
    """
    generator = torch.Generator(device).manual_seed(0)
    a = torch.randint(-3, 4, (m, k), generator=generator, device=device).to(dtype)
    b = torch.randint(-3, 4, (n, k), generator=generator, device=device).to(dtype).t()
    exact = (a.double() @ b.double()).to(dtype)
    return int((matmul(a, b, tile) != exact).sum())


@pytest.mark.check("kernel", "timing")
@pytest.mark.parametrize(
    ("tile", "dtype"),
    [
        *(
            named(f"kernel {tile.name} FP16", tile, "float16", skip=WITHOUT_TRITON)
            for tile in TILES
        ),
        named(f"kernel {TILES[0].name} BF16", TILES[0], "bfloat16", skip=WITHOUT_BF16),
    ],
)
def test_our_own_kernel_is_exact(check_run: CheckRun, tile: Tile, dtype: str) -> None:
    products = SHAPES if check_run.thorough else SHAPES[:1]
    wrong = [
        wrong_products(tile, getattr(torch, dtype), *shape, check_run.device) for shape in products
    ]
    check_run.found |= {
        "wrong": sum(wrong),
        "summary": f"{len(wrong)} products, {sum(wrong)} elements wrong",
    }
    assert not any(wrong), check_run.found["summary"]


@pytest.mark.check("many", "ranks")
@pytest.mark.parametrize("backend", [named("all GPUs, nccl", "nccl", skip=not HAS_GPU)])
def test_all_gpus_train_as_one(check_run: CheckRun, tmp_path: Path, backend: str) -> None:
    """The check needs several GPUs; tests/amp/distributed runs the same cases with gloo."""
    world = torch.cuda.device_count()
    found = ranks.launch("on_its_device", world, tmp_path, DEVICE="cuda")
    check_run.found |= {"ranks": world, "summary": json.dumps(found[0])}
    for results in found:
        assert set(results.values()) == {"equal; all skipped as one"}, found
