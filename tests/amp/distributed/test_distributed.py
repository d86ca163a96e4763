"""Training by many processes: equal to one process, resumed after a killed process, and watched."""

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint import FileSystemWriter, state_dict_saver

from labkit.amp import RECIPES, Engine, ScalerState
from labkit.amp.distributed.checkpoint import KEPT, latest, load, read_small, save
from labkit.amp.distributed.engine import DistributedEngine, divisors
from labkit.amp.distributed.group import RankLost, raising_rank_lost
from labkit.instrument import Report, exponent_histogram
from labkit.instrument.ranks import merge_reports
from labkit.instrument.records import WatchedStep, trimmed
from tests.amp.distributed import ranks
from tests.slowness import slowness


def one_process(
    recipe: str, steps: int | None = None, **how: Any
) -> tuple[list[Any], dict[str, torch.Tensor]]:
    """Train the same network with whole batches in this process."""
    engine = Engine(ranks.exact_network(), ranks.sgd, RECIPES[recipe])
    if engine.recipe.scaler.dynamic:
        engine.scaler = ScalerState(1024.0)
    return ranks.train(
        engine, ranks.exact_batches(steps or ranks.exact_steps(recipe)), **how
    ), engine.weights.named_masters()


def equal(these: dict[str, torch.Tensor], those: dict[str, torch.Tensor]) -> bool:
    return these.keys() == those.keys() and all(
        torch.equal(these[name], those[name]) for name in these
    )


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Return the results of both ranks of the case `worked_example`."""
    return ranks.launch("worked_example", 2, tmp_path_factory.mktemp("two"))


EACH_RANK = pytest.mark.parametrize("rank", [0, 1])
SHARDED = pytest.mark.parametrize("sharded", [False, True])


@EACH_RANK
@SHARDED
def test_two_processes_train_as_one(two: list[Any], rank: int, sharded: bool) -> None:
    """Reports and masters equal those of one process bit for bit."""
    reports, masters = one_process("FP16 static")
    assert [stepped for stepped, *_ in reports] == [True] * 2
    assert not torch.equal(masters["0.weight"], ranks.exact_network()[0].weight)
    found = two[rank]["exact", sharded]
    assert found[0] == reports
    assert equal(found[1], masters)


def test_two_processes_skip_a_step_as_one(two: list[Any]) -> None:
    """A gradient of one rank overflows, and both ranks skip the step and lower the scale."""
    reports, _ = two[0]["overflow", False]
    assert [step[:2] for step in reports] == [(True, 1024.0), (False, 1024.0), (True, 512.0)]
    assert [step[3] for step in reports] == [4, 0, 1]


def test_a_skipped_step_of_two_processes_names_all_gradients(two: list[Any]) -> None:
    reports, _ = two[0]["overflow", False]
    assert reports[1][2] == ("0.weight", "0.bias", "2.weight", "2.bias")


@EACH_RANK
@SHARDED
def test_ranks_with_a_skipped_step_stay_equal(two: list[Any], rank: int, sharded: bool) -> None:
    reports, masters = two[0]["overflow", False]
    found = two[rank]["overflow", sharded]
    assert found[0] == reports
    assert equal(found[1], masters)


@pytest.mark.slow
def test_each_rank_trains_on_its_device(tmp_path: Path) -> None:
    """The case runs on CPUs by gloo here, and on all GPUs by NCCL in `labkit gpu --only many`."""
    ways = dict.fromkeys(
        f"{way}, {reduce}, gloo" for way in ("DDP", "FSDP2") for reduce in ("FP32", "FP16")
    )
    outcome = dict.fromkeys(ways, "equal; all skipped as one")
    assert ranks.launch("on_its_device", 2, tmp_path, DEVICE="cpu") == [outcome, outcome]


class TestWatchedApart:
    """The reports of the case `watched_apart`: the second rank alone overflows in step 1."""

    def test_ranks_that_differ_in_found_inf_are_a_finding(self, two: list[Any]) -> None:
        report, _, _ = two[0]["watched"][1]
        assert (report.findings[0].name, report.findings[0].step) == ("ranks parted", 1)

    def test_both_ranks_have_the_same_report(self, two: list[Any]) -> None:
        (report, _, _), (other, _, _) = (found["watched"][1] for found in two)
        assert report == other
        assert report.histograms("weights", 0)["weight"].total == 1

    def test_a_missing_report_of_a_rank_is_named(self, two: list[Any]) -> None:
        _, only, _ = two[0]["watched"][1]
        assert only.unseen[-1] == "rank 1 of 2: no report arrived in 0.2 s"

    def test_a_report_of_one_rank_says_so(self, two: list[Any]) -> None:
        _, _, alone = two[0]["watched"][1]
        assert "this is rank 0 of 2" in alone.unseen[0]


def test_delayed_scales_follow_from_the_largest_of_all_ranks(two: list[Any]) -> None:
    """One process has the rows of both ranks, so its magnitudes are the largest of both.

    Its mean is over twice as many rows, so a rank's gradients are twice as large.
    """
    engine = Engine(ranks.exact_network(), ranks.sgd, RECIPES["FP8 delayed"])
    ranks.train(engine, ranks.exact_batches())
    alone = engine.products.memory.shared_state()["history"]
    wanted = {}
    for key, sizes in alone.items():
        factor = 2 if "gradient" in key else 1
        wanted[key] = [factor * size for size in sizes]
    assert {len(sizes) for sizes in wanted.values()} == {2}
    for rank in two:
        assert rank["delayed"] == {
            key: pytest.approx(sizes, rel=1e-6) for key, sizes in wanted.items()
        }


def test_both_ranks_have_the_same_delayed_scales(two: list[Any]) -> None:
    assert two[0]["delayed"] == two[1]["delayed"]


def test_sharded_ranks_multiply_in_mxfp8_as_one_process(two: list[Any]) -> None:
    for rank in two:
        assert equal(rank["MXFP8 sharded"], one_process("MXFP8", 1)[1])


def test_a_recipe_that_needs_names_of_weights_is_refused_sharded(two: list[Any]) -> None:
    """Sharding replaces weights, and NVFP4 keeps the last layers in FP32 by their names."""
    for rank in two:
        assert "take sharded=False, or 'FP8 current' or 'MXFP8'" in rank["refused"]


@SHARDED
@pytest.mark.parametrize("by", ["engine", "by hand"])
class TestWatchedTogether:
    """Reports of a training on two ranks, beside that of one process."""

    def reports(self, two: list[Any], by: str, sharded: bool) -> list[tuple[Report, Report]]:
        """Return for each rank the report of it alone, and that of both."""
        return [found["watched"][0][by, sharded] for found in two]

    def test_two_ranks_count_what_one_process_counts(
        self, two: list[Any], by: str, sharded: bool
    ) -> None:
        expected = ranks.watched_by_one(by)
        _, together = self.reports(two, by, sharded)[0]
        for kind in (*ranks.OF_PARAMETERS, "activations"):
            assert together.histograms(kind), kind
            assert together.histograms(kind) == expected.histograms(kind), kind
        moves = [step.moves for step in expected.watched]
        assert [step.moves for step in together.watched] == moves
        assert not together.findings

    def test_both_ranks_have_the_same_report(self, two: list[Any], by: str, sharded: bool) -> None:
        (_, first), (_, second) = self.reports(two, by, sharded)
        assert first == second

    def test_a_report_of_one_rank_names_what_it_lacks(
        self, two: list[Any], by: str, sharded: bool
    ) -> None:
        alone, together = self.reports(two, by, sharded)[0]
        assert "other ranks than 0 of 2" in alone.unseen[-1]
        assert not any("rank" in lacking and "of 2" in lacking for lacking in together.unseen)

    def test_activations_of_both_ranks_are_added(
        self, two: list[Any], by: str, sharded: bool
    ) -> None:
        (first, together), (second, _) = self.reports(two, by, sharded)
        for name, histogram in together.histograms("activations").items():
            halves = [half.histograms("activations")[name] for half in (first, second)]
            assert histogram.total == sum(half.total for half in halves), name


def test_unused_parameters_get_the_mean_of_those_used(two: list[Any]) -> None:
    """The mean of a gradient of 1 and of none is a half.

    Rank 0's loss has a gradient of 1 at the second layer, and the other rank's has none.
    """
    for found in two:
        for gradients, stepped in found["unused"]:
            assert stepped
            assert {name: g.unique().tolist() for name, g in gradients.items()} == {
                "first.weight": [1.0],
                "second.weight": [0.5],
            }


@pytest.mark.usefixtures("alone")
def test_a_distributed_engine_takes_names_of_recipe_and_format() -> None:
    layer = torch.nn.Linear(1, 1, bias=False)
    engine = DistributedEngine(layer, ranks.sgd, "FP32", reduce="fp16")
    assert engine.recipe is RECIPES["FP32"]
    engine.backward(engine(torch.full((1, 1), 1 + 2.0**-12)).sum())
    # FP16 rounds the gradient, which is the input, to 1.
    assert engine.gradients()["weight"].item() == 1.0


def test_a_reduction_in_another_format_is_refused() -> None:
    for name in ("E4M3", "FP64", "TF32"):
        with pytest.raises(ValueError, match=f"reduce: expected FP32, FP16 or BF16, got {name}"):
            DistributedEngine(ranks.exact_network(), ranks.sgd, RECIPES["O2"], reduce=name)


def test_an_error_of_the_network_is_not_a_lost_rank() -> None:
    for message, kind in (
        ("the skip connection has another shape", RuntimeError),
        ("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [::1]:29500", RankLost),
        ("Connection refused", RankLost),
        ("Connection reset by peer", RankLost),
    ):
        with pytest.raises(kind) as raised, raising_rank_lost("in the forward pass"):
            raise RuntimeError(message)
        assert type(raised.value) is kind, message


def test_engine_before_its_group_is_refused() -> None:
    with pytest.raises(
        RuntimeError, match=r"start_group\(\) first, in a script that torchrun starts"
    ):
        DistributedEngine(ranks.exact_network(), ranks.sgd, RECIPES["O2"])


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
def test_each_way_of_training_together_equals_one_process(tmp_path: Path, world: int) -> None:
    started = ranks.launch("all_ways", world, tmp_path)
    assert len(started[0]) == 6 * 8 + 4
    clipped = one_process("FP32", steps=1, clip=0.25)
    for way, (reports, masters) in started[0].items():
        assert all(
            other[way][0] == reports and equal(other[way][1], masters) for other in started
        ), way
        if way[0] == "clipped":
            # Norms of parts are added in another order, so weights near 1/2 may differ by an ulp.
            for name, master in masters.items():
                torch.testing.assert_close(master, clipped[1][name], rtol=0, atol=2.0**-24)
        else:
            recipe = "FP16 static" if way[0] == "reduced in FP16" else way[0]
            assert equal(masters, one_process(recipe)[1]), way


def test_fp16_is_divided_by_what_torch_divides_by() -> None:
    from torch.distributed.fsdp._fully_shard._fsdp_collectives import _get_gradient_divide_factors

    for world in range(1, 65):
        group = SimpleNamespace(size=lambda world=world: world)
        before, after, *_ = _get_gradient_divide_factors(group, None, torch.float16)
        assert divisors(world) == (before, after)
        assert divisors(world, predivide=False) == (1, world)


@pytest.mark.slow
def test_undivided_sum_overflows_fp16(tmp_path: Path) -> None:
    """Each rank's scaled gradient is 20480, which FP16 holds; it does not hold the sum of four.

    Nor does it hold the 12 significant bits of another mean, which FP32 holds.
    """
    for rank, found in enumerate(ranks.launch("reductions", 4, tmp_path)):
        for (sharded, option_count), (gradients, report, mean) in found.items():
            # With two options, gradients are reduced in FP16 and divided only after the sum.
            overflows = option_count == 2
            assert report.stepped == (not overflows), sharded
            assert report.found_inf == overflows, sharded
            # A weight of one row is a part of the first rank; the other parts are empty.
            if sharded and rank > 0:
                assert gradients["weight"].numel() == 0
                assert mean == 0.0
                continue
            assert overflows or gradients["weight"].sum().item() == 20.0
            assert (mean == 1 + 1.5 / 1024) == (option_count == 0), (sharded, option_count)


@pytest.mark.slow
def test_ranks_with_different_batches_stop_together(tmp_path: Path) -> None:
    assert ranks.launch("batch_counts", 4, tmp_path, TOGETHER="True") == [2, 2, 2, 2]


@pytest.mark.slow
def test_a_rank_without_others_says_that_they_are_lost(tmp_path: Path) -> None:
    ended = ranks.wait(ranks.start("batch_counts", 2, tmp_path, TOGETHER="False", TIMEOUT_S="5"))
    assert ended == [0, 0]
    assert ranks.results(1, tmp_path) == [2]
    assert "RankLost: rank 1 of 2 cannot continue: " in torch.load(tmp_path / "1.pt")


def test_folder_that_is_not_a_checkpoint_is_refused(tmp_path: Path) -> None:
    rank_file = tmp_path / "rank-0.pt"
    with pytest.raises(ValueError, match="not a complete checkpoint"):
        read_small(tmp_path, rank=0)
    for content in (b"", b"some other file"):
        rank_file.write_bytes(content)
        with pytest.raises(ValueError, match="not a complete checkpoint"):
            read_small(tmp_path, rank=0)


class RunsCode:
    """An object that makes a file when pickle loads it."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self.mark,)


def test_a_rank_s_file_with_code_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "code ran"
    torch.save({"extra": RunsCode(mark)}, tmp_path / "rank-0.pt")
    with pytest.raises(ValueError, match="not a complete checkpoint"):
        read_small(tmp_path, rank=0)
    assert not mark.exists()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_checkpoint_of_another_schema_is_refused(tmp_path: Path) -> None:
    writer = FileSystemWriter(tmp_path)
    state_dict_saver.save({"master": torch.ones(1)}, storage_writer=writer, no_dist=True)
    for content, shown in (
        ({"schema": "labkit.checkpoint.distributed/0"}, "distributed/0"),
        ([], None),
    ):
        torch.save(content, tmp_path / "rank-0.pt")
        with pytest.raises(ValueError, match=f"expected a checkpoint of schema .*{shown}"):
            read_small(tmp_path, rank=3)


@pytest.fixture
def alone() -> Iterator[DistributedEngine]:
    """Yield the engine of a group of one rank, which is this process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield DistributedEngine(ranks.exact_network(), ranks.sgd, RECIPES["FP32"])
    finally:
        dist.destroy_process_group()


def test_a_new_checkpoint_outlives_those_of_later_steps(
    alone: DistributedEngine, tmp_path: Path
) -> None:
    """A run that starts over in a folder keeps what it writes there."""
    for step in range(10, 10 + KEPT):
        (tmp_path / f"step-{step:08d}").mkdir()
    (tmp_path / ".step-00000007.removed").mkdir()
    written = save(tmp_path, alone)
    assert written.name == "step-00000000"
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["step-00000000", f"step-{10 + KEPT - 1:08d}"]


def test_a_checkpoint_loses_its_name_before_its_files(
    alone: DistributedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed while it removes files leaves no incomplete folder step-N."""
    save(tmp_path, alone)
    removed: list[str] = []
    remove = shutil.rmtree

    def recording(path: Path, **options: Any) -> None:
        removed.append(path.name)
        remove(path, **options)

    monkeypatch.setattr(shutil, "rmtree", recording)
    save(tmp_path, alone)
    assert ".step-00000000.removed" in removed
    assert "step-00000000" not in removed


def test_a_distributed_checkpoint_refuses_what_it_cannot_load(
    alone: DistributedEngine, tmp_path: Path
) -> None:
    with pytest.raises(TypeError, match="Path"):
        save(tmp_path, alone, where=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_of_another_network_is_refused(
    alone: DistributedEngine, tmp_path: Path
) -> None:
    path = save(tmp_path, alone)
    wider = ranks.exact_network()
    wider[2] = torch.nn.Linear(wider[2].in_features, 7)
    longer = ranks.exact_network().append(torch.nn.BatchNorm1d(3, affine=False))
    for network, message in (
        (wider, r"has other shapes: 2.weight: .* for \(7, "),
        (longer, r"lacks 3.running_mean"),
    ):
        engine = DistributedEngine(network, ranks.sgd, RECIPES["FP32"])
        before = {name: value.clone() for name, value in network.state_dict().items()}
        with pytest.raises(ValueError, match=message):
            load(path, engine)
        assert equal(network.state_dict(), before)


@pytest.mark.parametrize("name", ["FP8 delayed", "NVFP4", "unit scaled"])
def test_a_resumed_run_continues_with_its_scales(
    alone: DistributedEngine, tmp_path: Path, name: str
) -> None:
    engine, resumed = (
        DistributedEngine(ranks.exact_network(), ranks.sgd, RECIPES[name]) for _ in range(2)
    )
    batches = ranks.exact_batches(4)
    ranks.train(engine, batches[:2])
    load(save(tmp_path, engine), resumed)
    for continued in (engine, resumed):
        ranks.train(continued, batches[2:])
    assert equal(resumed.weights.named_masters(), engine.weights.named_masters())
    memories = [each.products.memory.shared_state() for each in (resumed, engine)]
    assert memories[0] == memories[1]


def test_no_sync_inside_no_sync_stays_unreduced(alone: DistributedEngine) -> None:
    x, y = ranks.exact_batches()[0]
    with alone.no_sync():
        with alone.no_sync():
            pass
        alone.backward(ranks.loss_of(alone, x, y))
    with pytest.raises(RuntimeError, match=r"gradients wait since no_sync\(\)"):
        alone.step()


@pytest.mark.slow
@pytest.mark.parametrize("readers", [1, 2, 4])
def test_another_number_of_ranks_continues_a_run(tmp_path: Path, readers: int) -> None:
    (tmp_path / "written").mkdir()
    (tmp_path / "read").mkdir()
    written = ranks.launch("write", 2, tmp_path / "written")
    read = ranks.launch("read", readers, tmp_path / "read", WRITTEN=str(tmp_path / "written"))
    # step, exp_avg and exp_avg_sq of four parameters
    assert len(written[0][True][1]) == 4 * 3
    for rank, found in enumerate(read):
        for (by, sharded, flat), (extra, masters, optimizer, scaler, reports) in found.items():
            assert extra == {"epoch": 3, "rank": rank if rank < 2 else 0}
            assert equal(masters, written[0][by][0]), (by, sharded, flat)
            assert equal(optimizer, written[0][by][1]), (by, sharded, flat)
            assert scaler == written[0][by][2]
            assert reports == read[0][by, sharded, flat][4]


def kill_a_rank(
    folder: Path, victim: int, *, sharded: bool, after_checkpoint: bool, delay: float
) -> bool:
    """Start two ranks of `long_run`, kill one of them, and wait until the other one has ended.

    Args:
        folder: The folder of the run, with its checkpoints.
        victim: The rank that is killed.
        sharded: Whether the engines are sharded.
        after_checkpoint: Whether the delay begins with the next checkpoint, or with the process.
        delay: The time until the kill, in seconds.

    Returns:
        Whether the rank was alive when it was killed.
    """
    checkpoints = folder / "checkpoints"
    written = latest(checkpoints)
    for mark in folder.glob("began-*"):
        mark.unlink()
    started = ranks.start(
        "long_run", 2, folder, SHARDED=str(sharded), TIMEOUT_S=str(10 * slowness())
    )

    def delay_begins() -> bool:
        has_begun = (folder / f"began-{victim}").exists()
        return has_begun and (not after_checkpoint or latest(checkpoints) != written)

    while started[victim].is_alive() and not delay_begins():
        started[victim].join(0.01)
    started[victim].join(delay)
    was_alive = started[victim].is_alive()
    started[victim].kill()
    assert ranks.wait(started)[1 - victim] == 0
    return was_alive


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True])
def test_twelve_ranks_that_are_killed_anywhere_cost_no_step(tmp_path: Path, sharded: bool) -> None:
    """A rank is killed at a random moment: while it joins, builds, trains, writes or reads.

    The moment is drawn from the time that a process takes for its first three steps; every second
    time, from that of two steps after a checkpoint. Only ranks that are alive when they are killed
    count: six for each value of `sharded`. Each time, the other rank must end by itself with a
    RankLost.
    """
    whole = tmp_path / "whole"
    broken = tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    expected = ranks.launch("long_run", 2, whole, SHARDED=str(sharded))
    began, *steps = expected[0][3]
    generator = random.Random(4)
    hits = 0
    faster = 1.0
    while hits < 6:
        victim = generator.randrange(2)
        after_checkpoint = hits % 2 == 1
        span = steps[-1] - steps[-3] if after_checkpoint else steps[2] - began
        was_alive = kill_a_rank(
            broken,
            victim,
            sharded=sharded,
            after_checkpoint=after_checkpoint,
            delay=generator.uniform(0.0, span / faster),
        )
        # The process took all its steps before the kill, so the next kill comes earlier.
        if not was_alive:
            faster *= 2
            shutil.rmtree(broken / "checkpoints")
            continue
        left = torch.load(broken / f"{1 - victim}.pt", weights_only=False)
        (broken / f"{1 - victim}.pt").unlink()
        assert f"RankLost: rank {1 - victim} of 2 cannot continue: " in left
        hits += 1
        assert len(list((broken / "checkpoints").glob("step-*"))) <= KEPT + 1
    resumed = ranks.launch("long_run", 2, broken, SHARDED=str(sharded))
    for (losses, masters, scaler, _), (losses_2, masters_2, scaler_2, _) in zip(
        expected, resumed, strict=True
    ):
        assert losses == losses_2
        assert len(losses) == ranks.RUN_STEPS
        assert equal(masters, masters_2)
        assert scaler == scaler_2
    assert latest(broken / "checkpoints") == broken / "checkpoints" / f"step-{ranks.RUN_STEPS:08d}"


def step(number: int, scale: float, **histograms: list[float]) -> WatchedStep:
    """Return a sampled step that counted these numbers, of a layer called "a"."""
    counted = {
        kind.replace("_", " "): {"a": trimmed(exponent_histogram(torch.tensor(n)))}
        for kind, n in histograms.items()
    }
    return WatchedStep(
        number, scale, counted, {"a": (2, 1)}, {"weights": 8}, {"float32 to float16": (1, 4)}
    )


def test_shared_tensors_are_counted_once() -> None:
    ours = Report(
        model="Net", steps=1, watched=(step(0, 8.0, weights=[1.0, 2.0], activations=[1.0]),)
    )
    theirs = Report(
        model="Net", steps=1, watched=(step(0, 8.0, weights=[1.0, 2.0], activations=[2.0, 0.0]),)
    )
    together = merge_reports([ours, theirs])
    assert together.histograms("weights")["a"].total == 2
    assert together.histograms("activations")["a"].total == 3
    assert together.watched[0].moves == {"a": (2, 1)}
    assert together.watched[0].memory == {"weights": 8}
    assert together.watched[0].casts == {"float32 to float16": (2, 8)}
    assert not together.findings


def test_parts_of_sharded_tensors_are_added() -> None:
    report = Report(model="Net", steps=1, watched=(step(0, 8.0, weights=[1.0, 2.0]),))
    together = merge_reports([report, report], frozenset({"a"}))
    assert together.histograms("weights")["a"].total == 4
    assert together.watched[0].moves == {"a": (4, 2)}


def test_merging_a_single_report_keeps_its_steps() -> None:
    report = Report(model="Net", steps=1, watched=(step(0, 8.0, weights=[1.0, 2.0]),))
    assert merge_reports([report]).watched == report.watched


def test_ranks_with_two_loss_scales_are_a_finding() -> None:
    reports = [
        Report(model="Net", steps=1, watched=(step(0, scale, weights=[1.0]),))
        for scale in (8.0, 4.0)
    ]
    (parted,) = merge_reports(reports).findings
    assert "at 4 and 8 times the loss" in parted.what
