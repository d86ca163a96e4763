"""Inputs and outputs of an engine in any container, and calls that it refuses."""

import copy
import dataclasses
import functools
import gc
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

from labkit.amp import RECIPES, Engine, Recipe, to_model_format
from labkit.formats import FP16
from labkit.modes import mapped_anywhere

SGD = functools.partial(torch.optim.SGD, lr=0.1)
BEYOND = 1e5  # finite in FP32 and BF16, inf in FP16


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
    """A layer whose input and output are in a container."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.make, self.take = CONTAINERS[name]
        self.seen: torch.dtype | None = None

    def forward(self, inputs: Any) -> Any:
        x = self.take(inputs)
        self.seen = x.dtype
        return self.make(self.layer(x if x.dim() == 2 else x.expand(2, 4)))


@pytest.mark.parametrize("name", CONTAINERS)
def test_tensors_of_a_container_cross_the_boundary(name: str) -> None:
    make, take = CONTAINERS[name]
    engine = Engine(Net(name), SGD, "O2")
    inputs = make(torch.randn(2, 4)) if name != "torch.return_types" else torch.ones(4).max(0)
    if name == "torch.return_types":
        inputs = torch.max(torch.randn(4, 3), 1)
    out = engine(inputs)
    assert type(out) is type(make(torch.randn(2, 4)))
    assert (engine.model.seen, take(out).dtype) == (torch.float16, torch.float32)


class AttributeDict(dict[str, Tensor]):
    def __init__(self, **items: Tensor) -> None:
        super().__init__(**items)
        self.__dict__ = self


class Frozenlike(dict[str, Tensor]):
    def __setitem__(self, key: str, value: Tensor) -> None:
        raise TypeError("immutable")


class Star(tuple[Tensor, ...]):
    def __new__(cls, *items: Tensor) -> "Star":
        return super().__new__(cls, items)


class Store(MutableMapping[str, Tensor]):
    """A mapping around a dict, which a plain copy shares."""

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


def test_a_dict_whose_items_are_attributes_stays_one() -> None:
    changed = mapped_anywhere(torch.Tensor.half, AttributeDict(a=torch.ones(1)))
    assert changed.a is changed["a"]
    assert changed.a.dtype == torch.float16


def test_a_subclass_that_refuses_items_is_copied_all_the_same() -> None:
    frozen = mapped_anywhere(torch.Tensor.half, Frozenlike(a=torch.ones(1)))
    assert frozen["a"].dtype == torch.float16


def test_custom_tuple_keeps_its_length_and_attributes() -> None:
    star = Star(torch.ones(1), torch.ones(1))
    star.note = "kept"
    changed = mapped_anywhere(torch.Tensor.half, star)
    assert (type(changed), len(changed), changed.note) == (Star, 2, "kept")


def test_a_mapping_that_cannot_be_copied_is_left_to_the_caller() -> None:
    store = Store({"y": torch.ones(1)})
    assert mapped_anywhere(torch.Tensor.half, store) is store
    assert store["y"].dtype == torch.float32


def test_a_cycle_ends() -> None:
    node = Node(torch.ones(1))
    node.children.append(Node(torch.ones(1), parent=node))
    changed = mapped_anywhere(torch.Tensor.half, node)
    assert changed.children[0].y.dtype == torch.float16


@pytest.mark.parametrize("recipe", ["FP32", "O2"])
def test_a_state_that_the_model_updates_is_the_callers(recipe: str) -> None:
    class Model(nn.Linear):
        def forward(self, x: Tensor, state: Any) -> Tensor:
            state.parent = (state.parent or 0) + 1
            state.y = super().forward(x)
            return state.y

    state = Node(torch.zeros(1, 2))
    engine = Engine(Model(2, 2), SGD, recipe)
    for _ in range(3):
        engine(torch.ones(1, 2), state)
    assert (state.parent, state.y.dtype) == (3, torch.float32)
    assert bool(state.y.any())


def test_an_engine_is_freed_with_its_last_name() -> None:
    gc.disable()
    try:
        engine = Engine(nn.Linear(2, 2), SGD, "O2")
        alive = weakref.ref(engine)
        del engine
        assert alive() is None
    finally:
        gc.enable()


def test_a_wrapper_of_an_optimizer_without_hooks_is_taken() -> None:
    class Lookahead(torch.optim.Optimizer):
        def __init__(self, base: torch.optim.Optimizer) -> None:
            self.optimizer, self.defaults = base, base.defaults
            self.param_groups, self.state = base.param_groups, base.state

        def step(self, closure: Any = None) -> Any:
            return self.optimizer.step(closure)

    engine = Engine(nn.Linear(32, 2), lambda p: Lookahead(SGD(p)), replaced("O2"))
    engine.backward(engine(torch.ones(1, 32)).mean())
    assert engine.step().stepped


def test_the_culprit_of_summed_duplicates_is_named() -> None:
    engine = Engine(nn.Embedding(2, 1, sparse=True), SGD, "FP32")
    engine.backward((engine(torch.tensor([1, 1])) * 3e38).sum())
    assert engine.step().culprits == ("weight",)


def test_numpys_numbers_are_numbers() -> None:
    engine = Engine(nn.Linear(2, 1), SGD, "O2", losses=np.int64(2), seed=np.int64(3))
    assert len(engine.scalers) == 2
    assert Recipe("m", keep_norms=np.True_).keep_norms


def test_a_container_without_a_change_is_the_same_object() -> None:
    inputs = [1, {"text": "a"}]
    assert mapped_anywhere(torch.Tensor.half, inputs) is inputs


def test_other_attributes_of_a_container_stay() -> None:
    changed = mapped_anywhere(torch.Tensor.half, Output(torch.ones(1), note="mine"))
    assert (changed.note, changed.y.dtype) == ("mine", torch.float16)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (Plain, "a Plain: y stayed half"),
        (lambda y: {"deep": [Plain(y)]}, r"a Plain at \['deep'\]\[0\]: y stayed half"),
        (lambda y: (each for each in (y,)), "a generator, whose tensors stay"),
    ],
)
def test_what_cannot_be_entered_is_named_once(make: Callable[[Tensor], Any], words: str) -> None:
    class Model(nn.Linear):
        def forward(self, x: Tensor) -> Any:
            return make(super().forward(x))

    engine = Engine(Model(4, 4), SGD, "O2")
    with pytest.warns(UserWarning, match=words):
        engine(torch.ones(2, 4))
    with warnings.catch_warnings(record=True) as later:
        warnings.simplefilter("always")
        engine(torch.ones(2, 4))
    assert later == []


@pytest.mark.parametrize("recipe", ["O1", "O1 graph", "O2", "BF16", "FP8 current", "MXFP8"])
def test_a_call_outside_of_forward_computes_as_one_inside(recipe: str) -> None:
    torch.manual_seed(0)
    engine = Engine(nn.Sequential(nn.Linear(32, 8), nn.GELU(), nn.Linear(8, 1)), SGD, recipe)
    x = torch.randn(8, 32)
    with engine.forward():
        inside = engine(x)
    assert torch.equal(engine(x), inside)
    if recipe not in ("O2", "BF16"):
        assert not torch.equal(engine.model(x), inside), "the model alone computes in FP32"


# --- numbers that FP16 does not hold ---


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("trained", [True, False])
def test_a_weight_beyond_fp16_is_refused(dtype: torch.dtype, trained: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 1), nn.Linear(1, 1)).to(dtype)
    model[0].weight.data[0, 0] = BEYOND
    model[0].weight.requires_grad_(trained)
    with pytest.raises(ValueError, match=r"'0\.weight' holds .*, which FP16 cannot"):
        Engine(model, SGD, "O2")
    assert model[0].weight.dtype is dtype, "nothing was cast"


def test_a_bf16_buffer_beyond_fp16_keeps_its_dtype() -> None:
    model = nn.Linear(2, 2).bfloat16()
    model.register_buffer("mask", torch.full((2,), -1e30).bfloat16())
    model.__class__ = type("Masked", (nn.Linear,), {})
    to_model_format(model, FP16)
    assert (model.mask.dtype, model.weight.dtype) == (torch.bfloat16, torch.float16)


@pytest.mark.parametrize("load", ["load_model", "load_state_dict"])
def test_loading_a_number_beyond_fp16_changes_nothing(load: str) -> None:
    engine = Engine(nn.Linear(4, 1), SGD, "O2")
    before = engine.model.weight.clone()
    state = engine.state_dict() if load == "load_state_dict" else engine.fp32_model()
    weights = state["model"] if load == "load_state_dict" else state
    weights["weight"] = weights["weight"].clone().fill_(BEYOND)
    with pytest.raises(ValueError, match="'weight' of this state dict holds 100000"):
        getattr(engine, load)(state)
    assert torch.equal(engine.model.weight, before)


# --- a step by hand, gradients that are sparse, recipes in words ---


@pytest.mark.parametrize("recipe", ["O1", "O2", "FP8 current"])
def test_a_step_of_the_optimizer_by_hand_is_refused(recipe: str) -> None:
    engine = Engine(nn.Linear(32, 1), SGD, replaced(recipe))
    before = engine.model.weight.clone()
    engine.backward(engine(torch.ones(2, 32)).square().mean())
    with pytest.raises(RuntimeError, match=r"expected engine\.step\(\), got"):
        engine.optimizer.step()
    assert torch.equal(engine.model.weight, before)
    assert engine.step().stepped


def replaced(recipe: str) -> Recipe:
    """Return a recipe with a scale at which the first step is taken."""
    return dataclasses.replace(RECIPES[recipe], scaler=RECIPES["FP16 static"].scaler)


def test_a_copy_of_an_engine_refuses_a_step_by_hand_as_well() -> None:
    engine = copy.deepcopy(Engine(nn.Linear(4, 1), SGD, "O1"))
    engine.backward(engine(torch.ones(2, 4)).mean())
    with pytest.raises(RuntimeError, match=r"expected engine\.step\(\), got"):
        engine.optimizer.step()


def test_a_step_by_hand_without_scale_and_masters_is_a_plain_one() -> None:
    engine = Engine(nn.Linear(4, 1, bias=False), SGD, "FP32")
    plain = nn.Linear(4, 1, bias=False)
    plain.load_state_dict(engine.model.state_dict())
    engine.backward(engine(torch.ones(2, 4)).mean())
    engine.optimizer.step()
    plain(torch.ones(2, 4)).mean().backward()
    SGD(plain.parameters()).step()
    assert torch.equal(engine.model.weight, plain.weight)


def test_sparse_gradients_in_fp32_give_the_plain_loops_bits() -> None:
    def run(as_engine: bool) -> tuple[list[float], Tensor]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.EmbeddingBag(50, 16, mode="sum", sparse=True), nn.Linear(16, 1))
        generator = torch.Generator().manual_seed(1)
        engine = Engine(net, SGD, "FP32") if as_engine else None
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

    losses, weight = run(False)
    ours, our_weight = run(True)
    assert losses == ours
    assert torch.equal(weight, our_weight)


def test_clipping_sums_the_duplicates_of_a_sparse_gradient() -> None:
    net = nn.Embedding(4, 1, sparse=True)
    engine = Engine(net, SGD, "FP32")
    engine.backward(engine(torch.tensor([1, 1, 1])).sum())
    assert engine.clip(10.0).item() == 3.0, "one row with a gradient of 3, not three of 1"


def test_a_sum_of_duplicates_that_overflows_is_found() -> None:
    net = nn.Embedding(2, 1, sparse=True)
    engine = Engine(net, SGD, "FP32")
    engine.backward((engine(torch.tensor([1, 1])) * 3e38).sum())
    assert engine.step().found_inf


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
def test_a_recipe_refuses_other_kinds(values: dict[str, Any]) -> None:
    [field] = values
    with pytest.raises(TypeError, match=f"{field}: expected"):
        Recipe(**{"name": "m", **values})


def test_a_recipe_takes_names_and_dtypes() -> None:
    by_name = Recipe("m", model="fp16", master_weights=False, rounding="stochastic")
    by_dtype = Recipe("m", model=torch.float16, master_weights=False, rounding="STOCHASTIC")
    assert by_name == by_dtype
    assert by_name.rounding is RECIPES["FP16 stochastic"].rounding
    assert by_name.model is FP16
