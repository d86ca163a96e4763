"""The cache of weight casts: it changes time and nothing else. The oracle: the region without it, and casts by hand."""

import gc
import itertools
import weakref

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from labkit.amp import CastCache, CastEvent, autocast
from labkit.formats import BF16, E4M3, E5M2, FP16
from labkit.gemm import half_storage


def test_worked_example_the_second_use_of_a_layer_finds_its_casts() -> None:
    layer, x, events = nn.Linear(3, 3), torch.ones(2, 3), list[CastEvent]()
    with autocast(listen=events.append) as region:
        layer(layer(x))
        assert len(region.cache) == 2
    assert (region.cache.hits, region.cache.misses) == (2, 2)
    assert [e.cached for e in events] == [0, 2]
    assert len(region.cache) == 0, "it is cleared when the region closes, but the counts can be read"


def test_an_edit_in_the_region_is_seen() -> None:
    """torch's own autocast multiplies by the old weight here."""
    w, x = nn.Parameter(torch.ones(2, 2)), torch.ones(1, 2)
    products = []
    for region in (torch.autocast("cpu", torch.bfloat16), autocast(BF16)):
        with region, torch.no_grad():
            torch.mm(x, w)
            w.mul_(2)
            products.append(torch.mm(x, w)[0, 0].item())
            w.div_(2)
    assert products == [2, 4]
    with autocast():
        x @ w
        w.data = torch.full((2, 2), 3.0)  # other data behind the same parameter
        assert (x @ w)[0, 0].item() == 6


def test_a_weight_used_twice_has_the_same_gradient_with_and_without_a_cache() -> None:
    """Weight tying: an embedding of 5 words is also the last layer. Gradients are added up in FP32 either way."""
    for format in (FP16, BF16, E4M3):
        gradients = []
        for cache in (True, False):
            torch.manual_seed(0)
            table, middle = nn.Embedding(5, 4), nn.Linear(4, 4)
            with half_storage("cpu"), autocast(format, cache=cache) as region:
                hidden = table(torch.tensor([0, 2, 4]))
                for _ in range(3):
                    hidden = middle(hidden)
                loss = F.cross_entropy(F.linear(hidden, table.weight), torch.tensor([1, 3, 0]))
            loss.backward()
            gradients.append([table.weight.grad, middle.weight.grad, middle.bias.grad])
            assert (region.cache.hits, region.cache.misses) == ((4, 3) if cache else (0, 0))
        assert all(map(torch.equal, *gradients)), format
        assert gradients[0][0].dtype == torch.float32


def test_a_cast_from_under_no_grad_serves_a_use_with_gradients() -> None:
    """In torch, once, a cast that was cached without history was reused with gradients on, and the weight got none."""
    w, x = nn.Parameter(torch.ones(2, 2)), torch.ones(1, 2)
    with autocast() as region:
        with torch.no_grad():
            x @ w
        y = x @ w
        with torch.no_grad():
            assert not (x @ w).requires_grad
    y.float().sum().backward()
    assert region.cache.hits == 2
    assert w.grad.tolist() == [[1, 1], [1, 1]]
    w, x = nn.Parameter(torch.ones(2, 2)), torch.ones(1, 2, requires_grad=True)
    with autocast():
        with torch.inference_mode():
            x @ w  # and a cast from in here does not leave it
        (x @ w).float().sum().backward()
    assert w.grad is not None
    assert x.grad is not None


def test_only_casts_of_fp32_leaves_that_ask_for_gradients_are_kept() -> None:
    w = nn.Parameter(torch.ones(2, 2))
    kinds = {
        "activation": w * 1,
        "frozen": nn.Parameter(torch.ones(2, 2), requires_grad=False),
        "plain": torch.ones(2, 2),
        "FP16": nn.Parameter(torch.ones(2, 2).half()),
        "FP64": nn.Parameter(torch.ones(2, 2).double()),
        "view": w.detach()[:].requires_grad_(),
    }
    for kind, tensor in kinds.items():
        with autocast() as region:
            tensor @ tensor
            assert (len(region.cache), region.cache.misses) == (0, 0), kind
    with autocast() as region:
        w.pow(2)
        assert len(region.cache) == 0, "FP32 operations cast nothing down"


def test_two_formats_are_two_casts_and_regions_share_one_cache() -> None:
    w, x = nn.Parameter(torch.ones(2, 2)), torch.ones(1, 2)
    with autocast(FP16) as outer:
        x @ w
        with autocast(BF16) as inner:
            assert (x @ w).dtype == torch.bfloat16
            assert inner.cache is outer.cache
            assert len(inner.cache) == 2
        x @ w
        assert outer.cache.hits == 1, "the inner region's end did not clear it"


def test_it_keeps_no_weight_alive() -> None:
    with autocast() as region:
        layer = nn.Linear(2, 2)
        layer(torch.ones(1, 2))
        alive = weakref.ref(layer.weight)
        del layer
        gc.collect()
        assert alive() is None
        assert len(region.cache) == 0


def test_a_new_weight_where_an_old_one_was_is_another() -> None:
    cache, place, places = CastCache(), np.zeros(1, np.float32), set()
    numbers = torch.from_numpy(place)
    for value in range(50):
        w = nn.Parameter(numbers)  # Python gives it the address of the last, dead one; its numbers have theirs
        place[0] = value
        places.add((id(w), w.data_ptr(), w._version))
        assert cache.find(w, torch.float16) is None
        cache.keep(w, torch.float16, w.detach().half())
        assert cache.find(w, torch.float16).item() == value
        del w
    assert len(places) < 50, "nothing but its life tells one from another"


def test_one_weight_in_nested_regions_native_and_emulated() -> None:
    """FP16 with gradients in BF16 is emulated, in FP32 tensors: what is kept of it is no operand for native FP16."""
    formats = [(FP16, None), (FP16, BF16), (BF16, None), (E4M3, None), (E4M3, E5M2)]  # of values, and of gradients
    for outer, inner in itertools.product(formats, formats):
        results = []
        for cache in (True, False):
            torch.manual_seed(0)
            layer, x = nn.Linear(4, 4), torch.randn(3, 4)
            with half_storage("cpu"), autocast(outer[0], gradient_format=outer[1], cache=cache):
                y = layer(x)
                with autocast(inner[0], gradient_format=inner[1], cache=cache):
                    z = layer(y)
                out = layer(z)
            out.float().square().sum().backward()
            results.append([y, z, out, *(p.grad for p in layer.parameters())])
        assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(*results, strict=True)), (outer, inner)
