"""The recorder of calls: which ones a graph can hold, why not, and the lines that it names."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from labkit.amp.graph.recorder import line_in_user_code
from labkit.amp.graph.trace import trace
from labkit.formats import FP16

X = torch.arange(16.0).reshape(4, 4)
ONE = torch.tensor(1)
TWO = torch.tensor(2)
HALF = torch.tensor(0.5)


def problem_of(function: Callable[..., Any], *inputs: Tensor) -> str:
    """Return why a function of tensors has no trace, or ""."""
    return trace(function, FP16, list(inputs), inputs, {}).problem


SIZED: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "linspace": lambda x, n: x.sum() * torch.linspace(0, 1, n),
    "logspace": lambda x, n: x.sum() * torch.logspace(0, 1, steps=n),
    "arange": lambda x, n: x.sum() * torch.arange(0, n),
    "hann_window": lambda x, n: x.sum() * torch.hann_window(n),
    "chunk": lambda x, n: x.chunk(n)[0],
    "split": lambda x, n: x.split(n)[0],
    "tensor_split": lambda x, n: x.tensor_split(n)[0],
    "broadcast_to": lambda x, n: x.broadcast_to((n, 4, 4)),
    "as_strided": lambda x, n: x.as_strided((n,), (1,)),
    "diag": lambda x, n: x.diag(n),
    "diagonal": lambda x, n: x.diagonal(offset=n),
    "view": lambda x, n: x.view(n, -1),
    "narrow": lambda x, n: x.narrow(0, 0, n),
    "select": lambda x, n: x.reshape(2, 2, 2, 2).select(n, 0),
    "full": lambda x, n: x.sum() * torch.full((n,), 3.0),
    "new_full": lambda x, n: x.new_full((n,), 3.0),
    "pad": lambda x, n: F.pad(x, (n, 0)),
    "sum": lambda x, n: x.reshape(2, 2, 4).sum(n),
    "topk": lambda x, n: x.topk(n)[0],
    "size": lambda x, n: x * x.reshape(2, 2, 4).size(n),
    "upsample_nearest2d": lambda x, n: F.interpolate(x[None, None], size=(n, n)),
    "repeat_interleave": lambda x, n: x.repeat_interleave(n),
}


@pytest.mark.parametrize("inference", [False, True], ids=["gradients", "inference"])
@pytest.mark.parametrize("name", SIZED)
def test_a_size_that_a_tensor_gives_has_no_graph(name: str, inference: bool) -> None:
    with torch.inference_mode(inference):
        problem = problem_of(SIZED[name], X.clone(), TWO.clone())
    assert f"{name} reads a number" in problem or f"the shape of what {name} returns" in problem


VALUES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "an element": lambda x, n: x[n],
    "an element of each row": lambda x, n: x[:, n],
    "an element that is set": lambda x, n: x.clone().__setitem__(n, 0.0),
    "select": lambda x, n: x.select(0, n),
    "narrow": lambda x, n: x.narrow(0, n, 2),
    "roll": lambda x, n: x.roll(n),
    "the value of full": lambda x, n: x[:2, :2] * torch.full((2, 2), n),
    "the value of new_full": lambda x, n: x.new_full((2, 2), fill_value=n),
    "the weight of a sum": lambda x, n: torch.add(x, x, alpha=n),
    "a factor": lambda x, n: x * n,
}


@pytest.mark.parametrize("inference", [False, True], ids=["gradients", "inference"])
@pytest.mark.parametrize("name", VALUES)
def test_a_value_that_a_tensor_gives_has_a_graph(name: str, inference: bool) -> None:
    with torch.inference_mode(inference):
        assert problem_of(VALUES[name], X.clone(), ONE.clone()) == ""


def test_a_rate_of_dropout_that_a_tensor_gives_has_a_graph() -> None:
    assert problem_of(lambda x, p: torch.dropout(x, p, True), X, HALF) == ""


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.repeat_interleave(2),
        lambda x: torch.repeat_interleave(x, repeats=2),
        lambda x: x.histc(10),
        lambda x: F.one_hot(x.long(), 16),
    ],
    ids=["repeat_interleave", "repeat_interleave by name", "histc", "one_hot"],
)
def test_a_shape_that_only_an_int_decides_has_a_graph(function: Callable[..., Any]) -> None:
    assert problem_of(function, X) == ""


def test_a_tensor_as_the_bound_of_a_slice_is_named() -> None:
    assert "a bound of a slice is a tensor" in problem_of(lambda x, n: x[:n], X, TWO)


def test_another_bound_of_a_slice_is_named_by_its_type() -> None:
    problem = problem_of(lambda x: x[: np.int64(2)], X)
    assert "a bound of a slice has the type int64, which a graph cannot hold" in problem


def test_a_function_that_chooses_by_a_mask_inside_has_no_graph() -> None:
    """A function in Python that offers itself to modes is recorded as one call."""

    def choose(x: Tensor) -> Tensor:
        if torch.overrides.has_torch_function_unary(x):
            return torch.overrides.handle_torch_function(choose, (x,), x)
        return x[x > 3]

    assert "the shape of what choose returns depends on the numbers" in problem_of(choose, X)


def line_named_in(file: Path) -> str:
    """Return the line that the recorder names for code in a file."""
    code = compile("def call(line):\n    return line()\n", str(file), "exec")
    names: dict[str, Any] = {}
    exec(code, names)
    line: str = names["call"](line_in_user_code)
    return line


@pytest.mark.parametrize("package", ["torchvision", "torch_geometric", "torchaudio", "timm"])
def test_a_package_beside_torch_is_user_code(package: str) -> None:
    file = Path(torch.__file__).parents[1] / package / "model.py"
    assert line_named_in(file) == f"{file}:2"


def test_code_of_torch_is_not_user_code() -> None:
    file = Path(torch.__file__).parent / "nn" / "functional.py"
    assert line_named_in(file).startswith(f"{__file__}:")
