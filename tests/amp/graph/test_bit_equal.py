"""Graphs are bit-equal to eager autocast; and what is told about them, counted by hand."""

import copy
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.amp import RECIPES, CastGraph, Engine, Explanation, autocast, explain
from labkit.formats import BF16, FP16, Format
from labkit.gemm import half_storage
from labkit.train import networks


class Vae(nn.Module):
    """Encodes a distribution, draws from it, decodes; returns three tensors in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(16, 8), nn.Linear(4, 16)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        mean, log_variance = self.encode(x).chunk(2, -1)
        z = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        return {"image": torch.sigmoid(self.decode(z)), "mean": mean, "log_variance": log_variance}


class Tied(nn.Module):
    """One weight, three uses: an embedding, a projection, and the projection again."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(12, 8), nn.Linear(8, 12, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        logits = self.out(self.embedding(tokens))
        return self.out(F.softmax(logits, -1) @ self.out.weight)


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        y, weights = self.attention(x, x, x, attn_mask=mask)
        return self.norm(x + y), weights


class AsksForDtype(nn.Module):
    """Makes a tensor in the dtype that autocast gave, and takes 1/x, a row at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(x.shape[0], 8, dtype=x.dtype)
        for row in x.view(x.shape[0], 2, 16).transpose(0, 1):
            h = self.cell(row, h)
        low = torch.finfo(h.dtype).min
        return 1 / (1 + h.masked_fill(h.abs() < 1e-3, low).softmax(-1) ** 2) - 2 ** (x.T @ x)[:4, :1]


def discriminator() -> nn.Module:
    conv = torch.nn.utils.parametrizations.spectral_norm(nn.Conv2d(1, 4, 3, 2, 1))
    return nn.Sequential(conv, nn.LeakyReLU(0.2), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(64, 1))


IMAGES, STEPS = (4, 1, 8, 8), (4, 5, 8)
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "MLP": (networks.mlp, lambda: torch.rand(IMAGES)),
    "CNN with batch norm": (networks.batch_norm_cnn, lambda: torch.rand(IMAGES)),
    "UNet": (networks.Unet, lambda: torch.rand(2, 1, 16, 16)),
    "LSTM": (lambda: networks.CharLstm(12, 16), lambda: torch.randint(12, (4, 6))),
    "transformer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), lambda: torch.randn(STEPS)),
    "GPT": (lambda: networks.Gpt(12, 6), lambda: torch.randint(12, (4, 6))),
    "VAE": (Vae, lambda: torch.rand(8, 16)),
    "GAN's discriminator": (discriminator, lambda: torch.rand(IMAGES)),
    "tied weights": (Tied, lambda: torch.randint(12, (4, 5))),
    "multi-head attention": (SelfAttention, lambda: torch.randn(STEPS)),
    "asks for a dtype": (AsksForDtype, lambda: torch.randn(4, 32)),
}


def leaves(out: Any) -> list[Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(out) if isinstance(leaf, Tensor)]


def steps(call: Callable[..., Any], model: nn.Module, batches: list[Tensor], format: Format) -> list[list[Tensor]]:
    """Outputs, loss, gradients and buffers of each of some training steps."""
    optimizer, seen = torch.optim.SGD(model.parameters(), lr=1e-3), []
    for number, batch in enumerate(batches):
        torch.manual_seed(number)
        optimizer.zero_grad()
        with half_storage("cpu"), autocast(format):
            outputs = leaves(call(batch.clone()))
            loss = sum(output.float().square().mean() for output in outputs)
        (loss * 64).backward()
        optimizer.step()
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        seen.append([*(o.detach() for o in outputs), loss.detach(), *gradients, *(b.clone() for b in model.buffers())])
    return seen


@pytest.mark.parametrize("name", NETWORKS)
def test_a_graph_is_bit_equal_to_eager_autocast(name: str) -> None:
    make, batch = NETWORKS[name]
    for format, training in ((FP16, True), (FP16, False), (BF16, True)):
        torch.manual_seed(0)
        model, batches = make().train(training), [batch() for _ in range(4)]
        other = copy.deepcopy(model)
        graph = CastGraph(other, format)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            eager, decided = steps(model, model, batches, format), steps(graph, other, batches, format)
        assert graph.why == ""
        assert graph.decided.run is not None
        assert all(t.isfinite().all() for t in eager[-1])
        for one, two in zip(eager, decided, strict=True):
            assert all(a.dtype is b.dtype and torch.equal(a, b) for a, b in zip(one, two, strict=True)), training


SGD = partial(torch.optim.SGD, lr=0.1)


def explained(model: nn.Module, *inputs: Tensor) -> Explanation:
    graph = CastGraph(model, FP16)
    for _ in range(2):
        with half_storage("cpu"), autocast():
            graph(*inputs)
    return explain(graph)


def fates(explanation: Explanation) -> list[tuple[bool, str, int]]:
    return [(cast.weight, cast.fate, cast.times) for cast in explanation.casts]


def test_worked_example_of_a_linear_layer_and_a_softmax() -> None:
    told = explained(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Softmax(-1)), torch.ones(2, 4))
    assert [(row.op, row.rule.value, row.result) for row in told.rows] == [
        ("linear", "allow", "FP16"), ("relu", "keep", "FP16"), ("softmax", "set dtype", "FP32")
    ]  # fmt: skip
    assert [(cast.source, cast.to, cast.elements) for cast in told.casts] == [
        ("FP32", "FP16", 8), ("FP32", "FP16", 12), ("FP32", "FP16", 3), ("FP16", "FP32", 6)
    ]  # fmt: skip
    assert [cast.name for cast in told.casts] == ["input", "weight", "bias", "input"]
    assert [cast.bytes for cast in told.casts] == [48, 72, 18, 36]  # 4 and 2 bytes for each element
    assert told.sentence.startswith("Autocast makes 4 casts here, and the graph 4; they read and write 0.2 KiB")


def test_a_weight_that_is_used_three_times_is_cast_once() -> None:
    class Thrice(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(super().forward(super().forward(x)))

    told = explained(Thrice(4, 4, bias=False), torch.ones(2, 4))
    weights = [fate for fate in fates(told) if fate[0]]
    assert weights == [(True, "hoisted", 1), (True, "hoisted", 0), (True, "hoisted", 0)]


def test_an_input_is_cast_once_unless_a_gradient_comes_back_through_it() -> None:
    class Twice(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x @ y + x @ y.T

    x, y = torch.ones(3, 3), torch.ones(3, 3)
    cast, again = (False, "stays", 1), (False, "cancelled", 0)
    assert fates(explained(Twice(), x, y)) == [cast, cast, again, cast]  # y and y.T are two tensors
    assert fates(explained(Twice(), x.requires_grad_() * 1, y)) == [cast] * 4


def test_there_and_back_again_is_left_out() -> None:
    class Back(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(super().forward(x).float())

    assert (False, "cancelled", 0) in fates(explained(Back(4, 4, bias=False), torch.ones(2, 4)))


def test_a_graph_makes_the_casts_of_eager_autocast_and_no_other() -> None:
    """A norm of torch.nn.functional is Python: its cast was once written down twice, where the trace saw it made."""

    class Casts(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func: object, types: object, args: tuple = (), kwargs: object = None) -> object:
            self.count += func is torch.ops.aten._to_copy.default
            return func(*args, **(kwargs or {}))

    model, counts = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 2, 3)), []
    graph = CastGraph(model, FP16)
    for _ in range(3):
        with Casts() as casts, half_storage("cpu"), autocast():
            graph(torch.ones(2, 1, 8, 8))
        counts.append(casts.count)
    assert counts == [15, 15, 15]  # of six operands there and back, of two results, and of the norm's input
    assert len(explain(graph).casts) == 7
    assert [row.op for row in explain(graph).rows] == ["conv2d", "group_norm", "relu", "conv2d"]


def test_where_there_is_no_graph_it_says_why() -> None:
    with pytest.raises(ValueError, match=r"this recipe has no graph.*RECIPES\['O1 graph'\]"):
        explain(Engine(nn.Linear(1, 1), SGD, RECIPES["O1"]))
    with pytest.raises(ValueError, match="the third forward pass runs as one, and it did not come yet"):
        explain(Engine(nn.Linear(1, 1), SGD, RECIPES["O1 graph"]))
