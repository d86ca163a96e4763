"""The exercises of lesson 05: their references against torch's own policy, autograd and softmax."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import nn

from labkit.amp import autocast
from tests.grading.cases import cases, reference

HEADER = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"


def torchs_list(macro: str) -> set[str]:
    """Return the operations that the header of CUDA autocast puts on one list."""
    text = HEADER.read_text()
    body = text[text.index(f"#define {macro}(") :]
    return set(re.findall(r"_\((\w+)", body[: body.index("\n\n")]))


def test_the_lists_are_those_of_torchs_header() -> None:
    lower, fp32 = torchs_list("AT_FORALL_LOWER_PRECISION_FP"), torchs_list("AT_FORALL_FP32")
    set_dtype, promote = torchs_list("AT_FORALL_FP32_SET_OPT_DTYPE"), torchs_list("AT_FORALL_PROMOTE")
    assert "matmul" in lower
    for (op,) in cases("autocast.lists", range(20)):
        name = {"cross_entropy": "nll_loss", "einsum": "matmul"}.get(op, op)  # what the two are made of
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
        x, weight = (t.clone().requires_grad_() for t in (x, weight))  # two cases may share a tensor
        wide = nn.functional.linear(x.half().float(), weight.half().float(), bias.half().float())
        y = wide.half()
        y.backward(grad_y)
        ours, grad_x, grad_weight = reference("autocast.linear")(x.detach(), weight.detach(), bias, grad_y)
        assert torch.equal(ours, y)
        # The backward of `.half().float()` rounds each FP32 product to FP16, and casts it.
        assert torch.equal(grad_x, x.grad)
        assert torch.equal(grad_weight, weight.grad)


def test_the_softmax_is_torchs_in_fp64_rounded() -> None:
    for (logits,) in cases("autocast.softmax"):
        exact = torch.softmax(logits.double(), dim=1).numpy().astype("float16")
        torch.testing.assert_close(
            reference("autocast.softmax")(logits), torch.from_numpy(exact), rtol=2.0**-10, atol=2.0**-24
        )


def test_the_cache_uses_what_casting_anew_would_give() -> None:
    for weights, events in cases("autocast.cache"):
        now = {name: weight.clone() for name, weight in weights.items()}
        expected = []
        for kind, name in events:
            if kind == "edit":
                now[name] = now[name] * 0.5
            elif kind == "use":
                expected.append(now[name].half())
        used, casts = reference("autocast.cache")(weights, events)
        assert all(torch.equal(a, b) for a, b in zip(used, expected, strict=True))
        assert casts <= len(used)
