"""Findings of a watch: planted faults are reported with layer, step and repair.

Most faults are planted into the same small network and a plain torch loop. A healthy run must have
no finding.
"""

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from labkit.amp import RECIPES, Engine
from labkit.clinic import Status, diagnose
from labkit.formats import E5M2, FP16
from labkit.frameworks import GradScaler
from labkit.instrument import Report, watch
from labkit.instrument.causes import causes_first
from labkit.instrument.log import dominating_epsilon
from labkit.instrument.sample import finite, floats, non_finite
from labkit.instrument.symptoms import Kind, finding
from tests.clinic.trainings import Case, usual

X = torch.randn(32, 8, generator=torch.Generator().manual_seed(1))
Y = torch.arange(32) % 4
PLANTED_AT = 3


class Faulty(nn.Module):
    """A layer that applies `fault` to its input in step `at`; in all steps if it is negative."""

    def __init__(self, fault: Callable[[Tensor], Tensor], at: int) -> None:
        super().__init__()
        self.fault = fault
        self.at = at
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.fault(x) if self.calls - 1 == self.at or self.at < 0 else x


def network(fault=None, at=PLANTED_AT):
    torch.manual_seed(0)
    middle = nn.Identity() if fault is None else Faulty(fault, at)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), middle, nn.Linear(16, 16), nn.Linear(16, 4))


def train(
    model,
    *,
    steps=6,
    every=50,
    scale=None,
    dtype=None,
    lr=0.1,
    optimizer=None,
    before_step=None,
    **options,
):
    """Train in a plain loop under a watch.

    Returns:
        The findings as (name, layer, step), and the report.
    """
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=lr)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)
    with watch(model, every=every, **options) as w:
        for _ in range(steps):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
                output = model(X.to(next(model.parameters()).dtype))
                loss = cross_entropy(output.float(), Y)
            scaler.scale(loss).backward()
            if before_step is not None:
                before_step(model, optimizer, scaler)
            scaler.step(optimizer)
            scaler.update()
    report = w.report()
    assert not [what for what in report.unseen if "Error" in what], report.unseen
    return {(f.name, f.layer, f.step) for f in report.findings}, report


def test_healthy_run_has_no_findings():
    for scale in (None, 2.0**8):
        assert train(network(), scale=scale, every=1, against_fp32_every=1)[0] == set()


def test_a_healthy_report_suggests_a_scale_if_fp16_would_lose():
    for factor, lost in ((2.0**-12, True), (1.0, False)):
        model = network()
        with watch(model, every=1) as w:
            (cross_entropy(model(X), Y) * factor).backward()
            torch.optim.SGD(model.parameters(), lr=0.1).step()
        headline = str(w.report()).splitlines()[1]
        low = max(s.low for s in w.report().safe_scales().values())
        high = w.report().one_scale()[0]
        assert headline.startswith("Nothing wrong was found")
        assert (" would be lost; use a scale from " in headline) is lost
        assert headline.endswith(f"from 2^{low} to 2^{high}.") is lost


def test_the_first_inf_or_nan_is_reported_with_its_operation():
    faults = [
        (lambda x: (x * 1e4 + 100).exp(), "exp", "forward"),
        (lambda x: x + (x - x).sqrt(), "sqrt", "backward"),
        (lambda x: x + (x.relu() * 0).sum() / (x * 0).sum(), "div", "forward"),
    ]
    for (fault, op, direction), scale, every in itertools.product(faults, (None, 2.0**8), (1, 50)):
        found, report = train(network(fault), scale=scale, every=every)
        first = report.non_finite[0]
        assert first.step == PLANTED_AT, (scale, every)
        assert first.layer == "2", (scale, every)
        assert first.op == op, (scale, every)
        assert first.direction == direction, (scale, every)
        assert first.largest < float("inf")
        assert (f"first {first.value}", "2", PLANTED_AT) in found, (op, scale, every)


def test_underflow_is_reported_by_layer_or_for_the_network():
    def small_gradient(x):
        return x.detach() + 2.0**-26 * (x - x.detach())

    found, _ = train(network(small_gradient, at=0), dtype=torch.float16)
    assert found == {("underflow", name, 0) for name in ("0", "1", "0.weight", "0.bias")}
    found, _ = train(network(), dtype=torch.float16, scale=2.0**-24)
    assert ("underflow", "", 0) in found


class SometimesNegated(nn.Module):
    """A layer with a draw of its own, as for stochastic depth; it returns a dataclass."""

    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__()
        self.draw = draw
        self.first = nn.Linear(8, 16)
        self.last = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> "Output":
        sign = 1.0 if self.draw() < 0.5 else -1.0
        return Output(self.last((sign * self.first(x)).relu()).square().mean())


@dataclass
class Output:
    """The output of a model, which is not a pytree of torch."""

    loss: Tensor
    never_set: Tensor = field(init=False)


def test_a_dataclass_is_searched_for_tensors() -> None:
    x = torch.ones(2)
    assert [each is x for each in floats([Output(x), Output])] == [True]


@pytest.mark.parametrize(
    "draw",
    # a function: the bound method would be copied with the model, and its generator, too
    [random.random, lambda: np.random.rand()],  # noqa: NPY002
    ids=["Python", "NumPy"],
)
def test_a_replay_draws_the_same_numbers_of_python_and_numpy(draw: Callable[[], float]) -> None:
    model = SometimesNegated(draw)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, every=1, against_fp32_every=1) as w:
        for _ in range(8):
            optimizer.zero_grad()
            model(X).loss.backward()
            optimizer.step()
    compared = w.report().against_fp32
    assert [each.lost["activation gradients"]["first"][0] for each in compared] == [0] * 8


def test_a_replay_compares_calls_with_themselves() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, every=1, against_fp32_every=1) as w:
        # ReLU passes other elements for each batch, and only the last calls are replayed
        for batch in torch.cat([X, -X]).split(4):
            model(batch).square().mean().backward()
        optimizer.step()
    report = w.report()
    (compared,) = report.against_fp32
    assert [lost for lost, _ in compared.lost["activation gradients"].values()] == [0, 0, 0, 0, 0]
    assert "only the last 8 calls" in report.unseen[0]


def test_large_finite_gradients_are_not_searched_for_inf() -> None:
    layer = nn.Linear(4, 1, bias=False).half()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.0)
    with watch(layer) as w:
        for _ in range(3):
            optimizer.zero_grad()
            # their sum is above the largest number of FP16
            layer(torch.full((1, 4), 6e4).half()).sum().backward()
            optimizer.step()
    assert not [what for what in w.report().unseen if "source of inf" in what]


def test_swallowed_updates_are_findings():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    found, _ = train(model, every=2, optimizer=optimizer)
    assert ("updates swallowed", "1.weight", 0) in found
    assert ("never moved", "1.weight", 0) in found
    assert not [layer for what, layer, _ in found if what == "never moved" and layer != "1.weight"]


def test_a_gradient_of_zeros_hides_no_swallowed_update() -> None:
    used, unused = nn.Parameter(torch.ones(4).bfloat16()), nn.Parameter(torch.ones(4).bfloat16())
    model = nn.ParameterList([used, unused])
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with watch(model, every=1) as w:
        for _ in range(2):
            optimizer.zero_grad()
            (used.float() * 2.0**-40 + unused.float() * 0.0).sum().backward()
            optimizer.step()
    swallowed = {f.layer for f in w.every_finding().findings if f.name == "updates swallowed"}
    assert swallowed == {"0"}


def engine_findings(recipe: str) -> set[str]:
    """Return the findings of an engine with updates far below an ulp of its BF16 weights."""
    torch.manual_seed(0)
    engine = Engine(nn.Linear(16, 1), partial(torch.optim.AdamW, lr=1e-5), RECIPES[recipe])
    with watch(engine, every=1) as w:
        for _ in range(3):
            engine.zero_grad()
            with engine.forward():
                loss = (engine(torch.randn(8, 16)) - 1).square().mean()
            engine.backward(loss)
            engine.step()
    report = w.every_finding()
    assert report.unseen == ()
    return {f.name for f in report.findings}


def test_an_engine_that_rounds_to_nearest_swallows_updates() -> None:
    assert "updates swallowed" in engine_findings("BF16 no master")


def test_an_engine_that_rounds_stochastically_swallows_no_update() -> None:
    found = engine_findings("BF16 stochastic")
    assert not {"updates swallowed", "never moved"} & found


def test_optimizer_settings_without_effect_are_findings():
    model = network().bfloat16()
    found, _ = train(
        model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    )
    assert ("weight decay lost", "0.weight", 0) in found
    assert ("optimizer state cannot decay", "0.weight", 0) in found
    model = network().half()
    found, _ = train(model, steps=1, optimizer=torch.optim.Adam(model.parameters(), lr=1e-3))
    assert ("epsilon is zero", "3.bias", 0) in found


def test_causes_that_explain_each_other_leave_one_finding():
    # Each of these kinds can be the cause of the one before it, and the first of the last.
    findings = [
        finding(Kind.NO_STEP_TAKEN, "", 10, "no step"),
        finding(Kind.OVERFLOW, "", 8, "overflow"),
        finding(Kind.STEP_NOT_FINITE, "", 5, "a step with inf"),
    ]
    (cause,) = causes_first(findings)
    assert cause.name == "a step with inf or NaN"
    assert cause.what == "a step with inf; it led to: no step was taken, overflow"


class Unusual(torch.optim.Optimizer):
    """An optimizer with a state of Adam's name, and without Adam's options."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["exp_avg_sq"] = p.grad.square()
                p.data.sub_(group["lr"] * p.grad)


def test_an_optimizer_without_the_options_of_adam_is_observed():
    model = network()
    found, report = train(model, every=1, optimizer=Unusual(model.parameters()))
    assert found == set()
    assert report.unseen == ()


def test_the_optimizer_state_of_a_frozen_parameter_has_no_fault() -> None:
    model = network()
    frozen = nn.Parameter(torch.ones(3).half(), requires_grad=False)
    model[0].register_parameter("frozen", frozen)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    found, _ = train(model, every=1, optimizer=optimizer)
    assert found == set()


class Quantized(torch.optim.Optimizer):
    """An optimizer with Adam's options, whose state holds codes of 8 bits."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1, "eps": 1e-8, "betas": (0.9, 0.999)})

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["exp_avg"] = torch.ones_like(p, dtype=torch.uint8)
                p.data.sub_(group["lr"] * p.grad)


def test_large_numbers_of_fp64_are_finite() -> None:
    # They are beyond FP32's largest number.
    numbers = torch.tensor([1e300, -1e300], dtype=torch.float64)
    assert finite(numbers)
    assert non_finite(numbers) == ""


def test_the_codes_of_a_quantized_state_are_not_judged_as_numbers():
    model = network()
    found, report = train(model, every=1, optimizer=Quantized(model.parameters()))
    assert found == set()
    assert report.unseen == ()


def test_a_scale_too_high_for_one_layer_is_a_finding():
    def overflows_in_fp16(x):
        return (x.half() * 2.0**4).float() * 2.0**-4

    found, report = train(network(overflows_in_fp16, at=-1), scale=2.0**26)
    assert ("scale too high", "2", 0) in found
    assert report.skips[0].step == 0
    assert not [what for what, _, _ in found if what.startswith("first")]


def line_of(text):
    """Return the line of this file that contains a text, as a report names lines."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return f"{Path(__file__).name}:{1 + next(n for n, line in enumerate(lines) if text in line)}"


def test_finding_names_the_line_to_repair():
    def clip(model, optimizer, scaler):
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # too early

    def exploding(x):
        return (x * 1e4 + 100).exp()  # inf

    for code, name, arguments in (
        (
            "# too early",
            "clipped while scaled",
            {"model": network(), "scale": 2.0**16, "before_step": clip},
        ),
        (
            "scaler.scale(loss).backward()",
            "underflow",
            {"model": network(), "scale": 2.0**-24, "dtype": torch.float16},
        ),
        ("# inf", "first inf", {"model": network(exploding)}),
    ):
        _, report = train(**arguments)
        finding = next(f for f in report.findings if f.name == name)
        assert finding.line == line_of(code), name
        assert f"{finding.line}, step {finding.step}" in str(report)
        for text in (finding.line, name, "Repair."):
            assert text in report._repr_html_()


def test_clipping_after_unscaling_is_not_a_finding():
    def unscale_and_clip(model, optimizer, scaler):
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)

    found, report = train(network(), scale=2.0**16, before_step=unscale_and_clip)
    assert found == set()
    assert report.watched[0].scale == 2.0**16
    assert report.watched[0].clipped < 1


@pytest.mark.parametrize("by", ["scaler", "engine"])
def test_steps_skipped_by_labkit_are_counted(by) -> None:
    for taken, factors in ((8, [float("inf"), 1.0, 1.0] * 4), (0, [float("inf")] * 12)):
        model = network()
        sgd = partial(torch.optim.SGD, lr=0.1)
        engine = Engine(model, sgd, RECIPES["O1"])

        def loss_of(factor, model=model):
            return cross_entropy(model(X), Y) * factor

        def step(factor, engine=engine):
            engine.zero_grad()
            with engine.forward():
                loss = cross_entropy(engine(X), Y) * factor
            engine.backward(loss)
            engine.step()

        by_scaler = usual(model, sgd(model.parameters()), loss_of, factors, scaler_class=GradScaler)
        case = by_scaler if by == "scaler" else Case(step, factors, model, engine.optimizer)
        report = diagnose(**vars(case), steps=12)
        assert (
            f"12 steps were run; {taken} optimizer steps were taken and {12 - taken} skipped"
            in str(report)
        )
        assert report.healthy is (taken > 0)
        assert ("scale falls" in str(report)) is (taken == 0)
        assert "optimizer holds other parameters" not in str(report)


def penalty(scaled: bool | None) -> Report:
    """Return the report of a training with a gradient penalty.

    Args:
        scaled: None trains without a scaler. Otherwise the penalty is computed of the unscaled loss
            (False), or of the scaled loss and divided by the scale (True).
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 32), nn.Softplus(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", enabled=scaled is not None)
    with watch(model, every=1) as w:
        for _ in range(3):
            points = torch.randn(32, 2).requires_grad_()
            optimizer.zero_grad()
            loss = model(points).mean()
            root = scaler.scale(loss) if scaled else loss
            (gradient,) = torch.autograd.grad(root, points, create_graph=True)
            gradient = gradient / (scaler.get_scale() if scaled else 1.0)
            scaler.scale(loss + 10 * ((32 * gradient).norm(dim=1) - 1).pow(2).mean()).backward()
            scaler.step(optimizer)
            scaler.update()
    return w.report()


def test_a_step_that_two_optimizers_skip_counts_once() -> None:
    model = network()
    parameters = list(model.parameters())
    optimizers = [torch.optim.SGD(half, lr=0.1) for half in (parameters[:3], parameters[3:])]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**18)
    with watch(model, every=1) as w:
        for _ in range(12):
            scaler.scale(model(X).sum() * torch.inf).backward()
            for optimizer in optimizers:
                scaler.step(optimizer)
                optimizer.zero_grad()
            scaler.update()
    report = w.every_finding()
    assert [skip.step for skip in report.skips] == list(range(12))
    assert set(report.skips[0].culprits) == set(dict(model.named_parameters()))
    assert Kind.SCALE_FALLS in {each.name for each in report.findings}


def test_a_skip_of_repaired_gradients_names_no_parameter() -> None:
    def repair(model, optimizer, scaler):
        model[0].weight.grad[0, 0] = torch.inf
        scaler.unscale_(optimizer)
        # the scaler has found inf already, and skips the step
        model[0].weight.grad.nan_to_num_()

    _, report = train(network(), steps=1, scale=1.0, before_step=repair)
    assert [skip.why for skip in report.skips] == ["inf or NaN in a gradient"]
    (unseen,) = report.unseen
    assert unseen.startswith("source of inf or NaN: it did not appear in the replay")


def test_safe_scales_of_a_gradient_penalty() -> None:
    """A scale that is a power of two must not change the safe scales of a run without a scaler."""
    without = penalty(None).safe_scales()
    assert without == penalty(False).safe_scales() == penalty(True).safe_scales()
    # Three layers have activation gradients, and four parameters have weight gradients.
    assert len(without) == 3 + 4


def small(factor: float, inputs: float, scale: float | None) -> Case:
    """Return a training whose loss or inputs are so small that weight gradients underflow in FP16.

    Args:
        factor: A factor of the loss.
        inputs: A factor of the inputs; with small ones, only weight gradients underflow.
        scale: The loss scale, or None for none.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    batches = [(inputs * torch.randn(256, 8), torch.randint(3, (256,))) for _ in range(5)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss_of(batch):
        return cross_entropy(model(batch[0]), batch[1]) * factor

    return usual(
        model, optimizer, loss_of, batches, init_scale=scale or 1.0, enabled=scale is not None
    )


def test_safe_scales_of_a_format_are_those_of_its_name() -> None:
    _, report = train(network(), every=1)
    assert report.safe_scales("E5M2") == report.safe_scales(E5M2) != report.safe_scales(FP16)
    assert report.one_scale(torch.float8_e5m2) == report.one_scale(E5M2)
    for tolerance in (-0.1, 1.0, float("nan")):
        with pytest.raises(ValueError, match="tolerance: expected a share from 0 to below 1"):
            report.safe_scales(tolerance=tolerance)


def test_scale_below_the_window_is_a_finding() -> None:
    for factor, inputs, scale, healthy in (
        (2.0**-6, 1.0, None, False),
        (2.0**-12, 1.0, None, False),
        (2.0**-10, 1.0, 2.0**3, False),
        (2.0**-6, 1.0, 2.0**16, True),
        (1.0, 2.0**-13, None, False),
        (1.0, 2.0**-13, 2.0**10, True),
    ):
        report = diagnose(**vars(small(factor, inputs, scale)))
        assert report.healthy is healthy, report
        if not healthy:
            names = {finding.name for finding in report.of(Status.BAD)}
            assert names & {"scale too low", "underflow"}
        case = small(factor, inputs, scale)
        with watch(case.model, every=1 if inputs == 1.0 else 2) as w:
            for batch in case.batches:
                case.step(batch)
        assert ("Nothing wrong was found" in str(w.report())) is healthy
        remedy = "Let the loss scale be larger" if scale else "Scale the loss (GradScaler)"
        assert (f"-> {remedy}" in str(w.report())) is not healthy
        if inputs != 1.0:
            expected = [] if healthy else ["scale too low"]
            assert [f.name for f in w.report().findings] == expected


@pytest.mark.parametrize("other", [0.0, (1e-30, 1e-3)])
def test_a_dominating_epsilon_is_the_one_of_its_group(other: object) -> None:
    first = nn.Parameter(torch.ones(3))
    second = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([{"params": [first], "eps": 1e-4}, {"params": [second]}], lr=0.1)
    first.grad = torch.full((3,), 1e-8)
    optimizer.step()
    # The last group has an epsilon that is not compared.
    optimizer.param_groups[1]["eps"] = other
    found = dominating_epsilon(optimizer)
    assert found is not None
    eps, root = found
    assert eps == 1e-4
    assert root == pytest.approx(1e-8)


def test_roots_of_a_complex_weight_are_compared_with_epsilon() -> None:
    weight = nn.Parameter(torch.ones(3, dtype=torch.complex64))
    optimizer = torch.optim.Adam([weight], eps=1e-4)
    # only the real parts have roots far below eps: half of all roots
    weight.grad = torch.full((3,), complex(1e-8, 1.0))
    optimizer.step()
    assert dominating_epsilon(optimizer) is None
