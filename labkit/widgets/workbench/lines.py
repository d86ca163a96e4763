"""The same run in plain torch: a short program, made from the positions of the knobs.

Each knob is a line or a part of one. What a knob leaves out is left out of the program, so FP32 is
the loop that everybody knows, and O2 is that loop with its eight extra lines.

Invariant: the program runs as it is, with `model`, `make_optimizer`, `loss_of` and `batches`
defined; in FP32 its losses are those of the workbench bit for bit. In FP16 they are torch's own
kernels', which round elsewhere.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import fields
from functools import partial

import torch

from labkit.amp import DYNAMIC, WeightRounding
from labkit.train import Task
from labkit.widgets.live_training.knobs import (
    Knobs,
    Scaling,
    epsilon_text,
    has_epsilon,
    optimizer_name,
    recipe_of,
)

DTYPES = {"FP16": "torch.float16", "BF16": "torch.bfloat16"}
# of a scaler's knobs
TORCH_HAS = ("init_scale", "growth_factor", "backoff_factor", "growth_interval")


def torch_lines(knobs: Knobs, task: Task) -> str:
    """Return the program. It leaves the loss of each step in `losses`.

    >>> from labkit.train import TASKS
    >>> print(torch_lines(Knobs(format="FP32"), TASKS["digits"]))
    import torch
    <BLANKLINE>
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for inputs, targets in batches:
        loss = loss_of(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    """
    dtype = DTYPES.get(knobs.format, "")
    scale = f"2.0**{knobs.log2_scale}"
    converted = knobs.format != "FP32" and not knobs.autocast
    masters = converted and knobs.masters != "none"
    refused = knobs.scaling is Scaling.DYNAMIC and converted and knobs.masters == "none"
    scaling = Scaling.STATIC if refused else knobs.scaling
    stepped = "masters" if masters else "model.parameters()"
    scaler = recipe_of(knobs).scaler
    imports, optimizer = _optimizer(knobs, task, stepped)

    head = ["import torch", *imports, "", *_cannot(knobs, refused)]
    if converted:
        head.append(f"model.to({dtype})")
        norms = [
            "for layer in model.modules():",
            '    if "Norm" in type(layer).__name__:',
            "        layer.float()",
        ]
        head += norms if knobs.norms_fp32 else []
    if masters:
        head.append("masters = [p.detach().float().clone() for p in model.parameters()]")
    head += optimizer
    if scaling is Scaling.DYNAMIC:
        own = {name: getattr(scaler, name) for name in ("growth_factor", "backoff_factor")}
        changed = [
            f"{name}={value:g}" for name, value in own.items() if value != getattr(DYNAMIC, name)
        ]
        options = ", ".join(
            [f"init_scale={scale}", *changed, f"growth_interval={scaler.growth_interval}"]
        )
        head.append(
            f"scaler = torch.amp.GradScaler(next(model.parameters()).device.type, {options})"
        )

    inputs = (
        f"inputs.to({dtype}) if inputs.is_floating_point() else inputs" if converted else "inputs"
    )
    widened = "" if knobs.format == "FP32" else ".float()"
    body = [f"loss = loss_of(model({inputs}){widened}, targets)"]
    if knobs.format != "FP32" and knobs.autocast:
        body = [f"with torch.autocast(inputs.device.type, {dtype}):", f"    {body[0]}"]
    scaled = {
        Scaling.OFF: "loss",
        Scaling.STATIC: f"(loss * {scale})",
        Scaling.DYNAMIC: "scaler.scale(loss)",
    }[scaling]
    body.append(f"{scaled}.backward()")
    divided = f" / {scale}" if scaling is Scaling.STATIC else ""
    if masters:
        body.append("for p, master in zip(model.parameters(), masters):")
        body.append(f"    master.grad, p.grad = p.grad.float(){divided}, None")
    elif divided:
        body += ["for p in model.parameters():", f"    p.grad = p.grad{divided}"]
    if scaling is Scaling.DYNAMIC:
        body += ["scaler.step(optimizer)", "scaler.update()"]
    elif scaling is Scaling.STATIC and scaler.skip_on_inf:
        body += [f"if all(p.grad.isfinite().all() for p in {stepped}):", "    optimizer.step()"]
    else:
        body.append("optimizer.step()")
    body.append("optimizer.zero_grad()")
    if masters:
        body += ["for p, master in zip(model.parameters(), masters):", "    p.data.copy_(master)"]
        if knobs.masters == "forgotten":
            body.append("    master.data.copy_(p)  # forgets what 16 bits do not hold")
    body.append("losses.append(loss.item())")
    return "\n".join(
        [*head, "losses = []", "for inputs, targets in batches:", *("    " + line for line in body)]
    )


def _cannot(knobs: Knobs, refused: bool) -> list[str]:
    """Return what plain torch does otherwise, as comments.

    `refused` means that it has no dynamic scaling for this run.
    """
    lines = []
    recipe = recipe_of(knobs)
    if knobs.given.tf32 and knobs.format == "FP32":
        switches = ("cuda.matmul", "cudnn.conv", "cudnn.rnn")
        lines.append(
            "# on a GPU from Ampere on; elsewhere the operands of products were rounded "
            "to TF32 here"
        )
        lines += [f'torch.backends.{name}.fp32_precision = "tf32"' for name in switches]
    if knobs.accumulator != "FP32" and knobs.format != "FP32":
        lines.append(
            f"# plain torch cannot choose what products add up in; here it was {knobs.accumulator}"
        )
    if recipe.products is not None:
        lines.append(
            "# plain torch multiplies FP32 numbers; here layers multiplied "
            f"{recipe.products.forward.name}"
        )
    if recipe.rounding is not WeightRounding.NEAREST:
        lines.append(
            "# plain torch rounds weights to nearest; here the rounding was "
            f"{recipe.rounding.value}"
        )
    ours = {
        f.name: getattr(recipe.scaler, f.name)
        for f in fields(recipe.scaler)
        if f.name not in TORCH_HAS
    }
    beyond = [
        f"{name}={value:g}" for name, value in ours.items() if value != getattr(DYNAMIC, name)
    ]
    if beyond and knobs.scaling is Scaling.DYNAMIC and not refused:
        lines.append(
            f"# torch's GradScaler has no such knobs; here they stood at {', '.join(beyond)}"
        )
    if refused:
        lines.append("# torch's GradScaler refuses 16-bit gradients, so the scale stands still")
    return lines


def _optimizer(knobs: Knobs, task: Task, weights: str) -> tuple[list[str], list[str]]:
    """Return an import, and the lines that make the optimizer.

    Optimizers of torch take the knobs as options, others have them turned afterwards. One that no
    import reaches, or whose options cannot be typed, is the task's own `make_optimizer`.
    """
    made = task.make_optimizer
    name = optimizer_name(task)
    maker = getattr(made, "func", made)
    options = made.keywords if isinstance(made, partial) and not made.args else {}
    typed = {key: repr(value) for key, value in options.items()}
    try:
        plain = [ast.literal_eval(text) for text in typed.values()] == list(
            options.values()
        ) and "lr" in typed
    except (SyntaxError, ValueError):
        # a tensor, a number of numpy's, infinity
        plain = False
    epsilon = (
        {"eps": epsilon_text(knobs.epsilon)}
        if has_epsilon(task) and knobs.epsilon is not None
        else {}
    )
    if plain and getattr(torch.optim, name, None) is maker:
        typed |= {"lr": f"{float(options['lr']) * 2.0**knobs.log2_lr:g}"} | epsilon
        return [], [f"optimizer = torch.optim.{name}({_arguments(weights, typed)})"]
    module = getattr(maker, "__module__", None) or "__main__"
    if plain and module != "__main__" and getattr(sys.modules.get(module), name, None) is maker:
        imports = [f"from {module} import {name}"]
        lines = [f"optimizer = {name}({_arguments(weights, typed)})"]
    else:
        imports = []
        lines = [f"optimizer = make_optimizer({weights})  # the task's own: {name}"]
    turns = [f'    group["lr"] *= 2.0**{knobs.log2_lr}'] if knobs.log2_lr else []
    turns += [f'    group["eps"] = {text}' for text in epsilon.values()]
    if turns:
        lines += ["for group in optimizer.param_groups:", *turns]
    return imports, lines


def _arguments(weights: str, options: dict[str, str]) -> str:
    return ", ".join([weights, *(f"{key}={text}" for key, text in options.items())])
