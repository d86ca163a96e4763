"""The exercises of lessons 05 to 07: their references against torch and its optimizers."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from labkit.amp import ScalerState, autocast
from labkit.grading import EXERCISES
from labkit.grading.judge import draw_cases
from tests.grading.cases import SEEDS, cases, reference

# --- lesson 05: autocast ---

HEADER = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"


def torchs_list(macro: str) -> set[str]:
    """Return the operations that the header of CUDA autocast puts on one list."""
    text = HEADER.read_text()
    body = text[text.index(f"#define {macro}(") :]
    return set(re.findall(r"_\((\w+)", body[: body.index("\n\n")]))


def test_the_lists_are_those_of_torchs_header() -> None:
    lower = torchs_list("AT_FORALL_LOWER_PRECISION_FP")
    fp32 = torchs_list("AT_FORALL_FP32")
    set_dtype = torchs_list("AT_FORALL_FP32_SET_OPT_DTYPE")
    promote = torchs_list("AT_FORALL_PROMOTE")
    assert "matmul" in lower
    for (op,) in cases("autocast.lists", range(20)):
        # These two are not on the header's lists: they call an operation that is.
        name = {"cross_entropy": "nll_loss", "einsum": "matmul"}.get(op, op)
        if name in lower:
            expected = "allow"
        elif name in fp32 | set_dtype:
            expected = "deny"
        else:
            expected = "promote" if name in promote else "keep"
        assert reference("autocast.lists")(op) == expected, op


def test_the_dtypes_are_those_that_flow_when_the_program_is_run() -> None:
    dtypes = {"FP16": torch.float16, "FP32": torch.float32}
    names = {dtype: name for name, dtype in dtypes.items()}
    run = {
        "allow": lambda operands: operands[0] @ operands[-1],
        "deny": lambda operands: torch.exp(operands[0]),
        "promote": lambda operands: torch.stack(operands).sum(0, dtype=torch.stack(operands).dtype),
        "keep": lambda operands: torch.relu(operands[0]),
    }
    for steps, given in cases("autocast.dtypes"):
        known = {name: torch.zeros(2, 2, dtype=dtypes[dtype]) for name, dtype in given.items()}
        results = []
        with autocast():
            for result, rule, operands in steps:
                known[result] = run[rule]([known[name] for name in operands])
                results.append(names[known[result].dtype])
        assert reference("autocast.dtypes")(steps, given) == results


def test_the_linear_layer_is_torchs_autograd_through_casts() -> None:
    for x, weight, bias, grad_y in cases("autocast.linear"):
        # two cases may share a tensor
        x, weight = (t.clone().requires_grad_() for t in (x, weight))
        wide = nn.functional.linear(x.half().float(), weight.half().float(), bias.half().float())
        y = wide.half()
        y.backward(grad_y)
        ours, grad_x, grad_weight = reference("autocast.linear")(
            x.detach(), weight.detach(), bias, grad_y
        )
        assert torch.equal(ours, y)
        # The backward of `.half().float()` rounds each FP32 product to FP16, and casts it.
        assert torch.equal(grad_x, x.grad)
        assert torch.equal(grad_weight, weight.grad)


def test_the_softmax_is_torchs_in_fp64_rounded() -> None:
    for (logits,) in cases("autocast.softmax"):
        exact = torch.softmax(logits.double(), dim=1).numpy().astype("float16")
        torch.testing.assert_close(
            reference("autocast.softmax")(logits),
            torch.from_numpy(exact),
            rtol=2.0**-10,
            atol=2.0**-24,
        )


def test_the_cache_uses_what_a_new_cast_would_give_and_casts_once() -> None:
    for weights, events in cases("autocast.cache"):
        now = {name: weight.clone() for name, weight in weights.items()}
        cached = set()
        expected = []
        expected_casts = 0
        for kind, name in events:
            if kind == "edit":
                now[name] = now[name] * 0.5
                cached.discard(name)
            elif kind == "close":
                cached.clear()
            else:
                expected.append(now[name].half())
                expected_casts += name not in cached
                cached.add(name)
        used, casts = reference("autocast.cache")(weights, events)
        assert all(torch.equal(a, b) for a, b in zip(used, expected, strict=True))
        assert casts == expected_casts


# --- lesson 06: loss scaling ---


def torchs(
    scale: float, tracker: int = 0, growth_interval: int = 2000, **factors: float
) -> torch.amp.GradScaler:
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=scale, growth_interval=growth_interval, **factors
    )
    # The first call creates the state.
    scaler.scale(torch.zeros(1))
    scaler._growth_tracker.fill_(tracker)
    return scaler


def parameters_with(gradients: list[torch.Tensor]) -> list[torch.nn.Parameter]:
    """Return parameters with these gradients, cast to FP32, since torch.amp unscales no others."""
    found = [
        torch.nn.Parameter(torch.zeros_like(gradient, dtype=torch.float32))
        for gradient in gradients
    ]
    for parameter, gradient in zip(found, gradients, strict=True):
        parameter.grad = gradient.float()
    return found


def checked_cases(id: str) -> list[tuple[str, tuple[Any, ...]]]:
    """Return the calls of an exercise, each with the name of its check."""
    drawn = [(check, seed) for check in EXERCISES[id].checks for seed in SEEDS]
    return [
        (check.name, case)
        for check, seed in drawn
        for case in draw_cases(EXERCISES[id], check, seed)
    ]


def test_advance_is_what_torch_does() -> None:
    for state, found_inf, config in cases("scaling.advance"):
        if 1 in (config.growth_factor, config.backoff_factor):
            factor = config.backoff_factor if found_inf else config.growth_factor
            after = reference("scaling.advance")(state, found_inf, config)
            # torch refuses such factors
            assert after.scale in (state.scale, state.scale * factor)
            continue
        factors = {"growth_factor": config.growth_factor, "backoff_factor": config.backoff_factor}
        scaler = torchs(state.scale, state.growth_tracker, config.growth_interval, **factors)
        (weight,) = parameters_with([torch.tensor([torch.inf if found_inf else 0.0])])
        scaler.step(torch.optim.SGD([weight], lr=0.0))
        scaler.update()
        # torch keeps the scale in FP32, where 1.5 or 3 to these powers is exact: both are equal,
        # not close.
        expected = ScalerState(scaler.get_scale(), scaler._get_growth_tracker())
        assert reference("scaling.advance")(state, found_inf, config) == expected


def test_static_step_is_torchs_sgd_with_the_true_gradient() -> None:
    for check, (weight, gradient_of, scale, lr) in checked_cases("scaling.static_step"):
        parameter = torch.nn.Parameter(weight.clone())
        parameter.grad = gradient_of.gradient.clone()
        if not check.endswith("skips the step"):
            torch.optim.SGD([parameter], lr=lr).step()
        assert torch.equal(
            reference("scaling.static_step")(weight, gradient_of, scale, lr), parameter.detach()
        ), check


def test_clip_is_what_clip_grad_norm_does_after_unscaling() -> None:
    for check, (scaled_grads, scale, max_norm) in checked_cases("scaling.clip"):
        parameters = parameters_with([gradient.float() / scale for gradient in scaled_grads])
        norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
        answer = reference("scaling.clip")(scaled_grads, scale, max_norm)
        if check.endswith("skips the step"):
            assert answer is None
            assert not torch.isfinite(norm)
        else:
            for ours, parameter in zip(answer, parameters, strict=True):
                torch.testing.assert_close(ours, parameter.grad, rtol=64 * 2.0**-24, atol=0)


def test_unscale_is_what_torch_does() -> None:
    for grads, scale, limit in cases("scaling.unscale"):
        # torch has no optimizer without parameters.
        if not grads:
            continue
        scaler = torchs(scale)
        parameters = parameters_with(grads)
        optimizer = torch.optim.SGD(parameters, lr=0.0)
        scaler.unscale_(optimizer)
        found = sum(v.item() for v in scaler._found_inf_per_device(optimizer).values())
        ours, found_inf = reference("scaling.unscale")(grads, scale, limit)
        beyond = [bool((p.grad.abs() > limit).any()) for p in parameters if p.grad is not None]
        assert found_inf == bool(found or any(beyond))
        for mine, parameter in zip(ours, parameters, strict=True):
            torch.testing.assert_close(mine, parameter.grad, rtol=0, atol=0, equal_nan=True)


def test_the_repaired_scaler_is_torchs_where_torchs_is_sound() -> None:
    compared = 0
    for scale, tracker, grads, interval in cases("scaling.repair"):
        # In these cases torch differs: it never grows again, and its scale has no floor.
        if tracker >= interval or scale <= 1.0:
            continue
        scaler = torchs(scale, tracker, interval)
        parameters = parameters_with(grads)
        optimizer = torch.optim.SGD(parameters, lr=0.0)
        scaler.step(optimizer)
        scaler.update()
        finite = all(bool(torch.isfinite(g).all()) for g in grads)
        answer = reference("scaling.repair")(scale, tracker, grads, interval)
        assert answer == (scaler.get_scale(), scaler._get_growth_tracker(), finite)
        compared += 1
    # Most of the cases of each seed are compared.
    assert compared >= 8 * len(SEEDS)


def test_the_ordered_loop_is_a_plain_torch_training_step() -> None:
    """A linear model with SGD, accumulation and clipping has the weights of FP32.

    They differ only by the rounding of gradients to FP16.
    """
    for (loop,) in cases("scaling.order"):
        weight = torch.nn.Parameter(loop.master_weight.clone())
        for batch in loop.batches:
            (weight @ batch / len(loop.batches)).backward()
        torch.nn.utils.clip_grad_norm_([weight], loop.max_norm)
        torch.optim.SGD([weight], lr=0.25).step()
        overflows = any(
            bool(((b / len(loop.batches) * loop.scale).half()).isinf().any()) for b in loop.batches
        )
        before = loop.master_weight.clone()
        after = reference("scaling.order")(loop)
        expected = before if overflows else weight.detach()
        torch.testing.assert_close(after.master_weight, expected, rtol=2.0**-9, atol=2.0**-9)
        assert torch.equal(after.model_weight, after.master_weight.half())


# --- lesson 07: master weights ---


def test_the_master_step_is_torchs_sgd_on_fp32_weights() -> None:
    for master, scaled_grads, scale, lr in cases("master.step"):
        weight = nn.Parameter(master.clone())
        optimizer = torch.optim.SGD([weight], lr=lr)
        for scaled in scaled_grads:
            weight.grad = scaled.float() / scale
            if weight.grad.isfinite().all():
                optimizer.step()
        model, after = reference("master.step")(master, scaled_grads, scale, lr)
        assert torch.equal(after, weight.detach())
        assert torch.equal(model, weight.detach().half())


# An FP32 weight is its own master.
@pytest.mark.parametrize(("model_bits", "with_master"), [(16, False), (16, True), (32, False)])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_the_bill_is_what_torchs_tensors_weigh(
    model_bits: int, with_master: bool, optimizer: str
) -> None:
    weight = nn.Parameter(
        torch.ones(1000, dtype=torch.float16 if model_bits == 16 else torch.float32)
    )
    weight.grad = torch.ones_like(weight)
    stepped = nn.Parameter(weight.detach().float()) if with_master else weight
    stepped.grad = weight.grad.to(stepped.dtype)
    kinds = {
        "sgd": lambda: torch.optim.SGD([stepped]),
        "momentum": lambda: torch.optim.SGD([stepped], momentum=0.9),
        "adam": lambda: torch.optim.Adam([stepped], eps=1e-4),
    }
    made = kinds[optimizer]()
    made.step()
    kept = [weight, weight.grad, *([stepped] if with_master else [])]
    kept += [
        t
        for t in made.state[stepped].values()
        if isinstance(t, torch.Tensor) and t.numel() == weight.numel()
    ]
    moments = {"sgd": 0, "momentum": 1, "adam": 2}[optimizer]
    assert reference("master.memory")(1000, model_bits, with_master, moments) == sum(
        t.nbytes for t in kept
    )


def test_the_groups_are_those_of_real_layers() -> None:
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 3), nn.LayerNorm(3)
    )
    net[0].requires_grad_(False)
    listed = [(name, tuple(p.shape), p.requires_grad) for name, p in net.named_parameters()]
    norms = {
        id(p)
        for m in net.modules()
        if isinstance(m, nn.BatchNorm2d | nn.LayerNorm)
        for p in m.parameters()
    }
    decays = [
        n
        for n, p in net.named_parameters()
        if p.requires_grad and id(p) not in norms and "bias" not in n
    ]
    groups = reference("master.groups")(listed)
    assert groups["decay"] == ["3.weight"]
    assert decays == ["3.weight"]
    assert groups["no decay"] == [n for n, _, trainable in listed if trainable and n not in decays]


def test_the_flat_step_is_torchs_vector_of_parameters() -> None:
    for flat, scaled_grads, scale, lr in cases("master.flat"):
        layers = [
            nn.Parameter(torch.zeros_like(grad, dtype=torch.float32)) for grad in scaled_grads
        ]
        nn.utils.vector_to_parameters(flat.clone(), layers)  # the parameters become views of it
        for layer, grad in zip(layers, scaled_grads, strict=True):
            layer.grad = grad.float() / scale
        torch.optim.SGD(layers, lr=lr).step()
        after, weights = reference("master.flat")(flat, scaled_grads, scale, lr)
        assert torch.equal(after, nn.utils.parameters_to_vector(layers))
        assert all(
            torch.equal(ours, layer.detach().half())
            for ours, layer in zip(weights, layers, strict=True)
        )


def test_the_average_is_torchs_averaged_model() -> None:
    for history, decay in cases("master.ema"):
        net = nn.ParameterList([nn.Parameter(history[0][0].clone())])
        averaged = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(decay))
        averaged.update_parameters(net)  # the first call copies
        for master, stepped in history[1:]:
            if stepped:
                net[0].data.copy_(master)
                averaged.update_parameters(net)
        torch.testing.assert_close(
            reference("master.ema")(history, decay),
            averaged.module[0].detach(),
            rtol=16 * 2.0**-23,
            atol=0,
        )
