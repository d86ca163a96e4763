"""A training step of the engine under each recipe.

Steps are compared with loops of plain torch that cast, scale and unscale explicitly.
"""

import copy
import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from labkit.amp import RECIPES, Engine, ScalerConfig, autocast, static
from labkit.modes import open_modes
from tests.amp.small_network import (
    ADAM,
    O2,
    SGD,
    STATIC_SCALE,
    batch,
    loss_of,
    net,
    train,
    unchanged,
)


@dataclass(frozen=True)
class PlainStep:
    """A step of `o2_in_plain_torch`.

    Attributes:
        loss: The loss.
        skipped: Whether a gradient was inf or NaN.
        scale: The loss scale after the step.
        masters: The FP32 weights after the step.
    """

    loss: float
    skipped: bool
    scale: float
    masters: list[Tensor]


def o2_in_plain_torch(steps: int) -> Iterator[PlainStep]:
    """Train `net` with weights and activations in FP16; norms, sums, masters and Adam in FP32.

    The dynamic scale grows after two clean steps, from 2^18, at which gradients overflow.
    """
    masters = [p.detach() for p in net().parameters()]
    # Parameters 2 and 3 are those of the norm, which stays in FP32.
    masters = [m if i in (2, 3) else m.half().float() for i, m in enumerate(masters)]
    masters = [m.clone().requires_grad_() for m in masters]
    optimizer = torch.optim.Adam(masters, lr=1e-2)
    scale = 2.0**18
    clean = 0
    for step in range(steps):
        inputs, targets = batch(step)
        w1, b1, gain, shift, w2, b2 = copies = [
            (m.detach().clone() if i in (2, 3) else m.detach().half()).requires_grad_()
            for i, m in enumerate(masters)
        ]
        x = F.linear(inputs.half().float(), w1.float(), b1.float()).half()
        x = F.layer_norm(x.float(), (16,), gain, shift).half()
        x = F.linear(F.relu(x).float(), w2.float(), b2.float()).half()
        loss = F.cross_entropy(x.float(), targets)
        (loss * scale).backward()
        gradients = [c.grad.float() / scale for c in copies]
        skipped = not all(g.isfinite().all() for g in gradients)
        if skipped:
            scale /= 2
            clean = 0
        else:
            for m, g in zip(masters, gradients, strict=True):
                m.grad = g
            optimizer.step()
            clean += 1
            if clean == 2:
                scale *= 2
                clean = 0
        yield PlainStep(loss.item(), skipped, scale, masters)


def test_o2_is_bit_equal_to_a_plain_loop() -> None:
    recipe = replace(O2, scaler=ScalerConfig(init_scale=2.0**18, growth_interval=2))
    engine = Engine(net(), ADAM, recipe)
    skipped = 0
    for number, plain in enumerate(o2_in_plain_torch(40)):
        engine.zero_grad()
        loss = loss_of(engine, number)
        engine.backward(loss)
        report = engine.step()
        assert loss.item() == plain.loss
        assert report.stepped is not plain.skipped
        assert engine.scaler.scale == plain.scale
        assert unchanged(plain.masters, engine.weights.master_weights)
        skipped += plain.skipped
    # Enough steps are skipped to test the scale, and enough are taken to test the updates.
    assert 5 < skipped < 20


def test_the_same_loop_learns_under_any_recipe() -> None:
    # These two are examples of failure: every step is skipped, or small updates are lost.
    for name in sorted(set(RECIPES) - {"FP16 static too high", "O3"}):
        losses = train(Engine(net(), ADAM, RECIPES[name]), 30, same_batch=True)
        assert losses[-1] < 0.5 * losses[0], name


def test_fp16_gradients_are_added_in_fp32() -> None:
    # In FP16, 40,000 + 40,000 overflows and 1 + 2^-11 rounds to 1.
    layer = nn.Linear(2, 1, bias=False)
    engine = Engine(
        layer, partial(torch.optim.SGD, lr=1.0), replace(STATIC_SCALE, scaler=static(1.0))
    )
    for inputs in ([40000.0, 1.0], [40000.0, 2.0**-11]):
        with engine.forward():
            engine.backward(engine(torch.tensor([inputs])).sum())
    assert engine.gradients()["weight"].tolist() == [[80000.0, 1 + 2.0**-11]]
    assert engine.step().stepped


def test_a_step_is_skipped_if_the_sum_of_gradients_overflows() -> None:
    engine = Engine(nn.Linear(1, 1, bias=False), SGD, RECIPES["FP32"], losses=2)
    before = engine.model.weight.detach().clone()
    # Each gradient is 2e38; FP32 ends at 3.4e38.
    for loss_id in (0, 1):
        engine.backward(engine(torch.full((1, 1), 2e38)).sum(), loss_id)
    assert not engine.step().stepped
    assert torch.equal(engine.model.weight, before)


def test_gradients_are_used_by_one_step_only() -> None:
    engine = Engine(net(), SGD, O2)
    engine.backward(loss_of(engine, 0))
    engine.step()
    with pytest.raises(RuntimeError, match="got those of the last step"):
        engine.step()
    with pytest.raises(RuntimeError, match=r"already used by a step. Call zero_grad"):
        engine.backward(loss_of(engine, 1))


class TwoHeads(nn.Module):
    """A trunk and two heads, of which a batch's loss reaches one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Linear(4, 4)
        self.heads = nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 1)])

    def forward(self, x: Tensor, head: int) -> Tensor:
        return self.heads[head](self.trunk(x)).tanh()


def test_gradients_are_set_to_none_or_to_zeros_as_torch_does() -> None:
    """Momentum and weight decay move what has a gradient of zeros, and leave what has none."""
    make = partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1)
    batches = [torch.randn(3, 4, generator=torch.Generator().manual_seed(i)) for i in range(4)]
    for options in ({"set_to_none": True}, {"set_to_none": False}, {}):
        plain = TwoHeads()
        theirs = make(plain.parameters())
        for head, x in zip((0, 1, 1, 0), batches, strict=True):
            theirs.zero_grad(**options)
            plain(x, head).mean().backward()
            theirs.step()
        zeros = options == {"set_to_none": False}
        for name in ("FP32", "O1", "O2", "O3", "BF16", "FP8 delayed", "FP16 Kahan"):
            scaler = replace(RECIPES[name].scaler, init_scale=1.0)
            engine = Engine(TwoHeads(), make, replace(RECIPES[name], scaler=scaler))
            for head, x in zip((0, 1, 1, 0), batches, strict=True):
                engine.zero_grad(**options)
                # Without a backward pass there is nothing to step with, zeros or not.
                assert engine.step().stepped is False
                with engine.forward():
                    loss = engine(x, head).mean()
                engine.backward(loss)
                assert engine.step().stepped
                engine = copy.deepcopy(engine)
            for ours, want in zip(engine.model.parameters(), plain.parameters(), strict=True):
                torch.testing.assert_close(
                    ours.float(), want, atol=0.0 if name == "FP32" else 0.05, rtol=0
                )
            engine.zero_grad(**options)
            assert all(
                not p.grad.any() if zeros else p.grad is None for p in engine.model.parameters()
            )
            # A state dict is refused while gradients wait for a step; here none does.
            engine.state_dict()


def test_flat_masters_step_with_gradients_of_zeros() -> None:
    """A flat master needs the gradients of all its parameters, and zeros are gradients."""
    make = partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1)
    inputs = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    flat = Engine(TwoHeads(), make, RECIPES["O2"], flat=True)
    for heads in ((0, 1), (0,)):
        flat.zero_grad(set_to_none=False)
        flat.backward(sum(flat(inputs, head).mean() for head in heads))
        assert flat.step().stepped


@pytest.mark.parametrize("recipe", ["O2", "O3", "BF16", "FP16 no master", "O1"])
@pytest.mark.parametrize("flat", [False, True])
def test_a_model_is_unchanged_after_an_error_of_its_optimizer(recipe: str, flat: bool) -> None:
    model = nn.Sequential(net(), nn.BatchNorm1d(3), nn.LSTM(3, 2))
    model(torch.randn(4, 6))[0].sum().backward()
    tensors = [*model.parameters(), *model.buffers()]
    before = copy.deepcopy(tensors)
    gradients = [p.grad.clone() for p in model.parameters()]
    with pytest.raises(ValueError, match="Invalid learning rate"):
        Engine(model, partial(torch.optim.SGD, lr=-1.0), recipe, flat=flat)
    after = [*model.parameters(), *model.buffers()]
    # Tensors are the same objects, so that optimizers and ties that hold them still do.
    assert list(map(id, after)) == list(map(id, tensors))
    assert [tensor.dtype for tensor in after] == [tensor.dtype for tensor in before]
    assert unchanged(before, after)
    assert {p.grad.dtype for p in model.parameters()} == {torch.float32}
    assert unchanged(gradients, [p.grad for p in model.parameters()])


def test_a_step_without_gradients_changes_nothing() -> None:
    engine = Engine(net(), partial(ADAM, weight_decay=0.1), O2)
    before = [m.clone() for m in engine.weights.master_weights]
    engine.step()
    assert unchanged(before, engine.weights.master_weights)
    assert engine.scaler == Engine(net(), SGD, O2).scaler


def test_a_step_without_a_backward_pass_is_not_taken() -> None:
    report = Engine(net(), SGD, O2).step()
    assert (report.stepped, report.found_inf) == (False, False)
    assert "no gradient: call engine.backward" in report.why


def test_a_step_after_a_loss_of_no_parameter_is_not_taken() -> None:
    engine = Engine(net(), SGD, O2)
    engine.backward(torch.zeros((), requires_grad=True) * 1.0)
    report = engine.step()
    assert (report.stepped, report.found_inf) == (False, False)
    assert "no gradient: call engine.backward" in report.why


def test_an_engine_trains_after_a_step_without_gradients() -> None:
    engine = Engine(net(), SGD, O2)
    before = [m.clone() for m in engine.weights.master_weights]
    engine.step()
    train(engine, 2)
    assert not unchanged(before, engine.weights.master_weights)


class TestSkippedStep:
    """A step whose gradients overflow, clipped before it or not."""

    @pytest.fixture(params=[False, True], ids=["not clipped", "clipped"])
    def engine(self, request: pytest.FixtureRequest) -> Engine:
        engine = Engine(net(), SGD, replace(O2, scaler=ScalerConfig(init_scale=2.0**30)))
        engine.backward(loss_of(engine, 0))
        if request.param:
            assert not engine.clip(1.0).isfinite()
        return engine

    def test_its_report_names_the_gradients_at_fault(self, engine: Engine) -> None:
        culprits = engine.step().culprits
        assert "3.weight" in culprits
        assert set(culprits) <= {name for name, _ in engine.model.named_parameters()}

    def test_its_report_counts_it(self, engine: Engine) -> None:
        report = engine.step()
        assert (report.stepped, report.found_inf, report.skips_in_a_row) == (False, True, 1)

    def test_it_halves_the_scale(self, engine: Engine) -> None:
        assert engine.step().scale == 2.0**30
        assert engine.scaler.scale == 2.0**29

    def test_it_changes_no_weight(self, engine: Engine) -> None:
        before = [p.clone() for p in engine.model.parameters()]
        engine.step()
        assert unchanged(before, engine.model.parameters())


def test_many_skips_in_a_row_are_explained() -> None:
    for config, weight_is_nan, factor, expected in (
        (static(2.0**30), False, 1.0, "static, 2^30, and does not change: use a smaller one"),
        (ScalerConfig(init_scale=1.0), True, 1.0, "Weight '3.weight' holds inf or NaN itself"),
        (
            ScalerConfig(init_scale=1.0),
            False,
            math.inf,
            "The unscaled loss is inf: the cause is in the forward pass",
        ),
    ):
        engine = Engine(net(), SGD, replace(O2, scaler=config))
        reasons = []
        if weight_is_nan:
            engine.model[3].weight.data[0, 0] = math.nan
        for step in range(6):
            engine.zero_grad()
            engine.backward(loss_of(engine, step) * factor)
            reasons.append(engine.step().why)
        # A few skipped steps are how a scaler finds its scale.
        assert "in a row" not in reasons[3]
        assert "in a row" in reasons[5]
        assert expected in reasons[5]


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a .functools.lru_cache.")
def test_a_compiled_model_trains_bit_for_bit_as_a_plain_one() -> None:
    torch._dynamo.reset()
    plain, fp32 = (train(Engine(net(), ADAM, RECIPES[row]), 3) for row in ("O2", "FP32"))
    engine = Engine(torch.compile(net(), backend="eager"), ADAM, RECIPES["O2"])
    assert plain != fp32, "the recipe changes no loss, so the test shows nothing"
    assert train(engine, 3) == plain
    # torch.compile prefixes names by "_orig_mod.", and a state dict has the model's own names.
    assert next(iter(engine.state_dict()["model"])) == "0.weight"


def test_gradients_edited_before_a_step_are_checked_again() -> None:
    for flat, value in itertools.product((False, True), (0.0, math.nan, math.inf)):
        engine = Engine(net(), SGD, O2, flat=flat)
        engine.backward(loss_of(engine, 0))
        for gradient in engine.gradients().values():
            gradient.zero_()
        engine.gradients()["1.bias"][3] = value
        # `fp32_model` returns the masters themselves, so they are copied.
        before = [value.clone() for value in engine.fp32_model().values()]
        scale = engine.scaler.scale
        report = engine.step()
        overflowed = value != 0.0
        assert report.stepped is not overflowed
        assert report.found_inf is overflowed
        assert report.culprits == (("1.bias",) if overflowed else ())
        assert engine.scaler.scale == (scale / 2 if overflowed else scale)
        assert unchanged(before, engine.fp32_model().values()), (flat, value)


def test_an_engine_takes_the_name_of_a_recipe() -> None:
    assert Engine(net(), SGD, "O2").recipe is RECIPES["O2"]


class WithLoss(nn.Module):
    """A model that returns its loss, as many do.

    Args:
        wrapped: Whether the loss is an attribute of another object.
    """

    def __init__(self, *, wrapped: bool) -> None:
        super().__init__()
        self.inner = net()
        self.wrapped = wrapped

    def forward(self, inputs: Tensor, targets: Tensor) -> object:
        loss = F.cross_entropy(self.inner(inputs), targets)
        return SimpleNamespace(loss=loss) if self.wrapped else loss


def test_a_loss_computed_in_fp16_is_reported() -> None:
    for wrapped in (False, True):
        engine = Engine(WithLoss(wrapped=wrapped), SGD, RECIPES["O2"])
        reasons = []
        for step in range(2):
            engine.zero_grad()
            with engine.forward():
                out = engine(*batch(step))
            warning = pytest.warns(UserWarning, match="computed its loss itself, in FP16")
            with warning if step == 0 else nullcontext():
                engine.backward(out.loss if wrapped else out)
            reasons.append(engine.step().why)
        assert reasons[0].startswith("skipped")
        assert "compute the loss outside of it" in reasons[0]
        assert reasons[1] == "taken: every gradient is finite"


def test_a_loss_in_fp32_or_bf16_costs_no_step() -> None:
    """The loss scale of 2^16 overflows a loss in FP16 only."""
    for recipe in ("FP32", "O1", "BF16"):
        engine = Engine(WithLoss(wrapped=False), SGD, RECIPES[recipe])
        with engine.forward():
            loss = engine(*batch(0))
        engine.backward(loss)
        assert engine.step().stepped, recipe


def test_fp32_opens_no_mode() -> None:
    engine = Engine(nn.Linear(2, 2), SGD, RECIPES["FP32"])
    with engine.forward():
        assert open_modes() == ()
    # A copy of the recipe is as plain as the recipe itself.
    with copy.deepcopy(RECIPES["FP32"]).forward("cpu"):
        assert open_modes() == ()


def test_fp32_suspends_an_outer_region_of_autocast() -> None:
    engine = Engine(nn.Linear(2, 2), SGD, RECIPES["FP32"])
    with autocast(), engine.forward():
        assert engine.model(torch.ones(1, 2)).dtype == torch.float32


class ConvertedOutput(nn.Linear):
    """A layer that returns what `convert` makes of its output and itself."""

    convert: Callable[[Tensor, nn.Module], object]

    def forward(self, inputs: Tensor) -> object:
        return self.convert(super().forward(inputs), self)


class TensorSubclass(Tensor):
    pass


CONVERSIONS: dict[str, Callable[[Tensor, nn.Module], object]] = {
    "a tensor of another class": lambda y, _: y.as_subclass(TensorSubclass),
    "a parameter": lambda _, layer: layer.weight,
    "an array beside a tensor": lambda y, _: (y, np.ones(3)),
    "a dict": lambda y, _: {"logits": y, "states": [y, None]},
    "nothing": lambda _y, _layer: None,
}


def test_outputs_of_any_structure_come_back_in_fp32() -> None:
    recipes = ("FP32", "O1", "O2")
    for recipe, (output, convert) in itertools.product(recipes, CONVERSIONS.items()):
        model = ConvertedOutput(2, 2)
        model.convert = convert
        plain = model(torch.ones(3, 2))
        engine = Engine(model, SGD, RECIPES[recipe])
        with engine.forward():
            outputs = engine(torch.ones(3, 2))
        # A parameter is cast to a plain tensor; every other type stays.
        assert type(outputs) is type(plain) or isinstance(plain, nn.Parameter), (recipe, output)
        assert all(
            t.dtype == torch.float32 for t in tree_leaves(outputs) if isinstance(t, Tensor)
        ), (recipe, output)
