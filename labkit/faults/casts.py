"""Faults of dtypes: manual casts, misplaced autocast regions, operations without a half kernel."""

import warnings
from functools import partial

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from labkit.faults.fault import Fault, Kind, Training
from labkit.faults.loops import accuracy, batches, network, plain, scaled


@partial(Fault)
def backward_inside(fixed):
    """The backward pass runs inside the autocast region.

    Symptom: A block that was written for FP32 gets gradients that are 0, though its forward pass is
        right.
    Cause: Operations that autograd made remember their dtype. Code of your own in a backward pass
        does not: if autocast is still on, its products are cast to FP16.
    Reading: Gradients that underflowed in one block; casts during the backward pass.
    Repair: End the region before `backward()`; decorate the function with `torch.amp.custom_bwd`.
    Reported: https://docs.pytorch.org/docs/stable/amp.html, pytorch/pytorch#46178
    """

    class Project(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            with torch.autocast("cpu", enabled=False):
                return x.float() @ weight.t()

        @staticmethod
        def backward(ctx, grad):
            x, weight = ctx.saved_tensors
            return grad @ weight, grad.t() @ x

    torch.manual_seed(0)
    weight = torch.nn.Parameter(0.1 * torch.randn(10, 64))
    # the loss is one small term of many, so its gradients are near 1e-9
    optimizer = torch.optim.SGD([weight], lr=1e8)

    def classify(inputs):
        return Project.apply(inputs.flatten(1), weight)

    def step(inputs, targets):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = 1e-9 * F.cross_entropy(classify(inputs), targets)
            if not fixed:
                loss.backward()
        if fixed:
            loss.backward()
        optimizer.step()
        return loss

    return Training(
        lambda batch: step(*batch), batches(100), lambda: accuracy(classify), None, optimizer
    )


@partial(Fault, kind=Kind.NOT_FINITE, claims=("C56",))
def forward_overflow(fixed):
    """A normalisation that the author wrote overflows in FP16.

    Symptom: With autocast nothing is learned, or the loss is NaN and every step is skipped; without
        it all is well.
    Cause: Switched off, autocast casts nothing, and the features are FP16 already: squares and sum
        are computed in FP16. The sum of 128 squares of 30 is above 65,504, its largest number.
        Inside of autocast CUDA computes the sum in FP32, and a CPU does not; the squares are FP16
        on both.
    Reading: The first tensor that is not finite is a sum or a product in the forward pass; the
        largest finite number before it is large. If the loss is NaN, the scale falls without end.
    Repair: Compute such a block in FP32: `x = x.float()` first; `autocast(enabled=False)` alone
        does not cast what comes in.
    Reported: pytorch/pytorch#40497, pytorch/pytorch#43556, speechbrain/speechbrain#1803
    """
    torch.manual_seed(0)
    body = torch.nn.Linear(64, 128)
    head = torch.nn.Linear(128, 10)
    model = torch.nn.ModuleList([body, head])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu")

    def classify(inputs):
        features = body(255 * inputs.flatten(1)).relu()
        with torch.autocast("cpu", enabled=False):
            if fixed:
                features = features.float()
            features = 12 * features / (features * features).sum(1, keepdim=True).sqrt()
        return head(features)

    def loss_of(inputs, targets):
        return F.cross_entropy(classify(inputs), targets)

    return scaled(loss_of, model, optimizer, scaler, batches(150), lambda: accuracy(classify))


@partial(Fault, kind=Kind.ERROR)
def function_without_custom_fwd(fixed):
    """A custom autograd function does not say in which dtype it computes.

    Symptom: The forward pass works, and the backward pass ends with two dtypes that do not match.
    Cause: Inside forward autocast is on, and casts; what is saved is FP16 here and FP32 there. The
        backward pass runs without autocast, and without a cast.
    Reading: The error is raised in a backward pass, in a file of your own.
    Repair: Decorate forward with `torch.amp.custom_fwd(cast_inputs=torch.float32, device_type=...)`
        and backward with `torch.amp.custom_bwd`.
    Error: expected m1 and m2 to have the same dtype
    Error: expected scalar type Half but found Float
    Error: mat1 and mat2 must have the same dtype
    Reported: pytorch/pytorch#38487, pytorch/pytorch#42358, pytorch/pytorch#46178
    """

    class Project(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            return torch.matmul(x, weight.t())

        @staticmethod
        def backward(ctx, grad):
            x, weight = ctx.saved_tensors
            return grad @ weight, grad.t() @ x

    if fixed:
        Project.forward = staticmethod(
            torch.amp.custom_fwd(Project.forward, device_type="cpu", cast_inputs=torch.float32)
        )
        Project.backward = staticmethod(torch.amp.custom_bwd(Project.backward, device_type="cpu"))
    model = network()
    weight = torch.nn.Parameter(torch.eye(10))
    optimizer = torch.optim.SGD([*model.parameters(), weight], lr=0.1)

    def loss_of(inputs, targets):
        with torch.autocast("cpu", torch.float16):
            return F.cross_entropy(Project.apply(model(inputs), weight), targets)

    return plain(
        loss_of, model, optimizer, batches(60), lambda: accuracy(lambda x: model(x) @ weight.t())
    )


@partial(Fault, kind=Kind.ERROR, claims=("C59",))
def gradcheck_in_fp32(fixed):
    """A gradient is checked numerically in FP32.

    Symptom: gradcheck says that a gradient is wrong which is right.
    Cause: gradcheck compares with (f(x + 1e-6) - f(x - 1e-6)) / 2e-6. In FP32 the difference of
        two numbers near 8 has one or two digits left; in FP16 x + 1e-6 is x.
    Reading: The dtype of the inputs: anything but float64.
    Repair: Check in FP64: `x.double()`, and the module in double as well.
    Error: Jacobian mismatch for output 0 with respect to input 0
    Reported: https://docs.pytorch.org/docs/stable/generated/torch.autograd.gradcheck.gradcheck.html
    """

    def cube(x):
        return x * x * x

    dtype = torch.float64 if fixed else torch.float32

    def step(_):
        x = torch.linspace(1.0, 2.0, 5, dtype=dtype, requires_grad=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.autograd.gradcheck(cube, (x,))

    return Training(step)


@partial(Fault, kind=Kind.NOT_FINITE, claims=("C30",))
def halves_by_hand(fixed):
    """Tensors are made half by hand where autocast would decide.

    Symptom: A model under autocast is inf or NaN in places that autocast should protect.
    Cause: Autocast leaves operations off its lists in the dtype of their inputs. `.half()` on the
        data makes all of them FP16: 300 * 300 is inf.
    Reading: The first tensor that is not finite is a product of inputs in half.
    Repair: Give autocast FP32 inputs, and cast nothing by hand.
    Reported: https://docs.pytorch.org/docs/stable/amp.html
    """
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def loss_of(inputs, targets):
        with torch.autocast("cpu", torch.float16):
            inputs = 300 * inputs
            if not fixed:
                inputs = inputs.half()
            brightness = (inputs * inputs).mean(dim=(1, 2, 3), keepdim=True).sqrt()
            return F.cross_entropy(model(inputs / brightness), targets)

    return plain(loss_of, model, optimizer, batches(200), lambda: accuracy(lambda x: model(3 * x)))


@partial(Fault, kind=Kind.ERROR)
def linear_algebra(fixed):
    """Linear algebra is called in FP16.

    Symptom: An error that an operation is not implemented for Half, inside an autocast region.
    Cause: LAPACK and its relatives have no FP16, and autocast does not list these functions.
    Reading: The error names the function.
    Repair: `.float()` before it, and back after it where that is wanted.
    Error: "linalg_cholesky_cpu" not implemented for 'Half'
    Error: "cholesky_cpu" not implemented for 'Half'
    Error: "svd_cuda" not implemented for 'Half'
    Error: "linalg_inv_ex" not implemented for 'Half'
    Error: Low precision dtypes not supported. Got Half
    Reported: NVIDIA/apex#887, kornia/kornia#649, pytorch/pytorch#98308
    """
    model = network()

    def step(inputs, targets):
        with torch.no_grad(), torch.autocast("cpu", torch.float16):
            outputs = model(inputs)
        spread = outputs.t() @ outputs + 10 * torch.eye(10, dtype=outputs.dtype)
        factor = torch.linalg.cholesky(spread.float() if fixed else spread)
        return factor.diagonal().sum()

    return Training(lambda batch: step(*batch), batches(3), model=model)


@partial(Fault, kind=Kind.ERROR)
def recomputed_otherwise(fixed):
    """A checkpointed block is computed again under another autocast state.

    Symptom: An error in the backward pass about tensors with different metadata.
    Cause: Checkpointing throws activations away and computes them again. If autocast was on the
        first time and off the second, they come back in another dtype.
    Reading: The dtypes of one block in its two forward passes.
    Repair: Let nothing that decides the dtype change between forward and backward; put autocast
        around the block, where checkpoint restores it.
    Error: Recomputed values for the following tensors have different metadata than during the
        forward pass.
    Reported: pytorch/pytorch#141896, pytorch/pytorch#148831, NVIDIA/TransformerEngine#787,
        facebookresearch/fairscale#1199
    """
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mixed = {"on": True}

    def block(inputs):
        with torch.autocast("cpu", torch.float16, enabled=mixed["on"]):
            return model(inputs)

    def loss_of(inputs, targets):
        mixed["on"] = True
        loss = F.cross_entropy(checkpoint(block, inputs, use_reentrant=False).float(), targets)
        # evaluation, a profiler or a second thread may switch it off too early
        mixed["on"] = fixed
        return loss

    return plain(loss_of, model, optimizer, batches(80), lambda: accuracy(model))


@partial(Fault, prevented="labkit's autocast casts a weight again when it was edited in place.")
def stale_cast(fixed):
    """One autocast region is around the whole training loop.

    Symptom: The loss does not fall, without any error; parameters do change.
    Cause: Autocast casts each weight once and keeps the copy until the outermost region ends. Here
        it never ends: all steps use the weights of the first.
    Reading: Casts of weights: one in the whole run, where there should be one a step.
    Repair: A region for each forward pass (and nothing else inside), or `cache_enabled=False`.
    Reported: pytorch/pytorch#158232, Lightning-AI/pytorch-lightning#21611
    """
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    whole = None if fixed else torch.autocast("cpu", torch.bfloat16)

    def step(batch):
        number, (inputs, targets) = batch
        if whole and number == 0:
            whole.__enter__()
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        if whole and number == 199:
            whole.__exit__(None, None, None)
        return loss

    return Training(step, list(enumerate(batches(200))), lambda: accuracy(model), model, optimizer)


@partial(Fault, kind=Kind.ERROR, limit=0.3, claims=("C60",))
def zeros_of_another_dtype(fixed):
    """A state is made with torch.zeros and no dtype.

    Symptom: An error about two dtypes, in a model that was made half or BF16.
    Cause: torch.zeros makes FP32 on the CPU, whatever the model is. `.to(x.device)` mends the
        device only, and copies.
    Reading: The error is raised where an FP32 tensor meets the weights.
    Repair: `x.new_zeros(shape)`, or `torch.zeros(shape, dtype=x.dtype, device=x.device)`.
    Error: mat1 and mat2 must have the same dtype
    Error: expected m1 and m2 to have the same dtype
    Error: expected scalar type BFloat16 but found Float
    Reported: https://docs.pytorch.org/docs/stable/generated/torch.Tensor.new_zeros.html
    """
    torch.manual_seed(0)
    model = torch.nn.GRUCell(8, 32).bfloat16()
    head = torch.nn.Linear(32, 10).bfloat16()
    optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()], lr=1e-2)

    def classify(inputs):
        rows = inputs.view(-1, 8, 8).bfloat16()
        if fixed:
            state = torch.zeros(len(rows), 32, dtype=rows.dtype, device=rows.device)
        else:
            state = torch.zeros(len(rows), 32)
        for number in range(8):
            state = model(rows[:, number], state)
        return head(state)

    def loss_of(inputs, targets):
        return F.cross_entropy(classify(inputs).float(), targets)

    return plain(loss_of, model, optimizer, batches(60), lambda: accuracy(classify))
