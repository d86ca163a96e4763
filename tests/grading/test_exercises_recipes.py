"""The exercises of lessons 08 to 09b: their references against apex, torch, numpy and DeepSpeed."""

import itertools
from collections import Counter, deque
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.tensor import Shard

from tests.grading.cases import SEEDS, cases, reference

# --- lesson 08: recipes ---

# apex/amp/frontend.py, classes O0 to O3: cast_model_type, patch_torch_functions,
# keep_batchnorm_fp32, master_weights, loss_scale. None means that apex changes nothing: the model
# is in FP32.
APEX = {
    "O0": ("float32", False, None, False, 1.0),
    "O1": (None, True, None, None, "dynamic"),
    "O2": ("float16", False, True, True, "dynamic"),
    "O3": ("float16", False, False, False, 1.0),
}
# Number of seeds -> Student's t at 95% and 97.5%, from a table of the distribution.
STUDENT = {3: (2.920, 4.303), 4: (2.353, 3.182), 5: (2.132, 2.776)}


def test_the_levels_are_those_of_apex() -> None:
    for level, (model, patched, norms, masters, scale) in APEX.items():
        assert reference("recipes.levels")(level, {}) == {
            "model_bits": 16 if model == "float16" else 32,
            "casts_by_operation": patched,
            "norms_in_fp32": norms is not False,
            "master_weights": bool(masters),
            "dynamic_scaling": scale == "dynamic",
        }


def by_hand(level: str) -> tuple[torch.dtype, ...]:
    """Build a level in plain torch, and return the dtypes of its weights, norms and output."""
    net = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    inputs = torch.ones(2, 4)
    if level in ("O2", "O3"):
        net = net.half()
        inputs = inputs.half()
    if level == "O2":
        net[1].float()
    weights = (
        [p.detach().float() for p in net.parameters()] if level == "O2" else list(net.parameters())
    )
    optimizer = torch.optim.SGD(weights, lr=0.1)
    with torch.autocast("cpu", torch.float16, enabled=level == "O1"):
        output = net[0](inputs)
    stepped = optimizer.param_groups[0]["params"][0]
    return net[0].weight.dtype, net[1].weight.dtype, stepped.dtype, output.dtype


def test_a_level_built_by_hand_is_recognised() -> None:
    assert [reference("recipes.which")(*by_hand(level)) for level in APEX] == list(APEX)


def test_the_fate_is_what_torchs_adam_does_to_an_fp16_weight() -> None:
    for gradient, epsilon in cases("recipes.epsilon"):
        weight = nn.Parameter(torch.zeros(1).half())
        weight.grad = torch.tensor([gradient]).half()
        torch.optim.Adam([weight], lr=1e-3, eps=epsilon, foreach=False).step()
        fate = "inf"
        if weight.isfinite().item():
            fate = "finite"
        elif weight.isnan().item():
            fate = "nan"
        assert reference("recipes.epsilon")(gradient, epsilon) == fate, (gradient, epsilon)


def test_the_verdict_is_numpys() -> None:
    for fp32, other, margin, t_90, t_95 in cases("recipes.verdict"):
        assert (t_90, t_95) == STUDENT[len(fp32)]
        differences = np.nan_to_num(np.array(other), nan=0.0) - np.array(fp32)
        mean = differences.mean()
        error = differences.std(ddof=1) / np.sqrt(len(fp32))
        equivalent = -margin < mean - t_90 * error and mean + t_90 * error < margin
        significant = not mean - t_95 * error <= 0 <= mean + t_95 * error
        beyond = abs(mean) > np.ptp(fp32)
        verdict = "cannot tell"
        if equivalent:
            verdict = "as good"
        elif significant and beyond:
            verdict = "worse" if mean < 0 else "better"
        assert reference("recipes.verdict")(fp32, other, margin, t_90, t_95) == verdict


def test_the_choice_is_the_best_of_all_that_could_be_named() -> None:
    for fp32, candidates in cases("recipes.cheapest"):
        floor = np.mean(fp32) - np.ptp(fp32)
        chosen = reference("recipes.cheapest")(fp32, candidates)
        # A mean of NaN is not.
        passing = {name: size for name, size, metrics in candidates if np.mean(metrics) >= floor}
        assert chosen == (min(passing, key=passing.__getitem__) if passing else "FP32")


class Step:
    """Training steps in plain torch, line by line, on one weight whose loss is weight * gradient.

    Args:
        masters: Whether the weight is in FP16 and has an FP32 master, or is in FP32 itself.
        gradient: The gradient.
    """

    def __init__(self, masters: bool, gradient: float) -> None:
        self.weight = nn.Parameter(torch.ones(1).half() if masters else torch.ones(1))
        self.master = nn.Parameter(self.weight.detach().float()) if masters else self.weight
        self.optimizer = torch.optim.SGD([self.master], lr=1.0)
        self.gradient = gradient
        self.scale = 1024.0
        self.found_inf = False
        self.losses = deque[torch.Tensor]()
        self.scaled = deque[torch.Tensor]()

    def do(self, line: str) -> None:
        if line == "forward":
            self.losses.append(self.weight.float() * self.gradient)
        elif line == "scale loss":
            self.scaled.append(self.losses.popleft() * self.scale)
        elif line == "backward":
            (self.scaled or self.losses).popleft().backward()
        elif line == "gradients to masters":
            self.master.grad = self.weight.grad.float()
        elif line == "unscale":
            self.master.grad /= self.scale
        elif line == "look for inf":
            at_hand = self.weight.grad if self.master.grad is None else self.master.grad
            self.found_inf = not bool(at_hand.isfinite().all())
        elif line == "step" and not self.found_inf:
            self.optimizer.step()
        elif line == "masters to model":
            self.weight.data.copy_(self.master)
        elif line == "update scale":
            self.scale = self.scale / 2 if self.found_inf else self.scale


def test_the_lines_do_to_a_weight_what_torchs_scaler_does() -> None:
    for masters, gradient, batches in itertools.product(
        (False, True), (2.0**-13, 2.0**-20, 1e3), (1, 3)
    ):
        theirs = Step(masters, gradient)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for _ in range(batches):
            scaler.scale(theirs.weight.float() * gradient).backward()
        theirs.master.grad = theirs.weight.grad.float()
        scaler.step(theirs.optimizer)
        scaler.update()
        theirs.weight.data.copy_(theirs.master)
        theirs.scale = scaler.get_scale()
        ours = Step(masters, gradient)
        for line in reference("recipes.lines")(masters, True, batches):
            ours.do(line)
        assert torch.equal(ours.master, theirs.master), (masters, gradient, batches)
        assert torch.equal(ours.weight, theirs.weight)
        assert ours.scale == theirs.scale


# --- lesson 09: frameworks ---


def halves(numbers: Any) -> Any:
    """Round to FP16, in FP64 for further operations, which a GPU does in FP32."""
    with np.errstate(over="ignore"):
        return np.asarray(numbers, dtype=np.float32).astype(np.float16).astype(np.float64)


def trained(weight: Any, batches: Any, max_norm: float) -> tuple[Any, float, int]:
    """Train a linear layer in numpy, with FP16 operands and results, and an FP32 weight.

    Returns:
        The weight, the last scale, which is halved at each overflow, and the number of overflows.
    """
    master = weight.numpy().astype(np.float64)
    scale = 2.0**16
    skipped = 0
    for x, y in batches:
        inputs = halves(x.numpy())
        target = y.numpy().astype(np.float64)
        output = halves(inputs @ halves(master).T)
        with np.errstate(over="ignore", invalid="ignore"):
            back = halves(2 * (output - target) / target.size * scale)
            gradient = halves(back.T @ inputs) / scale
        if not np.isfinite(gradient).all():
            scale = scale / 2
            skipped = skipped + 1
            continue
        master = master - 0.125 * gradient * min(1.0, max_norm / (np.linalg.norm(gradient) + 1e-6))
    return master, scale, skipped


@pytest.mark.parametrize("id", ["frameworks.translate", "frameworks.repair", "frameworks.callback"])
def test_a_training_is_numpys(id: str) -> None:
    skips = Counter[int]()
    for weight, batches, max_norm in cases(id):
        got, scale = reference(id)(weight, batches, max_norm)
        master, numpys_scale, skipped = trained(weight, batches, max_norm)
        assert scale == numpys_scale
        np.testing.assert_allclose(
            got.numpy(), master, rtol=0, atol=2e-3 * max(1.0, np.abs(master).max())
        )
        assert not np.allclose(got.numpy(), weight.numpy())
        skips[skipped] += 1
    assert min(skips[times] for times in (0, 1, 2)) >= len(SEEDS), skips


def skipped_by(largest: list[float], config: Any, pause: int) -> list[int]:
    """Return the skipped steps, by the rule as DeepSpeed writes it.

    What is left of the hysteresis is counted down by overflows, and restored when the scale grows.
    A pause moves the step from which clean steps are counted.
    """
    scale = config.init_scale
    left = config.hysteresis
    last_overflow = -1
    found = []
    for i, gradient in enumerate(largest):
        if scale * gradient >= 65520 and (scale > config.floor or not config.steps_at_floor):
            found.append(i + 1)
            last_overflow = i
            if left == 1:
                scale = max(scale / 2, config.floor)
                last_overflow = i + pause
            left = max(left - 1, 1)
        elif i > last_overflow and (i - last_overflow) % config.growth_interval == 0:
            scale = min(scale * 2, config.cap)
            left = config.hysteresis
    return found


def test_skips_are_those_of_another_way_to_count() -> None:
    for case in cases("frameworks.skips", range(10)):
        assert reference("frameworks.skips")(*case) == skipped_by(*case)


def test_with_the_casts_in_place_each_node_finds_what_it_needs() -> None:
    """No cast is made twice, and without any one of them some node lacks an input."""
    for given, nodes in cases("frameworks.casts"):
        casts = reference("frameworks.casts")(given, nodes)
        assert len(set(casts)) == len(casts)
        assert all(needs_met(given, nodes, casts))
        for left_out in casts:
            assert not all(needs_met(given, nodes, [cast for cast in casts if cast != left_out]))


def needs_met(given: Any, nodes: Any, casts: Any) -> list[bool]:
    """Return for each node whether all of its inputs exist in the format that it computes in."""
    there = dict(given)
    met = []
    for name, rule, inputs in nodes:
        own = [there[source] for source in inputs]
        computes = {"allow": "FP16", "deny": "FP32", "promote": max(own), "keep": own[0]}[rule]
        met.append(
            rule == "keep" or all(there[s] == computes or (s, computes) in casts for s in inputs)
        )
        there[name] = computes
    return met


# --- many workers ---


def test_an_agreed_step_is_that_of_one_process_with_all_parts() -> None:
    for parts, gradients, scale, lr in cases("workers.agree"):
        weight = torch.nn.Parameter(torch.cat(parts))
        optimizer = torch.optim.SGD([weight], lr=lr)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        scaler.scale(torch.zeros(()))
        weight.grad = torch.cat(gradients).float()
        scaler.step(optimizer)
        scaler.update()
        after, new_scale = reference("workers.agree")(parts, gradients, scale, lr)
        assert torch.equal(torch.cat(after), weight.detach())
        assert new_scale == scaler.get_scale()


def test_a_mean_in_fp16_is_numpys() -> None:
    for gradients, before in cases("workers.predivide"):
        with np.errstate(over="ignore", invalid="ignore"):
            total, *others = (gradient.numpy() / np.float16(before) for gradient in gradients)
            for quotient in others:
                total = total + quotient
            expected = total / np.float16(len(gradients) / before)
        np.testing.assert_array_equal(
            reference("workers.predivide")(gradients, before).numpy(), expected
        )


def test_rows_are_those_of_torch_chunk_and_of_a_dtensor() -> None:
    for rows, world, block in cases("workers.parts"):
        parts = reference("workers.parts")(rows, world, block)
        if block > 1:
            # torch shares the blocks, of which the last one may be shorter
            of_blocks = reference("workers.parts")(-(-rows // block), world, 1)
            assert parts == [
                (min(first * block, rows), min(last * block, rows)) for first, last in of_blocks
            ]
            continue
        chunks = [chunk.tolist() for chunk in torch.arange(rows).chunk(world)]
        assert [list(range(*part)) for part in parts if part[0] < part[1]] == chunks
        shards = [Shard.local_shard_size_and_offset(rows, world, rank) for rank in range(world)]
        assert [(last - first, first) for first, last in parts] == shards
