"""Inputs and outputs of an engine in any container, and calls that it refuses.

Tensors inside dicts, dataclasses and other containers are cast on the way into the model and on the
way out. The tests of refusals check weights beyond FP16, and steps of the optimizer that bypass the
engine. Others are about what the engine takes: numbers of numpy, sparse gradients, fields of a
recipe; and about what it releases.
"""

import copy
import dataclasses
import functools
import gc
import io
import json
import types
import warnings
import weakref
from collections import OrderedDict, UserDict, defaultdict, deque
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from labkit.amp import RECIPES, Engine, Recipe, ScalerConfig, ScalerState, to_model_format
from labkit.formats import FP16
from labkit.modes import mapped_anywhere

SGD = functools.partial(torch.optim.SGD, lr=0.1)
# A number that is finite in FP32 and BF16, and infinite in FP16.
BEYOND_FP16 = 1e5


@dataclasses.dataclass
class Output:
    y: Tensor
    note: str = "kept"


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    y: Tensor


class Named(NamedTuple):
    y: Tensor


class SubclassOfDict(dict[str, Tensor]):
    pass


class SubclassOfList(list[Tensor]):
    pass


class Plain:
    def __init__(self, y: Tensor) -> None:
        self.y = y


CONTAINERS: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]] = {
    "tensor": (lambda y: y, lambda out: out),
    "dict": (lambda y: {"y": y}, lambda out: out["y"]),
    "subclass of dict": (lambda y: SubclassOfDict(y=y), lambda out: out["y"]),
    "OrderedDict": (lambda y: OrderedDict(y=y), lambda out: out["y"]),
    "defaultdict": (lambda y: defaultdict(list, y=y), lambda out: out["y"]),
    "UserDict": (lambda y: UserDict(y=y), lambda out: out["y"]),
    "list": (lambda y: [y, "text"], lambda out: out[0]),
    "subclass of list": (lambda y: SubclassOfList([y]), lambda out: out[0]),
    "tuple in a list": (lambda y: [(1, y)], lambda out: out[0][1]),
    "NamedTuple": (Named, lambda out: out.y),
    "dataclass": (Output, lambda out: out.y),
    "frozen dataclass with slots": (Frozen, lambda out: out.y),
    "SimpleNamespace": (lambda y: types.SimpleNamespace(y=y), lambda out: out.y),
    "deque": (lambda y: deque([y]), lambda out: out[0]),
    "torch.return_types": (lambda y: torch.max(y, 1), lambda out: out.values),
}


class Net(nn.Module):
    """A layer whose input and output are in a container, and that records its input's dtype."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.wrap, self.unwrap = CONTAINERS[name]
        self.input_dtype: torch.dtype | None = None

    def forward(self, inputs: Any) -> Any:
        x = self.unwrap(inputs)
        self.input_dtype = x.dtype
        return self.wrap(self.layer(x if x.dim() == 2 else x.expand(2, 4)))


@pytest.mark.parametrize("name", CONTAINERS)
def test_tensors_of_a_container_cross_the_boundary(name: str) -> None:
    wrap, unwrap = CONTAINERS[name]
    engine = Engine(Net(name), SGD, "O2")
    # torch.max over dimension 1 of a matrix with four rows returns the four elements that the layer
    # expects.
    rows = 4 if name == "torch.return_types" else 2
    out = engine(wrap(torch.randn(rows, 4)))
    assert type(out) is type(wrap(torch.randn(2, 4)))
    assert engine.model.input_dtype == torch.float16
    assert unwrap(out).dtype == torch.float32


class AttributeDict(dict[str, Tensor]):
    def __init__(self, **items: Tensor) -> None:
        super().__init__(**items)
        self.__dict__ = self


class ReadOnlyDict(dict[str, Tensor]):
    def __setitem__(self, key: str, value: Tensor) -> None:
        raise TypeError("immutable")


class VariadicTuple(tuple[Tensor, ...]):
    """A tuple whose constructor takes its items one by one."""

    def __new__(cls, *items: Tensor) -> "VariadicTuple":
        return super().__new__(cls, items)


class Store(MutableMapping[str, Tensor]):
    """A mapping around a dict; a shallow copy shares the dict with the original."""

    def __init__(self, items: dict[str, Tensor]) -> None:
        self.items_ = items

    def __getitem__(self, key: str) -> Tensor:
        return self.items_[key]

    def __setitem__(self, key: str, value: Tensor) -> None:
        self.items_[key] = value

    def __delitem__(self, key: str) -> None:
        del self.items_[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.items_)

    def __len__(self) -> int:
        return len(self.items_)


@dataclasses.dataclass
class Node:
    y: Tensor
    parent: Any = dataclasses.field(default=None, repr=False)
    children: list[Any] = dataclasses.field(default_factory=list, repr=False)


def test_items_of_an_attribute_dict_stay_its_attributes() -> None:
    changed = mapped_anywhere(torch.Tensor.half, AttributeDict(a=torch.ones(1)))
    assert changed.a is changed["a"]
    assert changed.a.dtype == torch.float16


def test_a_read_only_dict_is_copied() -> None:
    frozen = mapped_anywhere(torch.Tensor.half, ReadOnlyDict(a=torch.ones(1)))
    assert frozen["a"].dtype == torch.float16


def test_custom_tuple_keeps_its_length_and_attributes() -> None:
    items = VariadicTuple(torch.ones(1), torch.ones(1))
    items.note = "kept"
    changed = mapped_anywhere(torch.Tensor.half, items)
    assert type(changed) is VariadicTuple
    assert len(changed) == 2
    assert changed.note == "kept"


def test_a_mapping_that_cannot_be_copied_is_returned_unchanged() -> None:
    store = Store({"y": torch.ones(1)})
    assert mapped_anywhere(torch.Tensor.half, store) is store
    assert store["y"].dtype == torch.float32


def test_a_cycle_of_containers_is_walked_once() -> None:
    node = Node(torch.ones(1))
    node.children.append(Node(torch.ones(1), parent=node))
    changed = mapped_anywhere(torch.Tensor.half, node)
    assert changed.children[0].y.dtype == torch.float16


@pytest.mark.parametrize("recipe", ["FP32", "O2"])
def test_a_model_updates_the_state_object_of_its_caller(recipe: str) -> None:
    class Model(nn.Linear):
        def forward(self, x: Tensor, state: Any) -> Tensor:
            state.parent = (state.parent or 0) + 1
            state.y = super().forward(x)
            return state.y

    state = Node(torch.zeros(1, 2))
    engine = Engine(Model(2, 2), SGD, recipe)
    for _ in range(3):
        engine(torch.ones(1, 2), state)
    assert state.parent == 3
    assert state.y.dtype == torch.float32
    assert bool(state.y.any())


def test_an_engine_is_freed_with_its_last_reference() -> None:
    gc.disable()
    try:
        engine = Engine(nn.Linear(2, 2), SGD, "O2")
        reference = weakref.ref(engine)
        del engine
        assert reference() is None
    finally:
        gc.enable()


def test_an_optimizer_wrapper_without_hooks_is_accepted() -> None:
    class Lookahead(torch.optim.Optimizer):
        def __init__(self, base: torch.optim.Optimizer) -> None:
            self.optimizer, self.defaults = base, base.defaults
            self.param_groups, self.state = base.param_groups, base.state

        def step(self, closure: Any = None) -> Any:
            return self.optimizer.step(closure)

    engine = Engine(nn.Linear(32, 2), lambda p: Lookahead(SGD(p)), with_static_scale("O2"))
    engine.backward(engine(torch.ones(1, 32)).mean())
    assert engine.step().stepped


def test_an_engine_takes_integers_of_numpy() -> None:
    engine = Engine(nn.Linear(2, 1), SGD, "O2", losses=np.int64(2), seed=np.int64(3))
    assert len(engine.scalers) == 2


def test_a_recipe_replaces_values_of_numpy_by_python_s() -> None:
    """torch.load with weights_only, as for a checkpoint, refuses numbers of numpy."""
    recipe = Recipe(
        "m",
        model=FP16,
        keep_norms=np.False_,
        scaler=ScalerConfig(np.float64(8.0), growth_interval=np.int64(5), dynamic=np.True_),
    )
    plain = Recipe("m", model=FP16, keep_norms=False, scaler=ScalerConfig(8.0, growth_interval=5))
    assert json.dumps(recipe.as_dict()) == json.dumps(plain.as_dict())
    engine = Engine(nn.Linear(2, 1), SGD, recipe)
    engine.scaler = ScalerState(np.float64(4.0), np.int64(1))
    file = io.BytesIO()
    torch.save(engine.state_dict(), file)
    file.seek(0)
    assert torch.load(file, weights_only=True)["recipe"] == plain.as_dict()


def test_a_container_without_a_change_is_the_same_object() -> None:
    inputs = [1, {"text": "a"}]
    assert mapped_anywhere(torch.Tensor.half, inputs) is inputs


def test_other_attributes_of_a_container_stay() -> None:
    changed = mapped_anywhere(torch.Tensor.half, Output(torch.ones(1), note="mine"))
    assert changed.note == "mine"
    assert changed.y.dtype == torch.float16


@pytest.mark.parametrize(
    ("wrap", "message"),
    [
        (Plain, "a Plain: y stayed half"),
        (lambda y: {"deep": [Plain(y)]}, r"a Plain at \['deep'\]\[0\]: y stayed half"),
        (lambda y: (tensor for tensor in (y,)), "a generator, whose tensors stay"),
    ],
)
def test_a_container_that_cannot_be_cast_warns_once(
    wrap: Callable[[Tensor], Any], message: str
) -> None:
    class Model(nn.Linear):
        def forward(self, x: Tensor) -> Any:
            return wrap(super().forward(x))

    engine = Engine(Model(4, 4), SGD, "O2")
    with pytest.warns(UserWarning, match=message):
        engine(torch.ones(2, 4))
    with warnings.catch_warnings(record=True) as warnings_of_second_call:
        warnings.simplefilter("always")
        engine(torch.ones(2, 4))
    assert warnings_of_second_call == []


@pytest.mark.parametrize("recipe", ["O1", "O1 graph", "O2", "BF16", "FP8 current", "MXFP8"])
def test_a_call_outside_of_forward_equals_one_inside(recipe: str) -> None:
    torch.manual_seed(0)
    engine = Engine(nn.Sequential(nn.Linear(32, 8), nn.GELU(), nn.Linear(8, 1)), SGD, recipe)
    x = torch.randn(8, 32)
    with engine.forward():
        inside = engine(x)
    assert torch.equal(engine(x), inside)
    # Called without its engine, a model computes in FP32, except under recipes that cast the model.
    if recipe not in ("O2", "BF16"):
        assert not torch.equal(engine.model(x), inside)


# --- numbers that FP16 does not hold ---


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("trained", [True, False])
def test_a_weight_beyond_fp16_is_refused(dtype: torch.dtype, trained: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 1), nn.Linear(1, 1)).to(dtype)
    model[0].weight.data[0, 0] = BEYOND_FP16
    model[0].weight.requires_grad_(trained)
    with pytest.raises(ValueError, match=r"'0\.weight' holds .*, which FP16 cannot"):
        Engine(model, SGD, "O2")
    assert model[0].weight.dtype is dtype, "the refused model was cast"


def test_an_argument_beyond_fp16_of_any_dtype_stays_finite() -> None:
    class Halving(nn.Module):
        """A model that brings its argument into FP16's range."""

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(1, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x * 2.0**-20)

    engine = Engine(Halving(), SGD, "O2")
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        assert engine(torch.tensor([[2.0**20]], dtype=dtype)).isfinite().all(), dtype


def test_a_bf16_buffer_beyond_fp16_keeps_its_dtype() -> None:
    model = nn.Linear(2, 2).bfloat16()
    model.register_buffer("mask", torch.full((2,), -1e30).bfloat16())
    # Buffers of torch's own classes are cast, so the layer becomes one of a class of the user.
    model.__class__ = type("Masked", (nn.Linear,), {})
    to_model_format(model, FP16)
    assert model.mask.dtype == torch.bfloat16
    assert model.weight.dtype == torch.float16


@pytest.mark.parametrize("load", ["load_model", "load_state_dict"])
def test_loading_a_number_beyond_fp16_changes_nothing(load: str) -> None:
    engine = Engine(nn.Linear(4, 1), SGD, "O2")
    before = engine.model.weight.clone()
    state = engine.state_dict() if load == "load_state_dict" else engine.fp32_model()
    weights = state["model"] if load == "load_state_dict" else state
    weights["weight"] = weights["weight"].clone().fill_(BEYOND_FP16)
    with pytest.raises(ValueError, match="'weight' of this state dict holds 100000"):
        getattr(engine, load)(state)
    assert torch.equal(engine.model.weight, before)


# --- steps of the optimizer itself, sparse gradients, and fields of recipes ---


@pytest.mark.parametrize("recipe", ["O1", "O2", "FP8 current"])
def test_a_direct_step_of_the_optimizer_is_refused(recipe: str) -> None:
    engine = Engine(nn.Linear(32, 1), SGD, with_static_scale(recipe))
    before = engine.model.weight.clone()
    engine.backward(engine(torch.ones(2, 32)).square().mean())
    with pytest.raises(RuntimeError, match=r"expected engine\.step\(\), got"):
        engine.optimizer.step()
    assert torch.equal(engine.model.weight, before)
    assert engine.step().stepped


def with_static_scale(recipe: str) -> Recipe:
    """Return a recipe with a scale at which the first step is taken."""
    return dataclasses.replace(RECIPES[recipe], scaler=RECIPES["FP16 static"].scaler)


def test_a_copy_of_an_engine_refuses_a_direct_step() -> None:
    engine = copy.deepcopy(Engine(nn.Linear(4, 1), SGD, "O1"))
    engine.backward(engine(torch.ones(2, 4)).mean())
    with pytest.raises(RuntimeError, match=r"expected engine\.step\(\), got"):
        engine.optimizer.step()


def test_a_direct_step_in_fp32_equals_plain_torch() -> None:
    engine = Engine(nn.Linear(4, 1, bias=False), SGD, "FP32")
    plain = nn.Linear(4, 1, bias=False)
    plain.load_state_dict(engine.model.state_dict())
    engine.backward(engine(torch.ones(2, 4)).mean())
    engine.optimizer.step()
    plain(torch.ones(2, 4)).mean().backward()
    SGD(plain.parameters()).step()
    assert torch.equal(engine.model.weight, plain.weight)


def test_sparse_gradients_in_fp32_equal_a_plain_loop() -> None:
    def train(*, with_engine: bool) -> tuple[list[float], Tensor]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.EmbeddingBag(50, 16, mode="sum", sparse=True), nn.Linear(16, 1))
        generator = torch.Generator().manual_seed(1)
        engine = Engine(net, SGD, "FP32") if with_engine else None
        plain = SGD(net.parameters())
        losses = []
        for _ in range(12):
            tokens = torch.randint(0, 50, (16, 8), generator=generator)
            if engine is None:
                plain.zero_grad()
                loss = (net(tokens) - 1).square().mean() / 100
                loss.backward()
                plain.step()
            else:
                engine.zero_grad()
                loss = (engine(tokens) - 1).square().mean() / 100
                engine.backward(loss)
                engine.step()
            losses.append(loss.item())
        return losses, net[0].weight.detach().clone()

    plain_losses, plain_weight = train(with_engine=False)
    losses, weight = train(with_engine=True)
    assert losses == plain_losses
    assert torch.equal(weight, plain_weight)


def test_clipping_sums_the_duplicates_of_a_sparse_gradient() -> None:
    net = nn.Embedding(4, 1, sparse=True)
    engine = Engine(net, SGD, "FP32")
    engine.backward(engine(torch.tensor([1, 1, 1])).sum())
    # The norm is that of one row with a gradient of 3, not of three rows with 1.
    assert engine.clip(10.0).item() == 3.0


def test_overflow_of_summed_duplicates_is_found_and_named() -> None:
    net = nn.Embedding(2, 1, sparse=True)
    engine = Engine(net, SGD, "FP32")
    # 3e38 is finite in FP32, and 6e38 is not.
    engine.backward((engine(torch.tensor([1, 1])) * 3e38).sum())
    report = engine.step()
    assert report.found_inf
    assert report.culprits == ("weight",)


@pytest.mark.parametrize(
    "values",
    [
        {"rounding": "nonsense"},
        {"master_weights": "no"},
        {"autocast": 3},
        {"model": object()},
        {"scaler": 1024.0},
        {"name": 3},
        {"keep_norms": 1},
    ],
)
def test_a_recipe_refuses_values_of_other_types(values: dict[str, Any]) -> None:
    [field] = values
    with pytest.raises(TypeError, match=f"{field}: expected"):
        Recipe(**{"name": "m", **values})


def test_a_recipe_takes_names_and_dtypes() -> None:
    by_name = Recipe("m", model="fp16", master_weights=False, rounding="stochastic")
    by_dtype = Recipe("m", model=torch.float16, master_weights=False, rounding="STOCHASTIC")
    assert by_name == by_dtype
    assert by_name.rounding is RECIPES["FP16 stochastic"].rounding
    assert by_name.model is FP16
