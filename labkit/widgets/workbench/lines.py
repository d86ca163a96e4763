"""How is the same run written in plain torch? A short program, made from where the knobs stand.

Idea: each knob is a line or a part of one. What a knob leaves out is left out of the program, so FP32 is the loop that
everybody knows, and O2 is that loop with its eight extra lines.

Invariant: the program runs as it is, given `model`, `make_optimizer`, `loss_of` and `batches`; in FP32 its losses are
the bench's bit for bit. In FP16 they are torch's own kernels', which round elsewhere.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import fields
from functools import partial
from typing import Any

import torch

from labkit.amp import DYNAMIC, WeightRounding
from labkit.train import Task
from labkit.widgets.bench.knobs import Knobs, Scaling, epsilon_text, has_epsilon, optimizer_name, recipe_of

DTYPES = {"FP16": "torch.float16", "BF16": "torch.bfloat16"}
TORCH_HAS = ("init_scale", "growth_factor", "backoff_factor", "growth_interval")  # of a scaler's knobs


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
    converted = knobs.format != "FP32" and not knobs.autocast
    masters = converted and knobs.masters != "none"
    refused = knobs.scaling is Scaling.DYNAMIC and converted and knobs.masters == "none"
    scaling = Scaling.STATIC if refused else knobs.scaling
    head = ["import torch", *_import(task), "", *_cannot(knobs, scaling)]
    if converted:
        head.append(f"model.to({DTYPES[knobs.format]})")
        norms = ["for layer in model.modules():", '    if "Norm" in type(layer).__name__:', "        layer.float()"]
        head += norms if knobs.norms_fp32 else []
    if masters:
        head.append("masters = [p.detach().float().clone() for p in model.parameters()]")
    head += _optimizer(knobs, task, "masters" if masters else "model.parameters()")
    if scaling is Scaling.DYNAMIC:
        scaler = recipe_of(knobs).scaler
        own = {name: getattr(scaler, name) for name in ("growth_factor", "backoff_factor")}
        changed = [f"{name}={value:g}" for name, value in own.items() if value != getattr(DYNAMIC, name)]
        options = [f"init_scale=2.0**{knobs.log2_scale}", *changed, f"growth_interval={scaler.growth_interval}"]
        head.append(f"scaler = torch.amp.GradScaler(next(model.parameters()).device.type, {', '.join(options)})")
    head += ["losses = []", "for inputs, targets in batches:"]
    body = [*_forward(knobs, converted), *_backward(knobs, scaling, masters), "optimizer.zero_grad()"]
    if masters:
        body += ["for p, master in zip(model.parameters(), masters):", "    p.data.copy_(master)"]
        body += ["    master.data.copy_(p)  # forgets what 16 bits do not hold"] * (knobs.masters == "forgotten")
    body.append("losses.append(loss.item())")
    return "\n".join(head + ["    " + line for line in body])


def _cannot(knobs: Knobs, scaling: Scaling) -> list[str]:
    lines = []
    if knobs.given.tf32 and knobs.format == "FP32":
        switches = ("cuda.matmul", "cudnn.conv", "cudnn.rnn")
        lines.append("# on a GPU from Ampere on; elsewhere the operands of products were rounded to TF32 here")
        lines += [f'torch.backends.{name}.fp32_precision = "tf32"' for name in switches]
    if knobs.accumulator != "FP32" and knobs.format != "FP32":
        lines.append(f"# plain torch cannot choose what products add up in; here it was {knobs.accumulator}")
    recipe = recipe_of(knobs)
    if recipe.products is not None:
        lines.append(f"# plain torch multiplies FP32 numbers; here layers multiplied {recipe.products.forward.name}")
    if recipe.rounding is not WeightRounding.NEAREST:
        lines.append(f"# plain torch rounds weights to nearest; here the rounding was {recipe.rounding.value}")
    ours = {f.name: getattr(recipe.scaler, f.name) for f in fields(recipe.scaler) if f.name not in TORCH_HAS}
    beyond = [f"{name}={value:g}" for name, value in ours.items() if value != getattr(DYNAMIC, name)]
    if beyond and scaling is Scaling.DYNAMIC:
        lines.append(f"# torch's GradScaler has no such knobs; here they stood at {', '.join(beyond)}")
    if scaling is not knobs.scaling:
        lines.append("# torch's GradScaler refuses 16-bit gradients, so the scale stands still")
    return lines


def _optimizer(knobs: Knobs, task: Task, weights: str) -> list[str]:
    """Return the lines that make the optimizer: torch's takes the knobs as options, others as the task has them."""
    maker, options = _maker(task), _options(task)
    epsilon = {"eps": epsilon_text(knobs.epsilon)} if has_epsilon(task) and knobs.epsilon is not None else {}
    if options and getattr(torch.optim, optimizer_name(task), None) is maker:
        given = options | {"lr": f"{float(options['lr']) * 2.0**knobs.log2_lr:g}"} | epsilon
        return [f"optimizer = torch.optim.{optimizer_name(task)}({weights}, {_arguments(given)})"]
    if options and _import(task):
        made = [f"optimizer = {optimizer_name(task)}({weights}, {_arguments(options)})"]
    else:
        made = [f"optimizer = make_optimizer({weights})  # the task's own: {optimizer_name(task)}"]
    turns = [f'    group["lr"] *= 2.0**{knobs.log2_lr}'] if knobs.log2_lr else []
    turns += [f'    group["eps"] = {text}' for text in epsilon.values()]
    return made + (["for group in optimizer.param_groups:", *turns] if turns else [])


def _maker(task: Task) -> Any:
    return getattr(task.make_optimizer, "func", task.make_optimizer)


def _import(task: Task) -> list[str]:
    """Return the line that fetches an optimizer from a module of the learner's; none for torch's, or a notebook's."""
    maker, name = _maker(task), optimizer_name(task)
    module = getattr(maker, "__module__", None) or "__main__"
    found = module != "__main__" and getattr(sys.modules.get(module), name, None) is maker
    return [f"from {module} import {name}"] if found and _options(task) and not module.startswith("torch.") else []


def _options(task: Task) -> dict[str, str]:
    """Return a task's options for its optimizer, as they are typed; none where one cannot be, or where `lr` is not."""
    made = task.make_optimizer
    options = made.keywords if isinstance(made, partial) and not made.args else {}
    typed = {key: repr(value) for key, value in options.items()}
    try:
        plain = [ast.literal_eval(text) for text in typed.values()] == list(options.values())
    except (SyntaxError, ValueError):  # a tensor, a number of numpy's, infinity
        plain = False
    return typed if plain and "lr" in typed else {}


def _arguments(options: dict[str, str]) -> str:
    return ", ".join(f"{key}={text}" for key, text in options.items())


def _forward(knobs: Knobs, converted: bool) -> list[str]:
    dtype = DTYPES.get(knobs.format, "")
    if converted:
        cast = f"inputs.to({dtype}) if inputs.is_floating_point() else inputs"
        return [f"loss = loss_of(model({cast}).float(), targets)"]
    if knobs.format == "FP32":
        return ["loss = loss_of(model(inputs), targets)"]
    return [f"with torch.autocast(inputs.device.type, {dtype}):", "    loss = loss_of(model(inputs).float(), targets)"]


def _backward(knobs: Knobs, scaling: Scaling, masters: bool) -> list[str]:
    """Backward, the gradients on their way to who is stepped, and the step."""
    scale = f"2.0**{knobs.log2_scale}"
    divided = f" / {scale}" if scaling is Scaling.STATIC else ""
    lines = {
        Scaling.OFF: ["loss.backward()"],
        Scaling.STATIC: [f"(loss * {scale}).backward()"],
        Scaling.DYNAMIC: ["scaler.scale(loss).backward()"],
    }[scaling]
    if masters:
        lines += [
            "for p, master in zip(model.parameters(), masters):",
            f"    master.grad, p.grad = p.grad.float(){divided}, None",
        ]
    elif divided:
        lines += ["for p in model.parameters():", f"    p.grad = p.grad{divided}"]
    if scaling is Scaling.DYNAMIC:
        return [*lines, "scaler.step(optimizer)", "scaler.update()"]
    if scaling is Scaling.STATIC:
        stepped = "masters" if masters else "model.parameters()"
        if recipe_of(knobs).scaler.skip_on_inf:
            return [*lines, f"if all(p.grad.isfinite().all() for p in {stepped}):", "    optimizer.step()"]
    return [*lines, "optimizer.step()"]
