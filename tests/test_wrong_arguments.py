"""Arguments of a wrong type: the error names the argument and what to pass.

VALID has the arguments of a right call of each public function. Each argument in turn is replaced
by an object of a class that nothing knows. The error must come from a `raise` of the lab, and not
from Python or torch below it.
"""

import ast
import importlib
import inspect
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from fractions import Fraction
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from labkit import amp, formats, gemm, instrument, testing, train

LAB = Path(formats.__file__).parents[1]
PACKAGES = ("formats", "interop", "gemm", "instrument", "amp", "train", "testing")


class Unknown:
    """A kind of argument that no function expects."""

    def __repr__(self) -> str:
        return "<an unknown object>"


SGD = partial(torch.optim.SGD, lr=0.1)
NUMBERS = {"a": 1.0, "b": 2.0, "format": formats.FP16}
HOW = {"rounding": formats.Rounding.NEAREST_EVEN, "overflow": formats.Overflow.TO_INFINITY}
DYNAMIC = amp.DYNAMIC


def half(*shape: int) -> torch.Tensor:
    return torch.ones(*shape).half()


def engine() -> amp.Engine:
    return amp.Engine(nn.Linear(2, 1), SGD, amp.RECIPES["O1"])


def histogram() -> Any:
    return instrument.exponent_histogram(torch.ones(3))


def record() -> Any:
    return train.recorded("digits", "FP32", 0)


def decision() -> Any:
    return amp.decide(amp.ScalerState(8.0), False, DYNAMIC)


def report() -> Any:
    return amp.step_report(decision())


# package.function -> a function that makes its arguments for a call
VALID: dict[str, Callable[[], dict[str, Any]]] = {
    "formats.add": lambda: {**NUMBERS, **HOW},
    "formats.multiply": lambda: {**NUMBERS, **HOW},
    "formats.fused_multiply_add": lambda: {**NUMBERS, "c": 1.0, **HOW},
    "formats.as_block_format": lambda: {"format": "MXFP8"},
    "formats.as_format": lambda: {"format": "FP16"},
    "formats.as_member": lambda: {
        "kind": formats.Rounding,
        "choice": "TOWARD_ZERO",
        "argument": "rounding",
    },
    "formats.classify": lambda: {"codes": [0], "format": formats.FP16},
    "formats.decode": lambda: {"codes": [0], "format": formats.FP16},
    "formats.decode_blocks": lambda: {"blocks": formats.round_blocks(np.ones(32), formats.MXFP8)},
    "formats.encode": lambda: {"values": [1.0], "format": formats.FP16},
    "formats.exact_decimal": lambda: {"value": 1.0},
    "formats.hex_float": lambda: {"value": 1.0},
    "formats.field_bits": lambda: {"code": 0, "format": formats.FP16},
    "formats.join": lambda: {"sign": 0, "exponent": 1, "significand": 0, "format": formats.FP16},
    "formats.next_down": lambda: {"values": 1.0, "format": formats.FP16},
    "formats.next_up": lambda: {"values": 1.0, "format": formats.FP16},
    "formats.parse": lambda: dict(text="0.1", format=formats.FP16, **HOW),
    "formats.round_blocks": lambda: {
        "values": np.ones(32),
        "format": formats.MXFP8,
        "rounding": formats.Rounding.NEAREST_EVEN,
    },
    "formats.round_fraction": lambda: dict(exact=Fraction(1, 3), format=formats.FP16, **HOW),
    "formats.round_to": lambda: dict(values=1.1, format=formats.FP16, **HOW),
    "formats.rounding_interval": lambda: dict(codes=[0], format=formats.FP16, **HOW),
    "formats.split": lambda: {"codes": [0], "format": formats.FP16},
    "formats.sum_compensated": lambda: {
        "values": [1.0],
        "format": formats.FP16,
        "rounding": formats.Rounding.NEAREST_EVEN,
    },
    "formats.sum_pairwise": lambda: {
        "values": [1.0],
        "format": formats.FP16,
        "rounding": formats.Rounding.NEAREST_EVEN,
    },
    "formats.sum_sequential": lambda: {
        "values": [1.0],
        "format": formats.FP16,
        "rounding": formats.Rounding.NEAREST_EVEN,
    },
    "formats.ulp": lambda: {"values": 1.0, "format": formats.FP16},
    "interop.dtype_of": lambda: {"format": formats.FP16},
    "interop.format_of": lambda: {"dtype": torch.float16},
    "interop.as_device": lambda: {"device": "cpu"},
    "interop.round_tensor": lambda: dict(tensor=torch.ones(2), format=formats.FP16, **HOW),
    "gemm.accumulate": lambda: {
        "A": half(2, 2),
        "B": half(2, 2),
        "accumulator": gemm.EXACT,
        "out": formats.FP32,
    },
    "gemm.as_accumulator": lambda: {"accumulator": "exact"},
    "gemm.as_spec": lambda: {"spec": "H100"},
    "gemm.emulate": lambda: {
        "A": half(4, 4),
        "B": half(4, 4),
        "C": None,
        "spec": "H100",
        "out": formats.FP32,
    },
    "gemm.explain": lambda: {"a": [1.0], "b": [1.0], "c": 0.0, "spec": "H100", "out": formats.FP32},
    "gemm.fp32_precision": lambda: {"precision": "ieee"},
    "gemm.half_storage": lambda: {"device": "cpu", "accumulator": "exact"},
    "gemm.has_tf32": lambda: {"device": "cpu"},
    "gemm.matmul": lambda: {"a": half(2, 2), "b": half(2, 2), "accumulator": gemm.EXACT},
    "gemm.tf32_products": lambda: {"device": "cpu"},
    "instrument.exponent_histogram": lambda: {"tensor": torch.ones(2)},
    "instrument.fate": lambda: {"histogram": histogram(), "format": formats.FP16},
    "instrument.merge": lambda: {"histograms": [histogram()]},
    "instrument.probe": lambda: {"model": nn.Linear(1, 1)},
    "instrument.scale_map": lambda: {
        "snapshots": [instrument.snapshot({"a": torch.ones(1)}, step=1, kind="weights")],
        "log2_scales": range(3),
        "format": formats.FP16,
    },
    "instrument.scale_row": lambda: {
        "histogram": histogram(),
        "log2_scales": range(3),
        "format": formats.FP16,
    },
    "instrument.shift": lambda: {"histogram": histogram(), "log2_scale": 1},
    "instrument.snapshot": lambda: {
        "gradients": {"a": torch.ones(1)},
        "step": 1,
        "kind": "weights",
    },
    "instrument.swallowed": lambda: {
        "before": [torch.ones(1)],
        "after": [torch.ones(1)],
        "gradients": [torch.ones(1)],
    },
    "instrument.underflow": lambda: {
        "reference": {"a": torch.ones(1)},
        "observed": {"a": torch.ones(1)},
    },
    "instrument.watch": lambda: {
        "model": nn.Linear(1, 1),
        "every": 1,
        "formats": [formats.FP16],
        "against_fp32_every": 0,
    },
    "instrument.zeros_inside": lambda: {"observed": {"a": torch.ones(1)}},
    "amp.CastGraph": lambda: {"model": nn.Linear(1, 1), "format": formats.FP16},
    "amp.Ema": lambda: {"engine": engine(), "decay": 0.9},
    "amp.Engine": lambda: {
        "model": nn.Linear(2, 1),
        "make_optimizer": SGD,
        "recipe": "O2",
        "device": "cpu",
        "flat": False,
        "losses": 1,
        "seed": 0,
    },
    "amp.Recipe": lambda: {
        "name": "mine",
        "model": "FP16",
        "keep_norms": True,
        "master_weights": True,
        "optimizer": "FP32",
        "scaler": DYNAMIC,
        "rounding": "NEAREST",
        "accumulator": "exact",
        "graph": False,
        "tf32": False,
    },
    "amp.ScalerConfig": lambda: {
        "init_scale": 1024.0,
        "growth_factor": 2.0,
        "backoff_factor": 0.5,
        "growth_interval": 100,
        "dynamic": True,
        "skip_on_inf": True,
        "hysteresis": 1,
        "floor": 1.0,
    },
    "amp.ScalerState": lambda: {"scale": 1024.0, "growth_tracker": 0},
    "amp.Weights": lambda: {
        "model": nn.Linear(2, 1),
        "make_optimizer": SGD,
        "flat": False,
        "master": True,
        "rounding": "NEAREST",
    },
    "amp.advance": lambda: {"state": amp.ScalerState(8.0), "found_inf": False, "config": DYNAMIC},
    "amp.as_recipe": lambda: {"recipe": "O1"},
    "amp.as_recipes": lambda: {"recipes": ["O1"]},
    "amp.autocast": lambda: {"format": formats.FP16, "enabled": True, "cache": True},
    "amp.decide": lambda: {"state": amp.ScalerState(8.0), "found_inf": False, "config": DYNAMIC},
    "amp.must_skip": lambda: {"state": amp.ScalerState(8.0), "found_inf": False, "config": DYNAMIC},
    "amp.initial": lambda: {"config": DYNAMIC},
    "amp.ledger": lambda: {"model": lambda: torch.ones(1), "format": formats.FP16},
    "amp.load_checkpoint": lambda: {"engine": engine()},
    "amp.save_checkpoint": lambda: {"engine": engine()},
    "amp.no_decay_on_norms_and_biases": lambda: {"model": nn.Linear(2, 1), "weight_decay": 0.1},
    "amp.static": lambda: {"scale": 8.0},
    "amp.to_fp32": lambda: {"model": nn.Linear(1, 1)},
    "amp.to_model_format": lambda: {
        "model": nn.Linear(1, 1),
        "format": formats.FP16,
        "keep_norms": True,
    },
    "amp.unscale": lambda: {"gradients": [torch.ones(1)], "scale": 2.0},
    "amp.round_saturating": lambda: {"values": torch.ones(2), "format": formats.E4M3},
    "amp.round_to_blocks": lambda: {"values": torch.ones(2, 32), "format": formats.MXFP8},
    "train.TrainingRun": lambda: {"task": "digits", "recipe": "FP32", "seed": 0, "device": "cpu"},
    "train.as_task": lambda: {"task": "digits"},
    "train.compare": lambda: {"task": "digits", "recipes": ["FP32"], "seeds": [0]},
    "train.load_for_device": lambda: {"device": "cpu"},
    "train.place": lambda: {"device": "cpu"},
    "train.recorded": lambda: {"task": "digits", "recipe": "FP32", "seed": 0},
    "train.steps_per_second": lambda: {
        "task": "digits",
        "recipes": ["FP32"],
        "steps": 1,
        "rounds": 1,
    },
    "train.train": lambda: {"task": "digits", "recipe": "FP32", "steps": 0, "device": "cpu"},
    "train.train_grid": lambda: {"task": "digits", "recipes": ["FP32"], "seeds": [0]},
    "train.watch_step": lambda: {"run": train.TrainingRun("digits", "FP32")},
    "testing.amax": lambda: {"x": torch.ones(2, 2), "dim": 1},
    "testing.arithmetic": lambda: {"accumulator": "FP32"},
    "testing.assert_explained": lambda: {
        "got": half(2, 2) * 2,
        "a": half(2, 2),
        "b": half(2, 2),
        "out": "FP16",
        "accumulator": "FP32",
    },
    "testing.compare": lambda: dict(
        got=half(2, 2) * 2,
        operation=testing.matmul(half(2, 2), half(2, 2)),
        out="FP16",
        accumulator="FP32",
        **HOW,
    ),
    "testing.convolution": lambda: {"x": torch.ones(1, 1, 4, 4), "weight": torch.ones(1, 1, 3, 3)},
    "testing.dot": lambda: {"a": torch.ones(2), "b": torch.ones(2)},
    "testing.layer_norm": lambda: {"x": torch.ones(2, 4), "eps": 1e-5},
    "testing.matmul": lambda: {"a": half(2, 2), "b": half(2, 2)},
    "testing.mean": lambda: {"x": torch.ones(2, 2), "dim": 1},
    "testing.rms_norm": lambda: {"x": torch.ones(2, 4), "eps": 1e-5},
    "testing.softmax": lambda: {"x": torch.ones(2, 2), "dim": 1},
    "testing.sum_error": lambda: {
        "how": testing.arithmetic("FP32"),
        "terms": 4,
        "size": np.ones(1),
    },
    "testing.sum_over": lambda: {"x": torch.ones(2, 2), "dim": 1},
    "testing.unit_roundoff": lambda: {"format": formats.FP16},
}
VALID |= {
    "instrument.layer_outputs": lambda: {"model": nn.Linear(1, 1)},
    "amp.custom_bwd": lambda: {"backward": print},
    "amp.custom_fwd": lambda: {"cast_inputs": "FP32", "forward": print},
    "amp.diagnosis": lambda: {"report": report(), "config": DYNAMIC},
    "amp.float_function": lambda: {"target": "relu"},
    "amp.half_function": lambda: {"target": "relu"},
    "amp.promote_function": lambda: {"target": "relu"},
    "amp.register": lambda: {"target": "relu", "rule": amp.Rule.DENY},
    "amp.layer_scales": lambda: {"model": nn.Sequential(nn.Linear(1, 1)), "log2_scales": {"0": 1}},
    "amp.rotate": lambda: {"tensor": torch.ones(2, 16), "axis": -1},
    "amp.step_report": lambda: {"decision": decision()},
    "amp.store_rounded": lambda: {
        "wide": torch.ones(2),
        "weight": half(2),
        "rounding": "NEAREST",
    },
    "train.memory_bill": lambda: {
        "network": train.TRANSFORMERS[0],
        "recipe": "O2",
        "batch": 1,
        "length": 8,
    },
    "train.largest_batch": lambda: {
        "network": train.TRANSFORMERS[0],
        "recipe": "O2",
        "memory": 10**10,
        "length": 8,
    },
    "train.largest_network": lambda: {"recipe": "O2", "memory": 10**10, "length": 8},
    "train.accuracy": lambda: {"outputs": torch.ones(2, 2), "targets": torch.ones(2).long()},
    "train.dice": lambda: {
        "outputs": torch.ones(1, 2, 2, 2),
        "targets": torch.ones(1, 2, 2).long(),
    },
    "train.bytes_held": lambda: {"engine": engine()},
    "train.gradient_snapshot": lambda: {"run": train.TrainingRun("digits", "FP32")},
    "train.recorded_throughput": lambda: {"records": [record()]},
    "train.throughput_sentence": lambda: {"rates": {"FP32": 1.0}},
    "train.to_picture": lambda: {"shades": torch.ones(2, 3), "step": 1},
}
# Arguments that are used as true or false, which any object is.
TRUTH = {"found_inf", "enabled", "cache", "dynamic", "skip_on_inf", "flat", "master", "keep_norms"}
# Functions that need a file or an hour -> arguments that are passed, but not replaced. Their right
# call is not tested.
INCOMPLETE = {
    "amp.load_checkpoint": {"path": "no-such-file"},
    "amp.save_checkpoint": {"path": "no-such-folder/file"},
    "train.compare": {"folder": "no-such-folder"},
    "train.train_grid": {"folder": "no-such-folder"},
    "train.load_for_device": {"path": "no-such-file"},
    "train.throughput_sentence": {"device": "CPU"},
    "instrument.layer_outputs": {"listen": print},
}


def arguments() -> Iterator[tuple[str, str]]:
    """Yield (function, argument) for each argument of which some kinds are wrong."""
    for name, make in VALID.items():
        for argument in make():
            if argument not in TRUTH:
                yield name, argument


@cache
def raises(file: str) -> list[tuple[int, int]]:
    """Return the first and last lines of the `raise` statements of a file."""
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    return [
        (node.lineno, node.end_lineno or node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise)
    ]


def is_the_labs(error: BaseException) -> bool:
    """Return whether an error has a message and was raised by a `raise` in labkit."""
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    file = frame.f_code.co_filename
    if not file.startswith(str(LAB)) or not str(error):
        return False
    return any(first <= line <= last for first, last in raises(file))


def call(name: str, values: dict[str, Any]) -> None:
    """Call a public function; enter the context manager that it returns, if it returns one."""
    package, _, attribute = name.partition(".")
    function = getattr(importlib.import_module(f"labkit.{package}"), attribute)
    with ExitStack() as stack:
        result = function(**INCOMPLETE.get(name, {}), **values)
        if hasattr(result, "__enter__") and not isinstance(result, torch.Tensor):
            stack.enter_context(result)


@pytest.mark.parametrize("name", [name for name in VALID if name not in INCOMPLETE])
def test_a_right_call_passes(name: str) -> None:
    call(name, VALID[name]())


@pytest.mark.parametrize(("name", "argument"), list(arguments()))
def test_a_wrong_kind_is_refused_in_the_labs_words(name: str, argument: str) -> None:
    values = VALID[name]()
    values[argument] = Unknown()
    with pytest.raises((TypeError, ValueError)) as caught:
        call(name, values)
    assert is_the_labs(caught.value), f"{caught.value!r}"


# Functions without arguments, with paths only, which pathlib checks, or called by the lab alone,
# once for each operation.
WITHOUT = {
    "amp.explain",
    "amp.read_checkpoint",
    "amp.rule_for",
    "gemm.emulator",
    "gemm.is_ieee_on_cpu",
    "gemm.rounds_once",
    "instrument.register_source",
    "instrument.scaler_source",
    "instrument.watched",
    "interop.casts_to_8_bits",
    "interop.random_bits_like",
    "interop.round_keeping_infinity",
    "interop.round_with_bits",
    "testing.assert_same_training",
    "testing.compare_trainings",
    "train.cifar10",
    "train.device_folder",
    "train.load",
    "train.mnist",
    "train.one_thread",
    "train.places",
    "train.record_path",
    "train.signed",
}


def public_functions(package: str) -> set[str]:
    """Return the functions that a package exports, such as "formats.add"."""
    module = importlib.import_module(f"labkit.{package}")
    names = getattr(module, "__all__", None)
    if names is None:
        # labkit.interop is a module without __all__: its own functions are public.
        own = inspect.getmembers(module, inspect.isfunction)
        names = [name for name, function in own if function.__module__ == module.__name__]
    return {
        f"{package}.{name}"
        for name in names
        if inspect.isfunction(getattr(module, name)) and not name.startswith("_")
    }


def test_each_public_function_is_called() -> None:
    functions = set().union(*map(public_functions, PACKAGES))
    assert functions - VALID.keys() == WITHOUT
