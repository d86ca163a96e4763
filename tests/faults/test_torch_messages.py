"""Messages that torch itself raises: failing code, the card for its message, repaired code."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice, product
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from labkit.faults import explain
from labkit.faults.messages import messages_in

HALF = torch.float16
BF16 = torch.bfloat16
X = torch.linspace(-1, 1, 16).reshape(4, 4)
H = X.half()
FIRST_TWO = torch.tensor([0, 1])
Code = Callable[[], object]


def parameter() -> nn.Parameter:
    return nn.Parameter(X.clone())


def training_with_scaler() -> tuple[nn.Parameter, SGD, torch.amp.GradScaler]:
    weight = parameter()
    return weight, SGD([weight], lr=0.1), torch.amp.GradScaler("cpu")


def iteration(
    order: str, weight: torch.Tensor, optimizer: SGD, scaler: torch.amp.GradScaler
) -> None:
    """Run the calls of an iteration in an order.

    Args:
        order: A letter for each call: b is scale and backward, u is unscale_, s is step, U is
            update.
        weight: The weight that is trained.
        optimizer: Its optimizer.
        scaler: The scaler.
    """
    calls: dict[str, Code] = {
        "b": lambda: scaler.scale((weight * X).sum()).backward(),
        "u": lambda: scaler.unscale_(optimizer),
        "s": lambda: scaler.step(optimizer),
        "U": lambda: scaler.update(),
    }
    for letter in order:
        calls[letter]()


def iterations(*orders: str) -> Code:
    """Return code that runs an iteration for each order; `iteration` explains its letters."""

    def run() -> None:
        weight, optimizer, scaler = training_with_scaler()
        for order in orders:
            optimizer.zero_grad()
            iteration(order, weight, optimizer, scaler)

    return run


def in_autocast(run: Code) -> Code:
    def inside() -> object:
        with torch.autocast("cpu", BF16):
            return run()

    return inside


def mean_by_index(dtype: torch.dtype) -> torch.Tensor:
    """Add rows that a layer computed under autocast to a buffer."""
    rows = nn.Linear(4, 4)(X)
    return torch.zeros(4, 4).index_add_(0, FIRST_TWO, rows[:2].to(dtype))


def moving_average(dtype: torch.dtype) -> torch.Tensor:
    return X.clone().lerp_(H.to(dtype), 0.1)


def trained_through_checkpoint(reentrant: bool) -> torch.Tensor:
    """Return the gradient of a layer that is first in its model, and checkpointed."""
    layer = nn.Linear(4, 4)
    output = checkpoint(layer, X, use_reentrant=reentrant)
    (output.sum() + nn.Linear(4, 1)(X).sum()).backward()
    assert layer.weight.grad is not None
    return layer.weight.grad


def evaluated_before_backward(early: bool) -> None:
    """Switch dropout off between the two runs of a checkpointed block, or behind both."""
    block = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4))
    output = checkpoint(block, X.clone().requires_grad_(), use_reentrant=False)
    if early:
        block.eval()
    output.sum().backward()


def keep_casts(_: Any, operation: Any, *__: Any, **___: Any) -> CheckpointPolicy:
    kept = operation == torch.ops.aten._to_copy.default
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def shared_weight_checkpointed(cache: bool) -> None:
    """Use a layer in two checkpointed blocks of one region, whose policy saves casts."""
    layer = nn.Linear(4, 4)
    inputs = X.clone().requires_grad_()
    contexts = partial(create_selective_checkpoint_contexts, keep_casts)
    with torch.autocast("cpu", BF16, cache_enabled=cache):
        for _ in range(2):
            inputs = checkpoint(
                lambda x: layer(x).sin(), inputs, use_reentrant=False, context_fn=contexts
            )
    inputs.sum().backward()


def rotated(dtype: torch.dtype) -> torch.Tensor:
    """Rotate pairs of numbers by complex multiplication."""
    pairs = torch.view_as_complex(X.to(dtype).reshape(4, 2, 2))
    return torch.view_as_real(pairs * 1j).flatten(-2).to(BF16)


def counted(count: torch.Tensor) -> torch.Tensor:
    return count.add_(torch.tensor(0.5))


OF_A_DISABLED_SCALER = torch.amp.GradScaler("cpu", enabled=False).state_dict()


def load_if_any(state: dict[str, object]) -> None:
    if state:
        torch.amp.GradScaler("cpu").load_state_dict(state)


def unscaled_gradient(dtype: torch.dtype) -> torch.Tensor | None:
    """Return a gradient of weights that are stored in a dtype, unscaled."""
    weight = nn.Parameter(X.to(dtype))
    scaler = torch.amp.GradScaler("cpu")
    optimizer = SGD([weight], lr=0.1)
    with torch.autocast("cpu", HALF):
        loss = (H @ weight).float().mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    return weight.grad


def checked(dtype: torch.dtype) -> bool:
    inputs = (X.to(dtype, copy=True).requires_grad_(),)
    return torch.autograd.gradcheck(lambda x: 2 * x, inputs, raise_exception=False)


def graph_of_penalty(reentrant: bool) -> tuple[torch.Tensor, ...]:
    inputs = X.clone().requires_grad_()
    output = checkpoint(torch.sin, inputs, use_reentrant=reentrant)
    return torch.autograd.grad(output.sum(), inputs)


def loaded(dtype: torch.dtype) -> torch.Tensor:
    return nn.Embedding(4, 4)(torch.tensor([1, 2]).to(dtype))


def centred(matrix: torch.Tensor) -> torch.Tensor:
    return (matrix - matrix.mean()).float()


def covariance(dtype: torch.dtype) -> torch.Tensor:
    matrix = (torch.ones(3, 3) + 1e-4 * torch.eye(3)).to(dtype)
    return torch.linalg.cholesky(matrix.float())


# The first words of a message of the table, or the id of a fault; code that raises the message; and
# repaired code.
RAISED: list[tuple[str, Code, Code]] = [
    ("index_add_()", in_autocast(lambda: mean_by_index(BF16)), lambda: mean_by_index(X.dtype)),
    (
        "index_add_()",
        lambda: torch.zeros(4, 4).index_copy_(0, FIRST_TWO, H[:2]),
        lambda: torch.zeros(4, 4).index_copy_(0, FIRST_TWO, H[:2].float()),
    ),
    (
        "index_add_()",
        lambda: torch.zeros(4).put_(FIRST_TWO, H[0, :2]),
        lambda: torch.zeros(4).put_(FIRST_TWO, X[0, :2]),
    ),
    (
        "Index put requires",
        lambda: torch.zeros(4, 4).index_put_((FIRST_TWO,), H[:2]),
        lambda: torch.zeros(4, 4).index_put_((FIRST_TWO,), H[:2].float()),
    ),
    (
        "scatter(): Expected",
        lambda: torch.zeros(4, 4).scatter_add_(0, torch.zeros(4, 4).long(), H),
        lambda: torch.zeros(4, 4).scatter_add_(0, torch.zeros(4, 4).long(), H.float()),
    ),
    ("expected dtype float for", lambda: moving_average(HALF), lambda: moving_average(X.dtype)),
    ("expected scalar type Long", lambda: loaded(HALF), lambda: loaded(torch.int64)),
    (
        "expected scalar type Long",
        lambda: F.cross_entropy(X, torch.arange(4).half()),
        lambda: F.cross_entropy(X, torch.arange(4)),
    ),
    (
        "masked_fill_ only",
        lambda: X.masked_fill(H, 0.0),
        lambda: X.masked_fill(H.bool(), 0.0),
    ),
    ("masked_fill_ only", lambda: torch.where(X, X, X), lambda: torch.where(X > 0, X, X)),
    ("mask_constant", lambda: H.masked_fill(X > 0, -1e9), lambda: H.masked_fill(X > 0, -1e4)),
    (
        "attempting to assign",
        lambda: setattr(nn.Parameter(H.clone()), "grad", X),
        lambda: setattr(nn.Parameter(X.clone()), "grad", H.float()),
    ),
    (
        "RNN input dtype",
        lambda: nn.LSTM(4, 4)(H),
        lambda: nn.LSTM(4, 4)(H.float()),
    ),
    ("prelu:", lambda: nn.PReLU()(H), lambda: nn.PReLU()(H.float())),
    ("both inputs should", lambda: torch.dot(H[0], X[0]), lambda: torch.dot(H[0].float(), X[0])),
    (
        "both inputs should",
        lambda: torch.tensordot(H, X, 1),
        lambda: torch.tensordot(H.float(), X, 1),
    ),
    ("both inputs should", lambda: torch.mv(H, X[0]), lambda: torch.mv(H.float(), X[0])),
    (
        "both inputs should",
        lambda: nn.Bilinear(4, 4, 2)(X, H),
        lambda: nn.Bilinear(4, 4, 2)(X, H.float()),
    ),
    (
        "both inputs should",
        lambda: torch.linalg.solve(X + 9 * torch.eye(4), H.double()),
        lambda: torch.linalg.solve(X + 9 * torch.eye(4), H.float()),
    ),
    (
        "result type Float",
        lambda: counted(torch.tensor(0)),
        lambda: counted(torch.tensor(0.0)),
    ),
    (
        "Expected out tensor",
        lambda: torch.matmul(H, H, out=torch.empty(4, 4)),
        lambda: torch.matmul(H, H, out=torch.empty(4, 4, dtype=HALF)),
    ),
    (
        "Expected out tensor",
        lambda: torch.where(X > 0, X, X, out=torch.empty(4, 4, dtype=HALF)),
        lambda: torch.where(X > 0, X, X, out=torch.empty(4, 4)),
    ),
    (
        "Expected out tensor",
        lambda: torch.index_select(X, 0, FIRST_TWO, out=torch.empty(2, 4, dtype=HALF)),
        lambda: torch.index_select(X, 0, FIRST_TWO, out=torch.empty(2, 4)),
    ),
    ("cuFFT only supports", lambda: torch.fft.rfft(H), lambda: torch.fft.rfft(H.float())),
    (
        "cuFFT only supports",
        lambda: torch.stft(H[0], 4, window=H[1], return_complex=True),
        lambda: torch.stft(X[0], 4, window=X[1], return_complex=True),
    ),
    (
        "linalg.inv: Low",
        lambda: torch.linalg.inv((X + 9 * torch.eye(4)).bfloat16()),
        lambda: torch.linalg.inv((X + 9 * torch.eye(4)).bfloat16().float()),
    ),
    ("linalg.inv: Low", lambda: torch.linalg.pinv(H), lambda: torch.linalg.pinv(H.float())),
    ("linalg.inv: Low", lambda: H.quantile(0.5), lambda: H.float().quantile(0.5)),
    (
        "linalg.inv: Low",
        lambda: np.linalg.inv(np.eye(2, dtype=np.float16)),
        lambda: np.linalg.inv(np.eye(2, dtype=np.float32)),
    ),
    ("Expected both inputs", lambda: rotated(BF16), lambda: rotated(X.dtype)),
    (
        "linalg.svd: Expected",
        lambda: torch.arange(4).mean(),
        lambda: torch.arange(4).float().mean(),
    ),
    (
        '"add_stub" not',
        lambda: X.to(torch.float8_e4m3fn) + 1,
        lambda: X.to(torch.float8_e4m3fn).to(BF16) + 1,
    ),
    (
        "TypeError: Got unsupported",
        lambda: X.bfloat16().numpy(),
        lambda: X.bfloat16().float().numpy(),
    ),
    (
        "Quantize only works",
        lambda: torch.quantize_per_tensor(H, 0.1, 0, torch.qint8),
        lambda: torch.quantize_per_tensor(H.float(), 0.1, 0, torch.qint8),
    ),
    (
        "softmax with half",
        lambda: torch.ops.aten._softmax(H, 0, True),
        lambda: torch.softmax(H.float(), 0),
    ),
    (
        "self.size(-1) must",
        lambda: torch.ones(3, dtype=HALF).view(torch.float32),
        lambda: torch.ones(3, dtype=HALF).to(torch.float32),
    ),
    (
        "Half did not match",
        lambda: torch.testing.assert_close(H, X),
        lambda: torch.testing.assert_close(H.float(), X, rtol=2**-10, atol=2**-14),
    ),
    (
        "Only Tensors of floating",
        lambda: nn.Parameter(torch.ones(3, dtype=torch.int8)),
        lambda: nn.Parameter(torch.ones(3, dtype=torch.int8), requires_grad=False),
    ),
    (
        "nn.Module.to only",
        lambda: nn.Linear(4, 4).to(torch.int8),
        lambda: nn.Linear(4, 4).to(HALF),
    ),
    (
        "mixed dtype (CPU)",
        lambda: nn.LayerNorm(4).half()(X),
        lambda: nn.LayerNorm(4).half()(X.half()),
    ),
    (
        "all elements of input",
        lambda: F.binary_cross_entropy(2 * X, X.abs()),
        lambda: F.binary_cross_entropy_with_logits(2 * X, X.abs()),
    ),
    (
        "Expected parameter logits",
        # compiling anything turns the checks off by default
        lambda: torch.distributions.Categorical(logits=(70000 * X).half(), validate_args=True),
        lambda: torch.distributions.Categorical(logits=70000 * X, validate_args=True),
    ),
    ("linalg.cholesky:", lambda: covariance(HALF), lambda: covariance(torch.float32)),
    (
        "linalg.svd: The algorithm",
        lambda: torch.linalg.svd(centred((7e4 * X).half())),
        lambda: torch.linalg.svd(centred(7e4 * X)),
    ),
    (
        "RuntimeError: value cannot",
        lambda: torch.randperm(3000, dtype=HALF),
        lambda: torch.randperm(3000).float(),
    ),
    ("unscale_() has already", iterations("buusU"), iterations("busU")),
    ("unscale_() has already", iterations("bu", "busU"), iterations("buU", "busU")),
    ("unscale_() is being called", iterations("bsuU"), iterations("busU")),
    ("step() has already been", iterations("bs", "bs"), iterations("bsU", "bsU")),
    ("No inf checks", iterations("bU"), iterations("bsU")),
    ("Attempted step but", iterations("s"), iterations("bs")),
    (
        "Attempting to unscale",
        lambda: unscaled_gradient(HALF),
        lambda: unscaled_gradient(torch.float32),
    ),
    (
        "The source state dict",
        lambda: torch.amp.GradScaler("cpu").load_state_dict(OF_A_DISABLED_SCALER),
        lambda: load_if_any(OF_A_DISABLED_SCALER),
    ),
    (
        "The growth factor",
        lambda: torch.amp.GradScaler("cpu", backoff_factor=2.0),
        lambda: torch.amp.GradScaler("cpu", backoff_factor=0.5),
    ),
    (
        "Expected `device_type`",
        lambda: torch.autocast(torch.device("cpu")),
        lambda: torch.autocast(torch.device("cpu").type),
    ),
    (
        "Expected `device_type`",
        lambda: torch.amp.custom_fwd(lambda *_: None),
        lambda: torch.amp.custom_fwd(lambda *_: None, device_type="cpu"),
    ),
    ("RuntimeError: element 0", lambda: X.sum().backward(), lambda: parameter().sum().backward()),
    (
        "CheckpointError",
        lambda: evaluated_before_backward(early=True),
        lambda: evaluated_before_backward(early=False),
    ),
    (
        "aten._to_copy.default",
        lambda: shared_weight_checkpointed(cache=True),
        lambda: shared_weight_checkpointed(cache=False),
    ),
    (
        "When use_reentrant=True",
        lambda: graph_of_penalty(reentrant=True),
        lambda: graph_of_penalty(reentrant=False),
    ),
]
# The same for warnings, which end nothing.
WARNED: list[tuple[str, Code, Code]] = [
    (
        "UserWarning: None of the inputs",
        lambda: checkpoint(nn.Linear(4, 4), X, use_reentrant=True),
        lambda: trained_through_checkpoint(reentrant=False),
    ),
    (
        "UserWarning: torch.cuda.amp.GradScaler",
        lambda: torch.amp.GradScaler("cuda"),
        lambda: torch.amp.GradScaler("cpu"),
    ),
    (
        "UserWarning: torch.cuda.amp.GradScaler",
        lambda: torch.autocast("cuda"),
        lambda: torch.autocast("cpu"),
    ),
    (
        "In CPU autocast",
        lambda: torch.autocast("cpu", torch.float32),
        lambda: torch.autocast("cpu", enabled=False),
    ),
    ("Input #0 requires", lambda: checked(torch.float32), lambda: checked(torch.float64)),
    (
        "RuntimeWarning: overflow",
        lambda: np.float64([1e6]).astype(np.float16),
        lambda: np.float64([1e6]).astype(np.float32),
    ),
    (
        "Casting complex values",
        lambda: torch.ones(2, dtype=torch.complex64).to(HALF),
        lambda: torch.view_as_real(torch.ones(2, dtype=torch.complex64)).to(HALF),
    ),
    (
        "Mismatch dtype between",
        lambda: nn.RMSNorm(4).half()(X),
        lambda: nn.RMSNorm(4).half()(X.half()),
    ),
]


def texts_of(code: Code) -> list[str]:
    """Run code and return its warnings, and the error that ends it."""
    errors = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            code()
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")
    return [str(each.message) for each in caught] + errors


def rows_of(text: str) -> list[str]:
    """Return the messages of the table and the ids of the faults that a text leads to."""
    return [message.words for message in messages_in(text)] + [card.id for card in explain(text)]


@pytest.mark.parametrize("table", [RAISED, WARNED], ids=["errors", "warnings"])
def test_torchs_own_text_leads_to_its_row(table: list[tuple[str, Code, Code]]) -> None:
    wrong = {}
    for number, (words, broken, _) in enumerate(table):
        texts = texts_of(broken)
        if not any(row.startswith(words) for text in texts for row in rows_of(text)):
            wrong[number, words] = texts
    assert wrong == {}


@pytest.mark.parametrize("table", [RAISED, WARNED], ids=["errors", "warnings"])
def test_the_repaired_code_raises_no_message(table: list[tuple[str, Code, Code]]) -> None:
    wrong = {}
    for number, (words, _, repaired) in enumerate(table):
        texts = [text for text in texts_of(repaired) if rows_of(text) or "Error:" in text]
        if texts:
            wrong[number, words] = texts
    assert wrong == {}


def test_reentrant_checkpoint_loses_a_gradient() -> None:
    layer = nn.Linear(4, 4)
    texts = texts_of(lambda: checkpoint(layer, X, use_reentrant=True).sum().backward())
    assert layer.weight.grad is None
    assert [rows_of(text)[0][:20] for text in texts] == [
        "UserWarning: None of",
        "RuntimeError: elemen",
    ]
    assert trained_through_checkpoint(reentrant=False).abs().sum() > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_mixed_dtypes_raise_known_messages() -> None:
    """torch's own samples of its operations, one operand at a time in FP16, BF16 or FP64."""
    pytest.importorskip("expecttest", reason="torch's samples need it")
    from torch.testing._internal.common_methods_invocations import op_db

    unknown: dict[str, str] = {}
    known = 0
    for operation in op_db:
        if torch.float32 not in operation.dtypes:
            continue
        for text in texts_of_samples(operation):
            if rows_of(text):
                known += 1
                continue
            about_dtypes = re.search(r"half|bfloat16|dtype|scalar ?type", text, re.IGNORECASE)
            # An "invalid combination of arguments" lists all signatures, with their dtypes.
            if about_dtypes and "invalid combination" not in text:
                unknown.setdefault(text[:200], operation.name)
    assert known > 500
    assert unknown == {}


def texts_of_samples(operation: Any) -> Iterator[str]:
    """Yield the errors of two samples of an operation, with each operand in another dtype."""
    for sample in islice(operation.sample_inputs("cpu", torch.float32), 2):
        operands = [sample.input, *sample.args]
        for place, dtype in product(range(len(operands)), (HALF, BF16, torch.float64)):
            operand = operands[place]
            if not isinstance(operand, torch.Tensor) or not operand.is_floating_point():
                continue
            mixed = [*operands]
            mixed[place] = operand.to(dtype)
            for text in texts_of(partial(operation.op, *mixed, **sample.kwargs)):
                if "Error: " in text:
                    yield text
