"""The same run in plain torch: a short program, made from the positions of the knobs.

Each knob adds lines, or parts of lines, if its position needs them. So the program for FP32 is the
usual training loop, and that for O2 has a few more lines.

Invariant: the program runs if `model`, `make_optimizer`, `loss_of` and `batches` are defined. In
FP32 its losses equal those of the workbench bit for bit, as long as they are finite. In FP16 they
differ, since torch's kernels round at other places than the emulation.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
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
# The settings of a scaler that torch's GradScaler has, too.
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
    program = _Program(knobs, task)
    body = [f"    {line}" for line in program.body()]
    return "\n".join([*program.head(), "losses = []", "for inputs, targets in batches:", *body])


class _Program:
    """The loop of a run, from the positions of its knobs.

    Attributes:
        dtype: the 16-bit dtype; "" in FP32.
        converts: whether the weights are converted to it.
        has_masters: whether the optimizer steps FP32 masters.
        refuses_dynamic: whether torch's GradScaler refuses the gradients of this run.
        scaling: how the loss is scaled here.
        scale: the loss scale, as an expression.
        stepped: the weights that the optimizer steps, as an expression.
    """

    def __init__(self, knobs: Knobs, task: Task) -> None:
        self.knobs = knobs
        self.task = task
        self.dtype = DTYPES.get(knobs.format, "")
        self.converts = knobs.format != "FP32" and not knobs.autocast
        self.has_masters = self.converts and knobs.masters != "none"
        wants_dynamic = knobs.scaling is Scaling.DYNAMIC
        self.refuses_dynamic = wants_dynamic and self.converts and not self.has_masters
        self.scaling = Scaling.STATIC if self.refuses_dynamic else knobs.scaling
        self.scale = f"2.0**{knobs.log2_scale}"
        self.stepped = "masters" if self.has_masters else "model.parameters()"

    def head(self) -> list[str]:
        """Return the lines before the loop."""
        imports, optimizer = _optimizer(self.knobs, self.task, self.stepped)
        lines = ["import torch", *imports, "", *_cannot(self.knobs, self.refuses_dynamic)]
        if self.converts:
            lines.append(f"model.to({self.dtype})")
            if self.knobs.norms_fp32:
                lines += [
                    "for layer in model.modules():",
                    '    if "Norm" in type(layer).__name__:',
                    "        layer.float()",
                ]
        if self.has_masters:
            lines.append("masters = [p.detach().float().clone() for p in model.parameters()]")
        lines += optimizer
        if self.scaling is Scaling.DYNAMIC:
            lines.append(self._scaler())
        return lines

    def _scaler(self) -> str:
        """Return the line that makes the scaler; its factors are printed if torch has others."""
        config = recipe_of(self.knobs).scaler
        options = [f"init_scale={self.scale}"]
        for name in ("growth_factor", "backoff_factor"):
            value = getattr(config, name)
            if value != getattr(DYNAMIC, name):
                options.append(f"{name}={value!r}")
        options.append(f"growth_interval={config.growth_interval}")
        device = "next(model.parameters()).device.type"
        return f"scaler = torch.amp.GradScaler({device}, {', '.join(options)})"

    def body(self) -> list[str]:
        """Return the lines of a step."""
        return [
            *self._forward(),
            *self._backward(),
            *self._step(),
            "optimizer.zero_grad()",
            *self._copy_back(),
            "losses.append(loss.item())",
        ]

    def _forward(self) -> list[str]:
        inputs = "inputs"
        if self.converts:
            inputs = f"inputs.to({self.dtype}) if inputs.is_floating_point() else inputs"
        to_fp32 = "" if self.knobs.format == "FP32" else ".float()"
        loss = f"loss = loss_of(model({inputs}){to_fp32}, targets)"
        if self.knobs.format != "FP32" and self.knobs.autocast:
            return [f"with torch.autocast(inputs.device.type, {self.dtype}):", f"    {loss}"]
        return [loss]

    def _backward(self) -> list[str]:
        """Return the backward pass, and the division of its gradients by a static scale."""
        loss = {
            Scaling.OFF: "loss",
            Scaling.STATIC: f"(loss * {self.scale})",
            Scaling.DYNAMIC: "scaler.scale(loss)",
        }[self.scaling]
        lines = [f"{loss}.backward()"]
        division = f" / {self.scale}" if self.scaling is Scaling.STATIC else ""
        if self.has_masters:
            lines.append("for p, master in zip(model.parameters(), masters):")
            lines.append(f"    master.grad, p.grad = p.grad.float(){division}, None")
        elif division:
            lines.append("for p in model.parameters():")
            lines.append(f"    p.grad = p.grad{division}")
        return lines

    def _step(self) -> list[str]:
        if self.scaling is Scaling.DYNAMIC:
            return ["scaler.step(optimizer)", "scaler.update()"]
        # in FP32, a run whose gradients are inf is lost with and without skips
        may_skip = self.scaling is Scaling.STATIC or bool(self.dtype)
        if may_skip and recipe_of(self.knobs).scaler.skip_on_inf:
            finite = f"all(p.grad.isfinite().all() for p in {self.stepped})"
            return [f"if {finite}:", "    optimizer.step()"]
        return ["optimizer.step()"]

    def _copy_back(self) -> list[str]:
        """Return the copy of the masters to the weights, if there are masters."""
        if not self.has_masters:
            return []
        lines = ["for p, master in zip(model.parameters(), masters):", "    p.data.copy_(master)"]
        if self.knobs.masters == "forgotten":
            lines.append("    master.data.copy_(p)  # forgets what 16 bits do not hold")
        return lines


def _cannot(knobs: Knobs, refuses_dynamic: bool) -> list[str]:
    """Return comments about settings of the run that plain torch cannot reproduce.

    Args:
        knobs: the positions of the knobs.
        refuses_dynamic: whether torch's GradScaler refuses the gradients of this run.
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
    beyond = []
    for setting in fields(recipe.scaler):
        value = getattr(recipe.scaler, setting.name)
        if setting.name not in TORCH_HAS and value != getattr(DYNAMIC, setting.name):
            beyond.append(f"{setting.name}={value!r}")
    if beyond and knobs.scaling is Scaling.DYNAMIC and not refuses_dynamic:
        lines.append(f"# torch's GradScaler has no such knobs; here they were {', '.join(beyond)}")
    if refuses_dynamic:
        lines.append("# torch's GradScaler refuses 16-bit gradients, so the scale stands still")
    return lines


def _optimizer(knobs: Knobs, task: Task, weights: str) -> tuple[list[str], list[str]]:
    """Return the import of the optimizer if it needs one, and the lines that make it.

    The knobs are options of an optimizer of torch. For another optimizer, lines change its
    parameter groups. If an optimizer cannot be imported, or its options cannot be written as Python
    literals, the program calls the task's `make_optimizer`.

    Args:
        knobs: The positions of the knobs.
        task: The task.
        weights: The weights that the optimizer steps, as an expression.
    """
    made = task.make_optimizer
    name = optimizer_name(task)
    maker = getattr(made, "func", made)
    options = made.keywords if isinstance(made, partial) and not made.args else {}
    typed = {key: repr(value) for key, value in options.items()}
    can_be_typed = "lr" in typed and _reads_back(typed, options)
    epsilon = {}
    if has_epsilon(task) and knobs.epsilon is not None:
        epsilon["eps"] = epsilon_text(knobs.epsilon)
    if can_be_typed and getattr(torch.optim, name, None) is maker:
        typed |= {"lr": repr(float(options["lr"]) * 2.0**knobs.log2_lr)} | epsilon
        return [], [f"optimizer = torch.optim.{name}({_arguments(weights, typed)})"]
    module = getattr(maker, "__module__", None) or "__main__"
    is_imported = getattr(sys.modules.get(module), name, None) is maker
    if can_be_typed and module != "__main__" and is_imported:
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


def _reads_back(typed: Mapping[str, str], options: Mapping[str, object]) -> bool:
    """Return whether the texts of options, as Python literals, equal the options."""
    try:
        return {name: ast.literal_eval(text) for name, text in typed.items()} == options
    # The text of a tensor, of a number of numpy or of infinity is not a literal.
    except (SyntaxError, ValueError):
        return False


def _arguments(weights: str, options: dict[str, str]) -> str:
    return ", ".join([weights, *(f"{key}={text}" for key, text in options.items())])
