"""The interface of torch.autocast in labkit. Which operations are cast is tested in tests/amp."""

import inspect
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from labkit import amp
from labkit.amp.casting.autocast import current
from labkit.frameworks import (
    autocast,
    custom_bwd,
    custom_fwd,
    is_autocast_enabled,
    torch_amp,
    torch_cuda_amp,
)
from tests.frameworks.refusals import assert_refused_in_torchs_words

A = torch.linspace(-3, 3, 12).reshape(3, 4)
B = torch.linspace(0, 1, 8).reshape(4, 2)


def fp16():
    return autocast("cpu", torch.float16)


def test_worked_example_of_a_product():
    with fp16():
        product = A @ B
        assert product.dtype == torch.float16
        assert product.relu().dtype == torch.float16
        # As on CUDA; torch.autocast("cpu") leaves it in FP16.
        assert torch.softmax(product, dim=1).dtype == torch.float32
    # FP16 operands, sums in FP32, one rounding.
    assert torch.equal(product, (A.half().float() @ B.half().float()).half())
    assert (A @ B).dtype == torch.float32
    with autocast("cpu"):
        assert (A @ B).dtype == torch.bfloat16
        assert torch.get_autocast_dtype("cpu") == torch.bfloat16


SHORT = torch.rand(2)
REFUSED = {
    "too few points": lambda: torch.trapezoid(B, SHORT[:1], dim=0),
    "too few points of a running integral": lambda: torch.cumulative_trapezoid(B, SHORT, dim=0),
    "a bool": lambda: torch.trapezoid(B > 0),
    "no dimension": lambda: torch.mvlgamma(B + 5, 0),
    "points of more dimensions": lambda: torch.trapezoid(A[0], A),
    "a power of matrices that are not square": lambda: torch.linalg.matrix_power(A, 2),
    "a power of a vector": lambda: torch.linalg.matrix_power(A[0], 2),
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
def test_arguments_that_torch_refuses_are_refused_in_its_words(call):
    with pytest.raises(RuntimeError) as of_torch:
        call()
    with pytest.raises(RuntimeError) as of_labkit, fp16():
        call()
    assert str(of_labkit.value) == str(of_torch.value)


@pytest.mark.parametrize("smoothing", [-0.1, float("nan")])
def test_label_smoothing_that_torch_ignores_changes_nothing(smoothing):
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    classes = torch.tensor([0, 1, 2, 0])
    with fp16():
        plain = F.cross_entropy(logits, classes)
        assert torch.equal(F.cross_entropy(logits, classes, label_smoothing=smoothing), plain)


EMPTY = {
    "running integral": lambda: torch.cumulative_trapezoid(torch.empty(0)),
    "power of a batch of matrices": lambda: torch.linalg.matrix_power(torch.empty(2, 0, 0), 2),
    "power of no matrices": lambda: torch.linalg.matrix_power(torch.empty(0, 3, 3), 5),
    "grid of no maps": lambda: torch.affine_grid_generator(
        torch.empty(0, 2, 3), (0, 1, 4, 5), False
    ),
    "cross entropy of no classes": lambda: F.cross_entropy(torch.empty(3, 0), torch.empty(3, 0)),
    "cross entropy of no examples": lambda: F.cross_entropy(torch.empty(0, 3), torch.empty(0, 3)),
}


@pytest.mark.parametrize("call", EMPTY.values(), ids=EMPTY)
def test_a_composite_of_empty_tensors_is_torchs(call):
    expected = call()
    with fp16():
        result = call()
    torch.testing.assert_close(result, expected, equal_nan=True, check_dtype=False)


class TestCrossEntropy:
    """torch calls log_softmax with the dtype of the logits, which its autocast respects."""

    LOGITS = 8 * torch.randn(64, 10, generator=torch.Generator().manual_seed(0)).half()
    CLASSES = torch.arange(64) % 10
    EXACT = F.cross_entropy(LOGITS.float(), CLASSES)

    @pytest.mark.parametrize("loss", [F.cross_entropy, nn.CrossEntropyLoss()])
    def test_its_logarithms_are_rounded_as_by_torch_on_a_gpu(self, loss):
        with fp16():
            found = loss(self.LOGITS, self.CLASSES)
        logarithms = F.log_softmax(self.LOGITS, 1)
        assert logarithms.dtype == torch.float16
        expected = F.nll_loss(logarithms.float(), self.CLASSES)
        assert found.dtype == torch.float32
        assert torch.equal(found, expected)
        assert not torch.equal(found, self.EXACT)

    def test_autocast_of_the_engine_rounds_none(self):
        with amp.autocast():
            assert torch.equal(F.cross_entropy(self.LOGITS, self.CLASSES), self.EXACT)

    def test_fp32_logits_are_not_rounded(self):
        with fp16():
            assert torch.equal(F.cross_entropy(self.LOGITS.float(), self.CLASSES), self.EXACT)

    def test_a_registered_rule_avoids_the_rounding(self):
        with fp16(), amp.float_function("cross_entropy"):
            assert torch.equal(F.cross_entropy(self.LOGITS, self.CLASSES), self.EXACT)


def test_cross_entropy_of_fp32_logits_is_torchs():
    """Our Python implementation equals torch's in C++, for classes and for probabilities.

    Values and gradients are compared.
    """
    generator = torch.Generator().manual_seed(0)
    flat, image = (torch.randn(shape, generator=generator) for shape in ((6, 5), (2, 5, 3, 2)))
    knobs = itertools.product(
        ("mean", "sum", "none"), (0.0, 0.1), (None, torch.linspace(0.5, 2, 5))
    )
    for (reduction, smoothing, weight), logits in itertools.product(knobs, (flat, image, flat[0])):
        case = {"reduction": reduction, "label_smoothing": smoothing, "weight": weight}
        dim = min(1, logits.dim() - 1)
        classes = torch.randint(5, logits.movedim(dim, -1).shape[:-1], generator=generator)
        for target, ignored in ((classes, -100), (classes, 2), (logits.flip(0).softmax(dim), -100)):
            answers = []
            for region in (nullcontext(), fp16()):
                x = logits.clone().requires_grad_()
                with region:
                    loss = F.cross_entropy(x, target, ignore_index=ignored, **case)
                loss.sum().backward()
                answers.append((loss.detach(), x.grad))
            torch.testing.assert_close(
                *answers,
                rtol=1e-6,
                atol=1e-6,
                equal_nan=True,
                msg=lambda text, case=case: f"{case}: {text}",
            )


def test_cross_entropy_refuses_what_torch_refuses():
    for wrong in (
        # Integers in place of probabilities.
        {"target": torch.ones(4, 3, dtype=torch.long)},
        # An index to ignore is for classes, not for probabilities.
        {"ignore_index": 1},
        {"label_smoothing": 2.0},
    ):
        messages = []
        for region in (nullcontext(), fp16()):
            with region, pytest.raises(RuntimeError) as refused:
                F.cross_entropy(torch.randn(4, 3), **{"target": torch.full((4, 3), 1 / 3), **wrong})
            messages.append(str(refused.value))
        assert messages[0] == messages[1]


def test_names_and_signatures_are_torchs():
    pairs = [
        (getattr(torch.autocast, n), getattr(autocast, n))
        for n in ("__init__", "__call__", "__enter__")
    ]
    pairs += [(torch.amp.custom_fwd, custom_fwd), (torch.amp.custom_bwd, custom_bwd)]
    for pair in pairs:
        theirs, ours = (inspect.signature(function).parameters.values() for function in pair)
        assert [(p.name, p.kind, p.default) for p in ours] == [
            (p.name, p.kind, p.default) for p in theirs
        ]
    public = {name for name in torch.amp.__all__ if name not in ("autocast_mode", "grad_scaler")}
    assert public <= set(torch_amp.__all__)


DECORATORS = {
    autocast: (custom_fwd, custom_bwd),
    torch.autocast: (torch.amp.custom_fwd, torch.amp.custom_bwd),
}
MISUSES = {
    "no string": lambda make: make(torch.device("cpu")),
    "no such device": lambda make: make("abacus"),
    "a device without autocast": lambda make: make("meta"),
    "not callable": lambda make: make("cpu")(A),
    "no string for custom_fwd": lambda make: DECORATORS[make][0](device_type=torch.device("cpu")),
    "no string for custom_bwd": lambda make: DECORATORS[make][1](device_type=None),
}


def test_misuses_are_refused_by_torchs_message_and_more():
    assert_refused_in_torchs_words(MISUSES, torch.autocast, autocast)


def test_unsupported_dtype_or_device_warns_and_disables(monkeypatch):
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: True)
    for arguments, message in (
        *(
            (("cpu", dtype), "the target dtype is not supported. Disabling autocast")
            for dtype in (torch.float32, torch.int8, torch.float8_e5m2)
        ),
        (("cuda",), "CUDA is not available or torch_xla is imported. Disabling autocast."),
    ):
        messages = []
        for make in (torch.autocast, autocast):
            with pytest.warns(UserWarning, match=message) as caught:
                region = make(*arguments)
            messages.append(str(caught[0].message))
            assert caught[0].filename == __file__
            with region:
                assert (A @ B).dtype == torch.float32
        assert messages[1].startswith(messages[0])


def test_a_region_ends_inside_of_another_one():
    with fp16():
        with autocast("cpu", enabled=False):
            with autocast("cpu", torch.bfloat16):
                assert (A @ B).dtype == torch.bfloat16
            assert (A @ B).dtype == torch.float32
        assert (A @ B).dtype == torch.float16


def test_a_region_is_enabled_for_its_device():
    with fp16():
        assert is_autocast_enabled("cpu")
        assert not is_autocast_enabled("cuda")
        with autocast("cpu", enabled=False):
            assert not is_autocast_enabled("cpu")


def test_a_region_opens_none_of_torch():
    with fp16():
        assert not torch.is_autocast_enabled("cpu")


def test_a_region_that_is_entered_twice_ends_after_an_error():
    region = fp16()
    with pytest.raises(ZeroDivisionError), region, region:
        raise ZeroDivisionError
    assert not is_autocast_enabled("cpu")
    assert (A @ B).dtype == torch.float32


def test_decorated_function_may_call_itself():
    @fp16()
    def power(n: int) -> torch.Tensor:
        """Multiply ones."""
        return torch.eye(2) @ (power(n - 1) if n else torch.eye(2))

    assert power.__name__ == "power"
    assert power.__doc__ == "Multiply ones."
    assert power(3).dtype == torch.float16
    assert (A @ B).dtype == torch.float32


def test_a_generator_that_torch_runs_uncast_is_refused():
    def products():
        yield A @ B

    (from_torchs,) = torch.autocast("cpu", torch.float16)(products)()
    # torch decorates a generator, but its region has closed when the generator runs.
    assert from_torchs.dtype == torch.float32
    with pytest.raises(TypeError, match="products runs after its call has returned"):
        fp16()(products)


def test_region_belongs_to_its_thread():
    both_inside = threading.Barrier(2)

    @fp16()
    def work(_: int) -> torch.dtype:
        both_inside.wait(timeout=60)
        dtype = (A @ B).dtype
        both_inside.wait(timeout=60)
        return dtype

    with fp16(), ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, range(2))) == [torch.float16] * 2
        assert pool.submit(lambda: ((A @ B).dtype, is_autocast_enabled("cpu"))).result() == (
            torch.float32,
            False,
        )


def custom_product(decorators, cast_inputs, device_type="cpu"):
    """Return a product as a custom autograd Function, and the dtypes of its results so far.

    Args:
        decorators: custom_fwd and custom_bwd, torch's or ours.
        cast_inputs: the argument of custom_fwd.
        device_type: the argument of both decorators.
    """
    forward_as, backward_as = decorators
    dtypes = []

    class Product(torch.autograd.Function):
        @staticmethod
        @forward_as(device_type=device_type, cast_inputs=cast_inputs)
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            product = a @ b
            dtypes.append(product.dtype)
            return product

        @staticmethod
        @backward_as(device_type=device_type)
        def backward(ctx, gradient):
            a, b = ctx.saved_tensors
            # in FP16 if backward runs in the region of forward
            dtypes.append((gradient.float() @ b.t().float()).dtype)
            return (gradient @ b.t()).to(a.dtype), (a.t() @ gradient).to(b.dtype)

    return Product.apply, dtypes


def test_custom_autograd_functions_compute_in_torchs_dtypes():
    """Compare with torch's own regions, which cast a product on a CPU as on CUDA."""
    for region, cast_inputs in itertools.product(
        (None, True, False), (None, torch.float32, torch.float16)
    ):
        outcome = []
        for make, decorators in DECORATORS.items():
            product, dtypes = custom_product(decorators, cast_inputs)
            a = A.clone().requires_grad_()
            b = B.clone().requires_grad_()
            with (
                make("cpu", torch.float16, enabled=region) if region is not None else nullcontext()
            ):
                out = product(a, b)
            out.float().sum().backward()
            outcome.append((dtypes, out.dtype, a.grad.dtype, b.grad.dtype))
        assert outcome[0] == outcome[1], (region, cast_inputs)


def test_operations_of_another_device_are_not_cast():
    for make, decorators in DECORATORS.items():
        product, _ = custom_product(decorators, torch.float32, device_type="cuda")
        with make("cpu", torch.float16):
            # The operations inside are cast by the region for the CPU.
            assert product(A, B).dtype == torch.float16
    with fp16():
        assert (A.to("meta") @ B.to("meta")).dtype == torch.float32
        # The tensors are inside of a list.
        assert torch.linalg.multi_dot([A, B]).dtype == torch.float16


def test_weight_is_cast_once_in_a_region():
    weight = nn.Parameter(B.clone())
    for cache_enabled, hits in ((None, 2), (True, 2), (False, 0)):
        with autocast("cpu", torch.float16, cache_enabled=cache_enabled):
            for _ in range(3):
                A @ weight
            assert current().cache.hits == hits


def test_disabled_region_changes_nothing(monkeypatch):
    """Claim C52: a region with enabled=False changes no result."""
    opened = []

    def recording(device):
        opened.append(device)
        return nullcontext()

    monkeypatch.setattr("labkit.frameworks.torch_amp.half_storage", recording)
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    x = torch.randn(5, 4)
    plain = model(x)
    with autocast("cpu", torch.float16, enabled=False):
        assert torch.equal(model(x), plain)
    assert opened == []
    with fp16():
        assert not torch.equal(model(x), plain)
    assert opened == ["cpu"]


@pytest.mark.parametrize("name", ["autocast", "GradScaler", "custom_fwd", "custom_bwd"])
def test_earlier_spelling_has_torchs_arguments(name):
    ours, theirs = (
        inspect.signature(getattr(module, name)).parameters.values()
        for module in (torch_cuda_amp, torch.cuda.amp)
    )
    assert [(one.name, one.kind, one.default) for one in ours] == [
        (other.name, other.kind, other.default) for other in theirs
    ]


def test_a_scaler_of_the_earlier_spelling_is_enabled():
    scaler = torch_cuda_amp.GradScaler(init_scale=8.0)
    assert scaler.is_enabled()
    assert scaler.scale(torch.ones(())).item() == 8.0


def test_a_region_of_the_earlier_spelling_casts():
    with torch_cuda_amp.autocast(dtype=torch.bfloat16):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.bfloat16
