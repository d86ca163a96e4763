"""The cache of casts of autocast, against regions that cache nothing."""

import gc
import itertools
import threading
import weakref

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from labkit.amp import CastCache, CastEvent, autocast
from labkit.amp.casting.autocast import _open
from labkit.formats import BF16, E4M3, E5M2, FP16
from labkit.gemm import half_storage


def test_a_region_opened_twice_casts_once() -> None:
    events = list[CastEvent]()
    a = torch.ones(2, 2)
    region = autocast(listen=events.append)
    with region, region:
        a @ a
        with autocast(enabled=False), region:
            assert (a @ a).dtype == torch.float16
        a @ a
    assert len(events) == 3
    assert (a @ a).dtype == torch.float32


def test_threads_do_not_share_a_cache_of_casts() -> None:
    """As for a GPU's backward pass, torch enters a region in another thread by itself."""
    weight = torch.nn.Parameter(torch.ones(2, 2))
    dtypes = list[torch.dtype]()
    entries = list[int]()

    def multiply() -> None:
        region = autocast()
        torch._C._push_on_torch_function_stack(region)
        try:
            dtypes.append((weight @ weight).dtype)
            # A region that `__enter__` did not enter has no `__exit__` that clears the cache.
            entries.append(len(_open.cache._casts))
        finally:
            torch._C._pop_torch_function_stack()

    own = _open.cache
    thread = threading.Thread(target=multiply)
    thread.start()
    thread.join()
    assert dtypes == [torch.float16]
    assert entries == [0]
    assert _open.cache is own
    assert len(own._casts) == 0


def test_worked_example_of_a_layer_called_twice() -> None:
    layer = nn.Linear(3, 3)
    x = torch.ones(2, 3)
    events = list[CastEvent]()
    with autocast(listen=events.append) as region:
        layer(layer(x))
        assert len(region.cache) == 2
        with autocast(BF16) as inner:
            layer(x)
            assert len(inner.cache) == 4, "the cache lacks a cast of one of the two formats"
        layer(x)
    assert region.cache.hits == 4
    assert region.cache.misses == 4
    assert [e.cached for e in events] == [0, 2, 2]
    # A closed region keeps the counts and no casts.
    assert len(region.cache) == 0


def test_the_cache_keeps_no_weight_alive() -> None:
    with autocast() as region:
        layer = nn.Linear(2, 2)
        weight = weakref.ref(layer.weight)
        layer(torch.ones(1, 2))
        del layer
        gc.collect()
        assert weight() is None
        assert len(region.cache) == 0


def test_an_edit_in_a_region_invalidates_the_cached_cast() -> None:
    """torch's own autocast multiplies by the old weight here."""
    w = nn.Parameter(torch.ones(2, 2))
    x = torch.ones(1, 2)
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
        # The parameter gets other memory.
        w.data = torch.full((2, 2), 3.0)
        assert (x @ w)[0, 0].item() == 6


def test_weight_used_twice_has_the_same_gradient_uncached() -> None:
    """Weight tying: an embedding of 5 words is also the last layer.

    Gradients are added up in FP32 either way.
    """
    for format in (FP16, BF16, E4M3):
        gradients = []
        for cache in (True, False):
            torch.manual_seed(0)
            table = nn.Embedding(5, 4)
            middle = nn.Linear(4, 4)
            with half_storage("cpu"), autocast(format, cache=cache) as region:
                hidden = table(torch.tensor([0, 2, 4]))
                for _ in range(3):
                    hidden = middle(hidden)
                loss = F.cross_entropy(F.linear(hidden, table.weight), torch.tensor([1, 3, 0]))
            loss.backward()
            gradients.append([table.weight.grad, middle.weight.grad, middle.bias.grad])
            # Three tensors are used seven times.
            hits, misses = (4, 3) if cache else (0, 0)
            assert region.cache.hits == hits
            assert region.cache.misses == misses
        assert all(map(torch.equal, *gradients)), format
        assert gradients[0][0].dtype == torch.float32


def test_a_cast_from_under_no_grad_serves_a_use_with_gradients() -> None:
    """A cast without history is not reused where gradients are on.

    torch once did, and the weight got no gradient. Nor is a cast that was made in inference mode
    reused outside of it.
    """
    for without in (torch.no_grad, torch.inference_mode):
        w = nn.Parameter(torch.ones(2, 2))
        x = torch.ones(1, 2, requires_grad=True)
        with autocast() as region:
            with without():
                x @ w
            y = x @ w
            with without():
                assert not (x @ w).requires_grad
        y.float().sum().backward()
        if without is torch.no_grad:
            # The second and the third product find the casts of both operands.
            assert region.cache.hits == 4
        assert w.grad.tolist() == [[1, 1], [1, 1]]
        assert x.grad is not None


def test_only_casts_of_fp32_leaves_with_gradients_are_cached() -> None:
    w = nn.Parameter(torch.ones(2, 2))
    for description, tensor in {
        "activation": w * 1,
        "frozen": nn.Parameter(torch.ones(2, 2), requires_grad=False),
        "plain": torch.ones(2, 2),
        "FP16": nn.Parameter(torch.ones(2, 2).half()),
        "FP64": nn.Parameter(torch.ones(2, 2).double()),
        "view": w.detach()[:].requires_grad_(),
    }.items():
        with autocast() as region:
            tensor @ tensor
            # pow is an FP32 operation, and casts no operand to FP16.
            w.pow(2)
            assert len(region.cache) == 0, description
            assert region.cache.misses == 0, description


def test_a_weight_with_a_reused_address_is_cast_again() -> None:
    cache = CastCache()
    memory = np.zeros(1, np.float32)
    identities = set()
    numbers = torch.from_numpy(memory)
    for value in range(50):
        # Python gives the object the address of the dead one before, and both have the same memory.
        w = nn.Parameter(numbers)
        memory[0] = value
        identities.add((id(w), w.data_ptr(), w._version))
        assert cache.find(w, torch.float16) is None
        cache.keep(w, torch.float16, w.detach().half())
        assert cache.find(w, torch.float16).item() == value
        del w
    assert len(identities) < 50, "no address was used twice, so the test shows nothing"


def test_one_weight_in_nested_regions_native_and_emulated() -> None:
    """FP16 with gradients in BF16 is emulated in FP32 tensors.

    A cast that is cached there must not become an operand of native FP16.
    """
    # The format of values, and the format of gradients.
    formats = [(FP16, None), (FP16, BF16), (BF16, None), (E4M3, None), (E4M3, E5M2)]
    for outer, inner in itertools.product(formats, formats):
        results = []
        for cache in (True, False):
            torch.manual_seed(0)
            layer = nn.Linear(4, 4)
            x = torch.randn(3, 4)
            with half_storage("cpu"), autocast(outer[0], gradient_format=outer[1], cache=cache):
                y = layer(x)
                with autocast(inner[0], gradient_format=inner[1], cache=cache):
                    z = layer(y)
                out = layer(z)
            out.float().square().sum().backward()
            results.append([y, z, out, *(p.grad for p in layer.parameters())])
        assert all(
            a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(*results, strict=True)
        ), (outer, inner)
