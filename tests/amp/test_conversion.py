"""Conversion of a network to FP16: which tensors are cast, and which are not.

Networks with buffers, norms and complex numbers train as in FP32.
"""

import itertools
import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from labkit.amp import RECIPES, Engine, to_fp32, to_model_format
from labkit.formats import BF16, E4M3, FP16, Format

NORMS = {
    "BatchNorm1d": nn.BatchNorm1d(4),
    "BatchNorm2d": nn.BatchNorm2d(4),
    "BatchNorm3d": nn.BatchNorm3d(4),
    "SyncBatchNorm": nn.SyncBatchNorm(4),
    "InstanceNorm2d": nn.InstanceNorm2d(4, affine=True),
    "GroupNorm": nn.GroupNorm(2, 4),
    "LayerNorm": nn.LayerNorm(4),
    "RMSNorm": nn.RMSNorm(4),
}


def test_a_sparse_buffer_of_a_layer_is_converted() -> None:
    model = nn.Linear(2, 2)
    model.register_buffer("graph", torch.eye(2).to_sparse())
    graph = to_model_format(model, FP16).graph
    assert graph.dtype is torch.float16
    assert graph.to_dense().tolist() == torch.eye(2).tolist()
    model = nn.Linear(2, 2)
    model.register_buffer("graph", (1e5 * torch.eye(2)).to_sparse())
    with pytest.raises(ValueError, match="buffer 'graph' holds 100000, which FP16 cannot"):
        to_model_format(model, FP16)


def test_a_class_with_the_apply_of_an_older_torch_is_converted() -> None:
    class Container(nn.Sequential):
        """A container that passes no `recurse`."""

        def _apply(self, fn: Callable[[Tensor], Tensor]) -> nn.Module:
            return super()._apply(fn)

    model = Container(nn.Linear(2, 2), nn.BatchNorm1d(2))
    to_model_format(model, FP16)
    dtypes = [p.dtype for p in model.parameters()]
    assert dtypes == [torch.float16] * 2 + [torch.float32] * 2
    assert model[1].running_mean.dtype is torch.float32


def test_every_normalisation_layer_stays_fp32_by_default() -> None:
    for keep, (name, norm) in itertools.product((True, False), NORMS.items()):
        to_model_format(nn.Sequential(nn.ModuleDict({"inside": norm})), FP16, keep_norms=keep)
        floats = {t.dtype for t in norm.state_dict().values() if t.is_floating_point()}
        assert floats == {torch.float32 if keep else torch.float16}, name
        assert {t.dtype for t in to_fp32(norm).state_dict().values() if t.is_floating_point()} == {
            torch.float32
        }, name


class TestTies:
    """A network whose head shares a weight with an embedding, a bias with a norm, and a mask."""

    @pytest.fixture
    def network(self) -> nn.ModuleDict:
        layers = {
            "embed": nn.Embedding(5, 3),
            "head": nn.Linear(3, 5, bias=False),
            "norm": nn.LayerNorm(5),
        }
        network = nn.ModuleDict(layers)
        network["head"].weight = network["embed"].weight
        network["head"].bias = network["norm"].bias
        mask = torch.ones(3)
        network.register_buffer("mask", mask)
        network["embed"].register_buffer("mask", mask)
        return network

    def test_parameters_stay_the_same_objects(self, network: nn.ModuleDict) -> None:
        ids = [id(p) for p in network.parameters()]
        to_model_format(network, BF16)
        assert [id(p) for p in network.parameters()] == ids

    def test_a_shared_weight_is_cast_once(self, network: nn.ModuleDict) -> None:
        to_model_format(network, BF16)
        assert network["head"].weight is network["embed"].weight
        assert network["head"].weight.dtype == torch.bfloat16

    def test_a_bias_shared_with_a_norm_is_not_cast(self, network: nn.ModuleDict) -> None:
        to_model_format(network, BF16)
        assert network["norm"].bias.dtype == torch.float32

    def test_a_shared_buffer_is_not_copied(self, network: nn.ModuleDict) -> None:
        to_model_format(network, BF16)
        assert network["embed"].mask is network.mask

    def test_a_buffer_of_a_custom_module_is_not_cast(self, network: nn.ModuleDict) -> None:
        to_model_format(network, BF16)
        assert network.mask.dtype == torch.float32


def test_complex_integer_and_boolean_tensors_are_not_cast() -> None:
    net = nn.Module()
    net.phase = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    for name, dtype in (("count", torch.int64), ("mask", torch.bool)):
        net.register_buffer(name, torch.ones(2, dtype=dtype))
    to_model_format(net, FP16)
    assert [t.dtype for t in net.state_dict().values()] == [
        torch.complex64,
        torch.int64,
        torch.bool,
    ]


def test_parametrized_modules_and_gradients_are_converted() -> None:
    layer = parametrizations.weight_norm(nn.Linear(3, 2))
    layer(torch.ones(1, 3)).sum().backward()
    to_model_format(layer, FP16)
    assert {p.dtype for p in layer.parameters()} == {torch.float16}
    assert {p.grad.dtype for p in layer.parameters() if p.grad is not None} == {torch.float16}
    assert layer.weight.dtype == torch.float16


def test_format_without_torch_arithmetic_is_allowed() -> None:
    assert to_model_format(nn.Linear(1, 1), E4M3).weight.dtype == torch.float8_e4m3fn


def test_format_without_a_torch_dtype_is_refused() -> None:
    with pytest.raises(ValueError, match="torch has no dtype for 1-4-7"):
        to_model_format(nn.Linear(1, 1), Format("1-4-7", exponent_bits=4, significand_bits=7))


WORDS, WIDTH, LENGTH = 16, 32, 12
LOWEST = torch.finfo(torch.float32).min


def causal_mask() -> Tensor:
    """Return an additive causal mask in which row 3 is masked completely."""
    mask = torch.full((LENGTH, LENGTH), LOWEST).triu(1)
    mask[3] = LOWEST
    return mask


def waves(positions: Tensor) -> Tensor:
    """Return the angles of sinusoidal positions, with the usual base of 10,000."""
    return torch.outer(positions, 10_000 ** -(torch.arange(0, WIDTH, 4) / WIDTH))


class Attention(nn.Module):
    """Attention with two heads; `kind` is how positions and masks enter it."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mask", causal_mask())
        # Angles near 5000 are multiples of 4 in FP16, so a cast buffer would ruin the positions.
        self.register_buffer("angles", waves(torch.arange(LENGTH) + 5000.0))

    def rotate(self, x: Tensor) -> Tensor:
        cos = self.angles.cos()
        sin = self.angles.sin()
        even = x[..., ::2]
        odd = x[..., 1::2]
        return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)

    def forward(self, x: Tensor, argument_mask: Tensor | None = None) -> Tensor:
        mask = self.mask if argument_mask is None else argument_mask
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, WIDTH // 2)).permute(2, 0, 3, 1, 4)
        if self.kind == "rotary":
            q = self.rotate(q)
            k = self.rotate(k)
        if self.kind == "fused mask":
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        else:
            mixed = (q @ k.transpose(-1, -2) / 4 + mask).softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).flatten(-2))


class Fourier(nn.Module):
    """A filter in frequencies, with real parameters for complex weights.

    Its length is not a power of two.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.filter = nn.Parameter(torch.randn(LENGTH // 2 + 1, WIDTH, 2) / 4)

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(self.layer(x), dim=1)
        mixed = torch.einsum("bfw,fw->bfw", spectrum, torch.view_as_complex(self.filter))
        return torch.fft.irfft(mixed, LENGTH, dim=1)


class Text(nn.Module):
    def __init__(self, middle: nn.Module, *, norm: bool = True) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)
        self.middle = middle
        self.head = nn.Linear(WIDTH, WORDS)
        self.norm = nn.LayerNorm(WIDTH) if norm else nn.Identity()
        angles = waves(torch.arange(LENGTH).float())
        self.register_buffer(
            "positions", torch.cat([angles.sin(), angles.cos(), angles.sin(), angles.cos()], 1)
        )

    def forward(self, words: Tensor) -> Tensor:
        x = self.table(words) + self.positions
        out = self.middle(self.norm(x))
        return self.head(x + (out[0] if isinstance(out, tuple) else out))


class MixedOperations(nn.Module):
    """Operations that torch refuses for operands of two dtypes.

    They are writing into a slice, interpolation, distances, and addition at an index.
    """

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("memory", torch.zeros(8, LENGTH, WIDTH))
        self.register_buffer("centres", torch.randn(5, WIDTH))
        self.register_buffer("running", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        self.memory[:] = y.detach()
        self.running.lerp_(y.detach().mean((0, 1)), 0.1)
        y = torch.lerp(y, self.centres[0].expand_as(y), 0.01) + torch.addcmul(
            y, y, self.running.expand_as(y)
        )
        nearest = torch.cdist(y.flatten(0, 1), self.centres).softmax(-1) @ self.centres
        return (
            torch.index_add(y, 2, torch.arange(WIDTH), nearest.view_as(y))
            + torch.einsum("btw,w->bt", y, self.running)[..., None]
        )


def orthogonal(by: str) -> nn.Module:
    """Return a network whose layer has an orthogonal weight.

    The weight is a matrix exponential, the solution of a linear system (Cayley), or a product of
    Householder reflections.
    """
    return Text(parametrizations.orthogonal(nn.Linear(WIDTH, WIDTH), orthogonal_map=by))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "added mask": lambda: Text(Attention("added mask")),
    "fused mask": lambda: Text(Attention("fused mask")),
    "rotary": lambda: Text(Attention("rotary")),
    "rotary without a norm": lambda: Text(Attention("rotary"), norm=False),
    "LSTM": lambda: Text(nn.LSTM(WIDTH, WIDTH, batch_first=True)),
    "mixed operations": lambda: Text(MixedOperations()),
    "spectral norm": lambda: Text(parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH))),
    "Fourier": lambda: Text(Fourier()),
    **{
        f"orthogonal by {by}": partial(orthogonal, by)
        for by in ("matrix_exp", "cayley", "householder")
    },
}


def losses(make: Callable[[], nn.Module], recipe: str) -> list[float]:
    torch.manual_seed(0)
    row = RECIPES[recipe]
    scaler = replace(row.scaler, init_scale=min(row.scaler.init_scale, 2.0**8))
    engine = Engine(make(), partial(torch.optim.Adam, lr=3e-3), replace(row, scaler=scaler))
    losses_of_steps = []
    for step in range(12):
        words = torch.randint(WORDS, (8, LENGTH), generator=torch.Generator().manual_seed(step))
        engine.zero_grad()
        with engine.forward():
            loss = F.cross_entropy(engine(words).flatten(0, 1), (words.flatten() + 1) % WORDS)
        engine.backward(loss)
        assert engine.step().stepped
        losses_of_steps.append(loss.item())
    return losses_of_steps


@pytest.mark.parametrize("network", NETWORKS)
def test_a_network_trains_as_it_does_in_fp32(network: str) -> None:
    """The networks have buffers, or operations without a half-precision kernel."""
    theirs = losses(NETWORKS[network], "FP32")
    assert theirs[-1] < theirs[0] - 0.2, "the loss does not fall, so the comparison shows little"
    # Tolerances are a few times epsilon (2^-10 and 2^-7) for losses near 2.8 = log(16). Fourier and
    # orthogonal layers use operations without half kernels, so autocast meets them, too.
    without_half = {"O1 graph": 5e-3} if network.startswith(("Fourier", "orthogonal")) else {}
    for recipe, tolerance in {"O2": 5e-3, "BF16": 3e-2, **without_half}.items():
        assert losses(NETWORKS[network], recipe) == pytest.approx(theirs, abs=tolerance), recipe


def test_buffers_of_custom_modules_stay_fp32() -> None:
    net = Text(parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)))
    net.register_buffer("count", torch.tensor(4097.0))
    before = net.positions.clone()
    to_model_format(net, FP16)
    assert net.count == 4097
    assert torch.equal(net.positions, before)
    # Power iteration multiplies the vectors of spectral norm by the FP16 weights.
    assert {b.dtype for b in net.middle.buffers()} == {torch.float16}


def test_buffers_of_a_norm_are_cast_with_it() -> None:
    batch_norm = to_model_format(nn.Sequential(nn.BatchNorm1d(3)), FP16, keep_norms=False)
    assert {b.dtype for b in batch_norm.buffers()} == {torch.float16, torch.int64}


def test_overflowing_conversion_is_refused_by_name() -> None:
    for where in ("parameter '0.weight'", "buffer '1.running_var'"):
        net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
        target = net[0].weight if "weight" in where else net[1].running_var
        target.data[0] = 1e5
        with pytest.raises(
            ValueError, match=rf"{where} holds 100000, which FP16 cannot: it ends at 65504"
        ):
            to_model_format(net, FP16, keep_norms=False)
        assert {t.dtype for t in net.state_dict().values() if t.is_floating_point()} == {
            torch.float32
        }
        # Infinity is a number of FP16, so its conversion overflows nothing.
        target.data[0] = math.inf
        to_model_format(net, FP16, keep_norms=False)


def test_model_with_coarse_weights_warns_once() -> None:
    for value in (4097.0, 1e-6):
        net = nn.Sequential(nn.Linear(2, 3))
        net.register_parameter("table", nn.Parameter(torch.full((3,), value), requires_grad=False))
        with pytest.warns(
            UserWarning, match="FP16 makes this model coarse: .*parameter 'table'"
        ) as caught:
            Engine(net, partial(torch.optim.SGD, lr=0.1), RECIPES["O2"])
        assert len(caught) == 1


def test_models_of_default_weights_convert_without_warning() -> None:
    with warnings.catch_warnings(action="error"):
        for format in (FP16, BF16):
            to_model_format(
                nn.Sequential(nn.Linear(64, 64), nn.LSTM(8, 8), nn.Conv2d(3, 8, 3)), format
            )
