"""The engine: a training step under each recipe, several losses, clipping, and refusals.

Steps are compared with loops of plain torch that cast, scale and unscale explicitly.
"""

import copy
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator
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

from labkit.amp import (
    DYNAMIC,
    NO_SCALING,
    RECIPES,
    Engine,
    Recipe,
    ScalerConfig,
    WeightRounding,
    autocast,
    static,
)
from labkit.formats import BF16, E4M3, E5M2, FP16
from labkit.frameworks import torch_amp
from labkit.frameworks.apex import amp as apex
from labkit.gemm import SEQUENTIAL_FP16
from labkit.interop import round_tensor
from labkit.modes import open_modes

SGD = partial(torch.optim.SGD, lr=0.1)
ADAM = partial(torch.optim.Adam, lr=1e-2)
O2 = Recipe("O2", model=FP16, scaler=ScalerConfig(init_scale=2.0**10, growth_interval=3))
STATIC_SCALE = Recipe("FP16 static", model=FP16, scaler=static(2.0**10))


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 3))


def batch(step: int, rows: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(rows, 6, generator=generator), torch.randint(3, (rows,), generator=generator)


def loss_of(engine: Engine, step: int, **size: int) -> Tensor:
    inputs, targets = batch(step, **size)
    with engine.forward():
        return F.cross_entropy(engine(inputs), targets)


def train(engine: Engine, steps: int, *, same_batch: bool = False) -> list[float]:
    """Train some steps and return their losses; the loop is the same for all precisions."""
    losses = []
    for step in range(steps):
        engine.zero_grad()
        loss = loss_of(engine, 0 if same_batch else step)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def unchanged(before: list[Tensor], after: Iterable[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


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


def test_two_losses_have_a_scale_each() -> None:
    engine = Engine(net(), SGD, O2, losses=2)
    before = [m.clone() for m in engine.weights.master_weights]
    engine.backward(loss_of(engine, 0), loss_id=0)
    engine.backward(loss_of(engine, 1) * 1e8, loss_id=1)
    # A finite backward pass of loss 1 at another scale does not hide that the first overflowed.
    engine.scalers[1] = replace(engine.scalers[1], scale=2.0)
    engine.backward(loss_of(engine, 2), loss_id=1)
    assert not engine.step().stepped
    # Only the scale of the loss that overflowed backs off.
    assert [s.scale for s in engine.scalers] == [2.0**10, 1.0]
    assert engine.scalers[0].growth_tracker == 1
    assert unchanged(before, engine.weights.master_weights)


def test_gradients_of_two_losses_are_unscaled_by_their_scales() -> None:
    mixed = Engine(net(), SGD, O2, losses=2)
    mixed.scalers[1] = replace(mixed.scalers[1], scale=1.0)
    plain = Engine(net(), SGD, RECIPES["FP32"], losses=2)
    for engine, step in itertools.product((mixed, plain), range(3)):
        engine.backward(loss_of(engine, step), loss_id=step % 2)
    gradients = mixed.gradients()
    for name, gradient in plain.gradients().items():
        # FP16 gradients are compared with FP32 ones, by the largest of the tensor.
        torch.testing.assert_close(
            gradients[name], gradient, rtol=0, atol=0.02 * float(gradient.abs().max())
        )


def test_a_sum_of_gradients_beyond_fp16_is_found_under_o3() -> None:
    """The optimizer of O3 steps in FP16, where two finite gradients may have an infinite sum."""
    for flat in (False, True):
        engine = Engine(nn.Linear(1, 1), SGD, "O3", flat=flat)
        before = engine.model.weight.item()
        for _ in range(2):
            engine.backward(engine(torch.full((1, 1), 4e4)).sum())
        report = engine.step()
        assert report.found_inf
        assert not report.stepped
        assert engine.model.weight.item() == before


def test_an_unknown_loss_id_is_refused() -> None:
    engine = Engine(net(), SGD, O2, losses=2)
    with pytest.raises(
        IndexError, match=r"below 2, the engine's losses, got 2. Construct the engine with losses=3"
    ):
        engine.backward(torch.zeros(()), loss_id=2)
    with pytest.raises(IndexError, match="expected a loss_id of 0 or more, got -1"):
        engine.backward(torch.zeros(()), loss_id=-1)
    for loss_id in (True, 0.0, "first", None):
        with pytest.raises(TypeError, match="loss_id: expected an int, got"):
            engine.backward(torch.zeros(()), loss_id=loss_id)


def test_two_engines_share_a_loss_and_step_independently() -> None:
    first = Engine(nn.Linear(4, 4), SGD, O2)
    second = Engine(nn.Linear(4, 1), SGD, Recipe("FP32", scaler=DYNAMIC))
    # A factor of 1e5 overflows the first engine's FP16 gradients; the second's are in FP32.
    for overflow in (1.0, 1e5):
        for engine in (first, second):
            engine.zero_grad()
        with first.forward():
            middle = first(torch.ones(2, 4))
        with second.forward():
            loss = (second(middle) * overflow).mean()
        first.backward(loss, other_engines=[second])
        assert second.model.bias.grad.item() == 2.0**10 * overflow, "not the smaller scale"
        if overflow == 1.0:
            # dL/dW1 is the mean of W2^T x over the two rows of ones in x, so each row of the
            # gradient repeats one number of W2.
            expected = second.model.weight.detach().T.expand(4, 4)
            torch.testing.assert_close(first.gradients()["weight"], expected, rtol=1e-2, atol=1e-3)
        assert [first.step().stepped, second.step().stepped] == [overflow == 1.0, True]
    assert first.scaler.scale == 2.0**9
    assert second.scaler.scale == 2.0**16


def test_clipping_equals_torch_s_on_unscaled_gradients() -> None:
    for flat, max_norm in itertools.product((False, True), (0.1, 100.0)):
        engine, other = (
            Engine(net(), SGD, STATIC_SCALE, flat=is_flat) for is_flat in (flat, False)
        )
        for fresh in (engine, other):
            fresh.backward(loss_of(fresh, 0))
        unscaled = [nn.Parameter(torch.zeros_like(g)) for g in other.gradients().values()]
        for p, g in zip(unscaled, other.gradients().values(), strict=True):
            p.grad = g.clone()
        torch.testing.assert_close(
            engine.clip(max_norm), nn.utils.clip_grad_norm_(unscaled, max_norm)
        )
        for ours, theirs in zip(engine.gradients().values(), unscaled, strict=True):
            torch.testing.assert_close(ours, theirs.grad)
        assert engine.step().stepped


def test_a_maximal_norm_that_is_not_positive_is_refused() -> None:
    for max_norm in (-1.0, 0.0, math.nan):
        with pytest.raises(ValueError, match="expected max_norm > 0"):
            Engine(net(), SGD, O2).clip(max_norm)


def test_sparse_gradients_of_two_losses_are_clipped() -> None:
    updates = []
    for sparse in (True, False):
        torch.manual_seed(0)
        engine = Engine(nn.Embedding(5, 2, sparse=sparse), SGD, STATIC_SCALE, losses=2)
        before = engine.weights.master_weights[0].clone()
        for loss_id, factor in enumerate((1.0, 2.0)):
            with engine.forward():
                engine.backward((engine(torch.tensor([1, 1, 3])) * factor).sum(), loss_id)
        # Row 1 occurs twice: both losses add 2 + 4 to its two elements, and 1 + 2 to those of row
        # 3.
        assert engine.clip(0.5).item() == pytest.approx((2 * (6**2 + 3**2)) ** 0.5)
        engine.step()
        updates.append(before - engine.weights.master_weights[0])
    assert torch.equal(*updates)
    # The learning rate of 0.1 times the maximal norm of 0.5.
    assert updates[0].norm().item() == pytest.approx(0.05, rel=1e-4)


def test_clipping_of_scaled_gradients_is_refused() -> None:
    def clip_in_place(engine: Engine) -> None:
        nn.utils.clip_grad_norm_(engine.model.parameters(), 1.0)

    def replace_gradients(engine: Engine) -> None:
        for p in engine.model.parameters():
            p.grad = p.grad.clamp(-1, 1)

    engine = Engine(net(), SGD, STATIC_SCALE)
    for clip in (clip_in_place, replace_gradients):
        engine.backward(loss_of(engine, 0))
        clip(engine)
        with pytest.raises(
            RuntimeError, match=r"changed between.*1024 times too large. .*engine.clip\(max"
        ):
            engine.step()
        engine.zero_grad()
    # Without a loss scale, the caller clips what it sees.
    fp32 = Engine(net(), SGD, RECIPES["FP32"])
    fp32.backward(loss_of(fp32, 0))
    replace_gradients(fp32)
    assert fp32.step().stepped


def test_a_step_with_a_closure_is_refused() -> None:
    engine = Engine(net(), SGD, O2)
    for call in (lambda: engine.step(lambda: 0.0), lambda: engine.step(closure=lambda: 0.0)):
        with pytest.raises(RuntimeError, match="expected no closure, got one"):
            call()


def test_gradients_are_used_by_one_step_only() -> None:
    engine = Engine(net(), SGD, O2)
    engine.backward(loss_of(engine, 0))
    engine.step()
    with pytest.raises(RuntimeError, match="got those of the last step"):
        engine.step()
    with pytest.raises(RuntimeError, match=r"already used by a step. Call zero_grad"):
        engine.backward(loss_of(engine, 1))


def test_backward_after_clipping_is_refused() -> None:
    engine = Engine(net(), SGD, O2)
    engine.backward(loss_of(engine, 1))
    engine.clip(1.0)
    with pytest.raises(RuntimeError, match=r"already unscaled, and maybe clipped. Call zero_grad"):
        engine.backward(loss_of(engine, 2))


def test_gradients_of_another_backward_are_refused() -> None:
    engine = Engine(net(), SGD, O2)
    loss_of(engine, 0).backward()
    for call in (engine.step, lambda: engine.backward(loss_of(engine, 1))):
        with pytest.raises(
            RuntimeError, match=r"Call engine.backward\(loss\), not loss.backward\(\)"
        ):
            call()
    engine.zero_grad()
    engine.backward(loss_of(engine, 1))
    loss_of(engine, 2).backward()
    with pytest.raises(RuntimeError, match=r"another engine's backward\(\) mixes two scales"):
        engine.step()


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
    before = copy.deepcopy(model)
    gradients = [p.grad.clone() for p in model.parameters()]
    tensors = [*model.parameters(), *model.buffers()]
    with pytest.raises(ValueError, match="Invalid learning rate"):
        Engine(model, partial(torch.optim.SGD, lr=-1.0), recipe, flat=flat)
    # Tensors are the same objects, so that optimizers and ties that hold them still do.
    assert [id(tensor) for tensor in [*model.parameters(), *model.buffers()]] == [
        id(tensor) for tensor in tensors
    ]
    pairs = zip(model.parameters(), before.parameters(), gradients, strict=True)
    for now, then, gradient in pairs:
        assert now.dtype == torch.float32
        assert torch.equal(now, then)
        assert now.grad.dtype == torch.float32
        assert torch.equal(now.grad, gradient)
    x = torch.randn(4, 6)
    assert torch.equal(model(x)[0], before(x)[0])


# The meta device takes the place of a GPU to which only a part of the tensors was moved.
META = torch.device("meta")
TWO_DEVICES = (
    "(?i)linear: expected all tensors on one device, got some on .* Move the batch to where the "
    "weights are"
)


def test_an_engine_moves_its_model_to_the_device() -> None:
    engine = Engine(nn.Linear(2, 2), SGD, RECIPES["FP32"], device="meta")
    assert engine.model.weight.device == META


@pytest.mark.parametrize("name", RECIPES)
def test_a_batch_on_another_device_is_refused(name: str) -> None:
    engine = Engine(nn.Linear(4, 1), SGD, RECIPES[name])
    assert engine.device == torch.device("cpu")
    with pytest.raises(RuntimeError, match=TWO_DEVICES), engine.forward():
        engine(torch.randn(3, 4, device=META))


@pytest.mark.parametrize("name", RECIPES)
def test_a_model_without_data_is_refused(name: str) -> None:
    for model in (
        nn.Linear(4, 1, device=META),
        nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, device=META)),
    ):
        with pytest.raises(RuntimeError, match="with data, got one on the meta device"):
            Engine(model, SGD, RECIPES[name])


@pytest.mark.parametrize("dtype", [None, torch.float16])
def test_autocast_refuses_a_batch_on_another_device(dtype: torch.dtype | None) -> None:
    region = torch_amp.autocast("cpu", dtype)
    with pytest.raises(RuntimeError, match=TWO_DEVICES), region:
        nn.Linear(4, 1)(torch.randn(3, 4, device=META))


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_apex_refuses_a_batch_on_another_device(level: str) -> None:
    model = apex.initialize(nn.Linear(4, 1), opt_level=level, verbosity=0)
    try:
        with pytest.raises(RuntimeError, match=TWO_DEVICES):
            model(torch.randn(3, 4, device=META))
    finally:
        # Under O1, apex casts torch's own functions until it is disabled.
        apex.initialize(nn.Linear(4, 1), enabled=False)


def test_a_step_without_gradients_changes_nothing() -> None:
    engine = Engine(net(), partial(ADAM, weight_decay=0.1), O2)
    before = [m.clone() for m in engine.weights.master_weights]
    # Once there is no backward pass, and once its loss depends on no parameter of the model.
    for unrelated in (None, torch.zeros((), requires_grad=True)):
        if unrelated is not None:
            engine.backward(unrelated * 1.0)
        report = engine.step()
        assert not report.stepped
        assert not report.found_inf
        assert "no gradient: call engine.backward" in report.why
    assert unchanged(before, engine.weights.master_weights)
    assert engine.scaler == Engine(net(), SGD, O2).scaler
    # The engine can be trained afterwards.
    train(engine, 2)
    assert not unchanged(before, engine.weights.master_weights)


def test_a_skipped_step_reports_the_gradients_at_fault() -> None:
    for clipped in (False, True):
        engine = Engine(net(), SGD, replace(O2, scaler=ScalerConfig(init_scale=2.0**30)))
        before = [p.clone() for p in engine.model.parameters()]
        engine.backward(loss_of(engine, 0))
        if clipped:
            assert not engine.clip(1.0).isfinite()
        report = engine.step()
        assert not report.stepped
        assert report.found_inf
        assert report.scale == 2.0**30
        assert report.skips_in_a_row == 1
        assert "3.weight" in report.culprits
        assert set(report.culprits) <= {name for name, _ in engine.model.named_parameters()}
        assert engine.scaler.scale == 2.0**29
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


def test_a_model_that_cannot_be_trained_is_refused() -> None:
    with torch.inference_mode():
        made_for_inference = nn.Linear(2, 1)
    cases: list[tuple[object, str]] = [
        (
            nn.Linear(2, 1).requires_grad_(False),
            r"trainable parameters in this Linear, got 2 frozen ones",
        ),
        (nn.Sequential(nn.ReLU()), r"trainable parameters in this Sequential, got none"),
        ([nn.Linear(2, 1), nn.ReLU()], r"got a list. .*nn.Sequential\(\*layers\)"),
        (torch.relu, r"a torch.nn.Module, got a builtin"),
        (
            nn.Linear(2, 1, dtype=torch.complex64),
            r"parameter 'weight': expected a real dtype.*view_as_real",
        ),
        (
            nn.Linear(2, 1).double(),
            r"parameter 'weight': expected FP32 or less, got FP64.*model.float\(\)",
        ),
        (
            made_for_inference,
            r"parameter 'weight': .*made under torch.inference_mode\(\).*deepcopy",
        ),
    ]
    for recipe, (model, expected) in itertools.product(("FP32", "O1", "O2"), cases):
        with pytest.raises(ValueError, match=expected):
            Engine(model, SGD, RECIPES[recipe])


def test_an_optimizer_in_place_of_a_factory_is_refused() -> None:
    with pytest.raises(TypeError, match=r"got an? SGD\. For example: partial"):
        Engine(net(), SGD(net().parameters()), "O2")


def test_an_engine_without_losses_is_refused() -> None:
    with pytest.raises(ValueError, match="losses: expected 1 or more, got 0"):
        Engine(net(), SGD, RECIPES["O2"], losses=0)


def test_an_engine_takes_the_name_of_a_recipe() -> None:
    assert Engine(net(), SGD, "O2").recipe is RECIPES["O2"]


def test_a_loss_without_a_graph_or_of_four_elements_is_refused() -> None:
    engine = Engine(net(), SGD, O2)
    for loss, error, expected in (
        (3.0, TypeError, r"got 3.0, which has no graph. Leave out .item\(\)"),
        (
            torch.zeros(4, requires_grad=True),
            ValueError,
            r"one element, got shape \(4,\). Take its mean",
        ),
        (torch.tensor(1.0), RuntimeError, "expected a loss that depends on parameters"),
    ):
        with pytest.raises(error, match=expected):
            engine.backward(loss)
    engine.backward(loss_of(engine, 0))
    assert engine.step().stepped


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


CONTRADICTIONS = [
    ({"autocast": FP16, "model": FP16}, "autocast keeps the model in FP32.*Take autocast=None"),
    ({"model": E4M3}, "FP32, FP16 or BF16, got E4M3. Take model=FP32, autocast=E4M3"),
    (
        {"model": FP16, "optimizer": BF16, "master_weights": False},
        r"FP32 or the model's FP16, got BF16",
    ),
    ({"model": FP16, "optimizer": FP16}, "Take optimizer=FP32 or master_weights=False"),
    (
        {"model": FP16, "rounding": WeightRounding.KAHAN},
        "without FP32 masters.*master_weights=False",
    ),
    ({"master_weights": False, "rounding": WeightRounding.STOCHASTIC}, "Take a 16-bit model"),
    ({"gradient_format": E5M2}, "autocast is None"),
    ({"model": FP16, "gradient_format": E5M2}, "autocast is None"),
    ({"accumulator": SEQUENTIAL_FP16}, "this recipe is FP32"),
]


def test_a_contradiction_is_refused_with_its_reason() -> None:
    for settings, expected in CONTRADICTIONS:
        with pytest.raises(ValueError, match=rf"recipe 'mine': .*{expected}"):
            Recipe("mine", **settings)


def test_an_fp16_accumulator_stops_counting_at_2048() -> None:
    # FP16 represents every integer up to 2048, and 2048 + 1 rounds to 2048.
    for recipe in (RECIPES["O1"], replace(RECIPES["O2"], scaler=NO_SCALING)):
        dtype = torch.float32 if recipe.autocast else torch.float16
        a = torch.ones(1, 4096, dtype=dtype)
        b = torch.ones(4096, 1, dtype=dtype)
        with recipe.forward("cpu"):
            assert (a @ b).item() == 4096
        with replace(recipe, accumulator=SEQUENTIAL_FP16).forward("cpu"):
            assert (a @ b).item() == 2048


def test_fp8_rounds_forward_to_e4m3_and_gradients_to_e5m2() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 8)
    layer = nn.Linear(8, 3, bias=False)
    with RECIPES["FP8"].forward("cpu"):
        y = layer(x)
    gradient = torch.randn(4, 3)
    y.backward(gradient)
    with torch.no_grad():
        plain = F.linear(round_tensor(x, E4M3), round_tensor(layer.weight, E4M3))
        assert torch.equal(y, round_tensor(plain, E4M3))
        expected = round_tensor(round_tensor(gradient, E5M2).T @ round_tensor(x, E4M3), E5M2)
        assert torch.equal(layer.weight.grad, expected)


def test_recipes_as_json_differ_in_more_than_the_name() -> None:
    names_by_text: dict[str, list[str]] = {}
    for name, recipe in RECIPES.items():
        row = recipe.as_dict()
        del row["name"]
        names_by_text.setdefault(json.dumps(row), []).append(name)
    # O0 is apex's name for FP32.
    assert [names for names in names_by_text.values() if len(names) > 1] == [["FP32", "O0"]]


def test_a_recipe_as_a_dict_has_plain_values() -> None:
    row = replace(RECIPES["O2"], accumulator=SEQUENTIAL_FP16).as_dict()
    assert row["model"] == "FP16"
    assert row["autocast"] is None
    assert row["scaler"]["init_scale"] == 65536.0
    assert row["accumulator"] == SEQUENTIAL_FP16.name
