"""Converting a network to FP16: what is cast, what stays, and how the two meet in one model."""

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
from labkit.gemm import SPECS

NORMS = {
    "BatchNorm1d": nn.BatchNorm1d(4), "BatchNorm2d": nn.BatchNorm2d(4), "BatchNorm3d": nn.BatchNorm3d(4),
    "SyncBatchNorm": nn.SyncBatchNorm(4), "InstanceNorm2d": nn.InstanceNorm2d(4, affine=True),
    "GroupNorm": nn.GroupNorm(2, 4), "LayerNorm": nn.LayerNorm(4), "RMSNorm": nn.RMSNorm(4),
}  # fmt: skip


def test_every_normalisation_layer_stays_fp32_by_default() -> None:
    for keep, (name, norm) in itertools.product((True, False), NORMS.items()):
        to_model_format(nn.Sequential(nn.ModuleDict({"inside": norm})), FP16, keep_norms=keep)
        floats = {t.dtype for t in norm.state_dict().values() if t.is_floating_point()}
        assert floats == {torch.float32 if keep else torch.float16}, name
        assert {t.dtype for t in to_fp32(norm).state_dict().values() if t.is_floating_point()} == {torch.float32}, name


def test_parameters_stay_the_objects_they_are_and_ties_hold() -> None:
    net = nn.ModuleDict({"embed": nn.Embedding(5, 3), "head": nn.Linear(3, 5, bias=False), "norm": nn.LayerNorm(5)})
    net["head"].weight = net["embed"].weight
    net["head"].bias = net["norm"].bias
    mask = torch.ones(3)
    net.register_buffer("mask", mask)
    net["embed"].register_buffer("mask", mask)
    ids = [id(p) for p in net.parameters()]
    to_model_format(net, BF16)
    assert [id(p) for p in net.parameters()] == ids
    assert net["head"].weight is net["embed"].weight
    assert net["head"].weight.dtype == torch.bfloat16
    assert net["norm"].bias.dtype == torch.float32, "shared with a norm, it stays with the norm"
    assert net["embed"].mask is net.mask, "a shared buffer, too"
    assert net.mask.dtype == torch.float32, "which a network's own buffer keeps"


def test_complex_whole_and_boolean_numbers_are_left_alone() -> None:
    net = nn.Module()
    net.phase = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    for name, dtype in (("count", torch.int64), ("mask", torch.bool)):
        net.register_buffer(name, torch.ones(2, dtype=dtype))
    to_model_format(net, FP16)
    assert [t.dtype for t in net.state_dict().values()] == [torch.complex64, torch.int64, torch.bool]


def test_parametrized_modules_and_gradients_are_converted() -> None:
    layer = parametrizations.weight_norm(nn.Linear(3, 2))
    layer(torch.ones(1, 3)).sum().backward()
    to_model_format(layer, FP16)
    assert {p.dtype for p in layer.parameters()} == {torch.float16}
    assert {p.grad.dtype for p in layer.parameters() if p.grad is not None} == {torch.float16}
    assert layer.weight.dtype == torch.float16


def test_a_format_that_torch_computes_nothing_in_is_the_caller_s_affair_and_one_it_lacks_is_refused() -> None:
    assert to_model_format(nn.Linear(1, 1), E4M3).weight.dtype == torch.float8_e4m3fn
    with pytest.raises(ValueError, match="torch has no dtype for 1-4-7"):
        to_model_format(nn.Linear(1, 1), Format("1-4-7", exponent_bits=4, significand_bits=7))


WORDS, WIDTH, LENGTH = 16, 32, 12
LOWEST = torch.finfo(torch.float32).min


def masked() -> Tensor:
    """What a position may not look at, with one row that may look at nothing."""
    mask = torch.full((LENGTH, LENGTH), LOWEST).triu(1)
    mask[3] = LOWEST
    return mask


def waves(positions: Tensor) -> Tensor:
    return torch.outer(positions, 10_000 ** -(torch.arange(0, WIDTH, 4) / WIDTH))


class Attention(nn.Module):
    """Two heads; `kind` says how positions and masks come in."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.qkv, self.out = kind, nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mask", masked())
        self.register_buffer("angles", waves(torch.arange(LENGTH) + 5000.0))

    def rotated(self, x: Tensor) -> Tensor:
        cos, sin, (even, odd) = self.angles.cos(), self.angles.sin(), (x[..., ::2], x[..., 1::2])
        return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, WIDTH // 2)).permute(2, 0, 3, 1, 4)
        if self.kind == "rotary":
            q, k = self.rotated(q), self.rotated(k)
        if self.kind == "fused mask":
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask)
        else:
            mixed = (q @ k.transpose(-1, -2) / 4 + self.mask).softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).flatten(-2))


class Text(nn.Module):
    def __init__(self, middle: nn.Module, *, norm: bool = True) -> None:
        super().__init__()
        self.table, self.middle, self.head = nn.Embedding(WORDS, WIDTH), middle, nn.Linear(WIDTH, WORDS)
        self.norm = nn.LayerNorm(WIDTH) if norm else nn.Identity()
        angles = waves(torch.arange(LENGTH).float())
        self.register_buffer("positions", torch.cat([angles.sin(), angles.cos(), angles.sin(), angles.cos()], 1))

    def forward(self, words: Tensor) -> Tensor:
        x = self.table(words) + self.positions
        out = self.middle(self.norm(x))
        return self.head(x + (out[0] if isinstance(out, tuple) else out))


class Weighed(nn.Module):
    """Operations that torch refuses for two dtypes: writing into, interpolating, looking up, adding at places."""

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
        y = torch.lerp(y, self.centres[0].expand_as(y), 0.01) + torch.addcmul(y, y, self.running.expand_as(y))
        nearest = torch.cdist(y.flatten(0, 1), self.centres).softmax(-1) @ self.centres
        return (
            torch.index_add(y, 2, torch.arange(WIDTH), nearest.view_as(y))
            + torch.einsum("btw,w->bt", y, self.running)[..., None]
        )


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "added mask": lambda: Text(Attention("added mask")),
    "fused mask": lambda: Text(Attention("fused mask")),
    "rotary": lambda: Text(Attention("rotary")),
    "rotary without a norm": lambda: Text(Attention("rotary"), norm=False),
    "LSTM": lambda: Text(nn.LSTM(WIDTH, WIDTH, batch_first=True)),
    "GRU": lambda: Text(nn.GRU(WIDTH, WIDTH, batch_first=True), norm=False),
    "mixed operations": lambda: Text(Weighed()),
    "spectral norm": lambda: Text(parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH))),
    "weight norm": lambda: Text(parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))),
}


def losses(make: Callable[[], nn.Module], recipe: str, steps: int = 12) -> list[float]:
    torch.manual_seed(0)
    row = RECIPES[recipe]
    scaler = replace(row.scaler, init_scale=min(row.scaler.init_scale, 2.0**8))
    engine = Engine(make(), partial(torch.optim.Adam, lr=3e-3), replace(row, scaler=scaler))
    found = []
    for step in range(steps):
        words = torch.randint(WORDS, (8, LENGTH), generator=torch.Generator().manual_seed(step))
        engine.zero_grad()
        with engine.forward():
            loss = F.cross_entropy(engine(words).flatten(0, 1), (words.flatten() + 1) % WORDS)
        engine.backward(loss)
        assert engine.step().stepped
        found.append(loss.item())
    return found


@pytest.mark.parametrize("network", NETWORKS)
def test_a_network_with_buffers_trains_as_it_does_in_fp32(network: str) -> None:
    theirs = losses(NETWORKS[network], "FP32")
    assert theirs[-1] < theirs[0] - 0.2
    for recipe, tolerance in {"O2": 5e-3, "BF16": 3e-2}.items():
        assert losses(NETWORKS[network], recipe) == pytest.approx(theirs, abs=tolerance), recipe


class Fourier(nn.Module):
    """A filter in frequencies, of a length that is no power of two, with real parameters for complex weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.filter = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.randn(LENGTH // 2 + 1, WIDTH, 2) / 4)

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(self.layer(x), dim=1)
        mixed = torch.einsum("bfw,fw->bfw", spectrum, torch.view_as_complex(self.filter))
        return torch.fft.irfft(mixed, LENGTH, dim=1)


def test_what_has_no_half_kernel_trains_as_it_does_in_fp32() -> None:
    """Orthogonal weights (a matrix exponential, a solution, a product of reflections) and Fourier transforms."""
    maps = ("matrix_exp", "cayley", "householder")
    middles: list[Callable[[], nn.Module]] = [Fourier] + [
        partial(lambda name: parametrizations.orthogonal(nn.Linear(WIDTH, WIDTH), orthogonal_map=name), name)
        for name in maps
    ]
    for middle in middles:
        theirs = losses(lambda middle=middle: Text(middle()), "FP32", 3)  # type: ignore[misc]
        for recipe, tolerance in {
            "O1": 5e-3,
            "O1 graph": 5e-3,
            "O2": 1e-2,
            "FP16 no master": 1e-2,
            "BF16": 5e-2,
        }.items():
            ours = losses(lambda middle=middle: Text(middle()), recipe, 3)  # type: ignore[misc]
            assert ours == pytest.approx(theirs, abs=tolerance), (middle, recipe)


def test_an_accumulator_takes_a_wide_mask_too() -> None:
    torch.manual_seed(0)
    recipe = replace(RECIPES["O2"], accumulator=SPECS["V100"])
    engine = Engine(Text(Attention("fused mask")), partial(torch.optim.SGD, lr=0.1), recipe)
    with engine.forward():
        assert engine(torch.zeros(2, LENGTH, dtype=torch.long)).isfinite().all()


# --- what stays and what goes along ---


def test_buffers_of_one_s_own_stay_and_those_of_torch_s_layers_go_along() -> None:
    net = Text(parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)))
    net.register_buffer("count", torch.tensor(4097.0))
    before = net.positions.clone()
    to_model_format(net, FP16)
    assert net.count == 4097
    assert torch.equal(net.positions, before)
    assert {b.dtype for b in net.middle.buffers()} == {torch.float16}, "power iteration multiplies by the weights"
    batch_norm = to_model_format(nn.Sequential(nn.BatchNorm1d(3)), FP16, keep_norms=False)
    assert {b.dtype for b in batch_norm.buffers()} == {torch.float16, torch.int64}


def test_what_would_become_infinite_is_refused_by_name_and_nothing_is_converted() -> None:
    for where in ("parameter '0.weight'", "buffer '1.running_var'"):
        net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
        target = net[0].weight if "weight" in where else net[1].running_var
        target.data[0] = 1e5
        with pytest.raises(ValueError, match=rf"{where} holds 100000, which FP16 cannot: it ends at 65504"):
            to_model_format(net, FP16, keep_norms=False)
        assert {t.dtype for t in net.state_dict().values() if t.is_floating_point()} == {torch.float32}
        target.data[0] = math.inf
        to_model_format(net, FP16, keep_norms=False)


def test_what_becomes_coarse_is_named_once_and_ordinary_weights_are_not() -> None:
    for value in (4097.0, 1e-6):
        net = nn.Sequential(nn.Linear(2, 3))
        net.register_parameter("table", nn.Parameter(torch.full((3,), value), requires_grad=False))
        with pytest.warns(UserWarning, match="FP16 makes this model coarse: .*parameter 'table'") as said:
            Engine(net, partial(torch.optim.SGD, lr=0.1), RECIPES["O2"])
        assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for format in (FP16, BF16):
            to_model_format(nn.Sequential(nn.Linear(64, 64), nn.LSTM(8, 8), nn.Conv2d(3, 8, 3)), format)


class GivenMask(nn.Module):
    """Attention whose mask is an argument of the model, not one of its buffers."""

    def __init__(self, *, fused: bool) -> None:
        super().__init__()
        self.fused, self.query, self.out = fused, nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q = self.query(x)
        if self.fused:
            return self.out(F.scaled_dot_product_attention(q, q, q, attn_mask=mask))
        return self.out((q @ q.mT + mask).softmax(-1) @ q)


def test_a_mask_that_is_given_to_the_model_keeps_its_meaning():
    for fused, recipe in itertools.product((False, True), ("O2", "O3", "BF16")):
        torch.manual_seed(0)
        model, x = GivenMask(fused=fused), torch.randn(2, LENGTH, WIDTH) / 8
        exact = model(x, masked()).detach()
        engine = Engine(model, partial(torch.optim.SGD, lr=0.01), RECIPES[recipe])
        with engine.forward():
            out = engine(x, masked())
        assert out.isfinite().all(), (fused, recipe)
        torch.testing.assert_close(out.detach(), exact, rtol=0, atol=0.02)


@pytest.mark.filterwarnings("ignore:Sparse CS. tensor support is in beta")
def test_a_sparse_input_goes_in_as_a_dense_one_does() -> None:
    class SparseInput(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.to_dense())

    for recipe, x in itertools.product(("O2", "BF16"), (torch.eye(4), torch.zeros(4, 4))):
        engine = Engine(SparseInput(4, 2), partial(torch.optim.SGD, lr=0.1), RECIPES[recipe])
        for sparse in (x.to_sparse(), x.to_sparse_csr(), x.to_sparse_csc()):
            assert torch.equal(engine(sparse), engine(x)), (recipe, sparse.layout)
