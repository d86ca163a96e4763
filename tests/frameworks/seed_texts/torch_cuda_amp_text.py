"""torch's page of examples in its earlier spelling, torch.cuda.amp, which names no device.

C52 of data/claims.csv: autocast, and GradScaler(enabled=False) is a no-op. torch's own classes are
the oracle.
"""

import torch
from torch import nn

from labkit.frameworks.torch_cuda_amp import GradScaler, autocast, custom_bwd, custom_fwd

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LR = 0.001


def make_model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(DEVICE)


torch.manual_seed(1)
data = [(torch.randn(8, 8, device=DEVICE), 50 * torch.randn(8, 4, device=DEVICE)) for _ in range(6)]
loss_fn = nn.MSELoss()


def close(ours, theirs):
    for p, q in zip(ours, theirs, strict=True):
        torch.testing.assert_close(p, q, rtol=2.0**-9, atol=2.0**-9)


def torchs_autocast():
    return torch.autocast(DEVICE, dtype=torch.float16)


def torchs_scaler(**arguments):
    return torch.amp.GradScaler(DEVICE, **arguments)


# --- typical training -----------------------------------------------------------------------------


def typical(autocast, GradScaler):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    scaler = GradScaler(init_scale=2.0**16)
    for input, target in data:
        optimizer.zero_grad()
        with autocast():
            output = model(input)
            assert output.dtype is torch.float16
            loss = loss_fn(output.float(), target)
            assert loss.dtype is torch.float32
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return [p.detach() for p in model.parameters()], scaler.get_scale()


ours, scale = typical(autocast, GradScaler)
theirs, torchs_scale = typical(torchs_autocast, torchs_scaler)
close(ours, theirs)
assert scale == torchs_scale < 2.0**16

# --- clip after unscale_ --------------------------------------------------------------------------


def clipped(autocast, GradScaler):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    scaler = GradScaler(init_scale=2.0**8)
    norms = []
    for input, target in data:
        optimizer.zero_grad()
        with autocast():
            loss = loss_fn(model(input).float(), target)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        scaler.step(optimizer)
        scaler.update()
    return [p.detach() for p in model.parameters()], norms


(ours, norms), (theirs, their_norms) = (
    clipped(autocast, GradScaler),
    clipped(torchs_autocast, torchs_scaler),
)
close(ours, theirs)
torch.testing.assert_close(torch.stack(norms), torch.stack(their_norms), rtol=1e-2, atol=0.0)
# each was clipped
assert min(norms) > 1.0

# --- gradients of several batches -----------------------------------------------------------------


def accumulated(autocast, GradScaler, iters_to_accumulate=2):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    scaler = GradScaler(init_scale=2.0**8)
    for i, (input, target) in enumerate(data):
        with autocast():
            loss = loss_fn(model(input).float(), target)
            loss = loss / iters_to_accumulate
        scaler.scale(loss).backward()
        if (i + 1) % iters_to_accumulate == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return [p.detach() for p in model.parameters()]


close(accumulated(autocast, GradScaler), accumulated(torchs_autocast, torchs_scaler))

# --- a penalty on gradients -----------------------------------------------------------------------


def penalised(autocast, GradScaler):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    scaler = GradScaler(init_scale=2.0**6)
    for input, target in data[:2]:
        optimizer.zero_grad()
        with autocast():
            loss = loss_fn(model(input).float(), target)
        scaled_grad_params = torch.autograd.grad(
            outputs=scaler.scale(loss), inputs=model.parameters(), create_graph=True
        )
        inv_scale = 1.0 / scaler.get_scale()
        grad_params = [p * inv_scale for p in scaled_grad_params]
        with autocast():
            grad_norm = 0
            for grad in grad_params:
                grad_norm += grad.pow(2).sum()
            grad_norm = grad_norm.sqrt()
            loss = loss + 0.01 * grad_norm
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return [p.detach() for p in model.parameters()]


close(penalised(autocast, GradScaler), penalised(torchs_autocast, torchs_scaler))

# --- several models, losses and optimizers --------------------------------------------------------


def several(autocast, GradScaler):
    scaler = GradScaler(init_scale=2.0**8)
    model0, model1 = make_model(0), make_model(1)
    optimizer0 = torch.optim.SGD(model0.parameters(), lr=LR)
    optimizer1 = torch.optim.SGD(model1.parameters(), lr=LR)
    for input, target in data:
        optimizer0.zero_grad()
        optimizer1.zero_grad()
        with autocast():
            output0, output1 = model0(input), model1(input)
            loss0 = loss_fn(2 * output0.float() + 3 * output1.float(), target)
            loss1 = loss_fn(3 * output0.float() - 5 * output1.float(), target)
        scaler.scale(loss0).backward(retain_graph=True)
        scaler.scale(loss1).backward()
        scaler.unscale_(optimizer0)
        scaler.step(optimizer0)
        scaler.step(optimizer1)
        scaler.update()
    return [p.detach() for p in (*model0.parameters(), *model1.parameters())]


close(several(autocast, GradScaler), several(torchs_autocast, torchs_scaler))

# --- a decorated forward, a function that needs FP32, a disabled scaler ---------------------------


class MyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 4)

    @autocast()
    def forward(self, input):
        return self.fc(input)


assert MyModel().to(DEVICE)(data[0][0]).dtype is torch.float16


class MyFloat32Func(torch.autograd.Function):
    @staticmethod
    @custom_fwd(cast_inputs=torch.float32)
    def forward(ctx, input):
        ctx.save_for_backward(input)
        assert input.dtype is torch.float32
        return input.exp()

    @staticmethod
    @custom_bwd
    def backward(ctx, grad):
        (input,) = ctx.saved_tensors
        return grad * input.exp()


class MyMM(torch.autograd.Function):
    @staticmethod
    @custom_fwd
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a.mm(b)

    @staticmethod
    @custom_bwd
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        return grad.mm(b.t()), a.t().mm(grad)


with autocast():
    half = torch.randn(4, 4, device=DEVICE).half().requires_grad_()
    exponential = MyFloat32Func.apply(half)
    product = MyMM.apply(half, half)
    assert exponential.dtype is torch.float32
    assert product.dtype is torch.float16
    with autocast(enabled=False):
        assert (half.float() @ half.float()).dtype is torch.float32
with autocast(dtype=torch.bfloat16):
    assert (half.float() @ half.float()).dtype is torch.bfloat16
# outside of the region, each backward pass has the dtypes of its forward pass
exponential.sum().backward()
torch.testing.assert_close(half.grad, half.detach().exp(), rtol=2.0**-9, atol=0.0)
half.grad = None
product.float().sum().backward()
# the two factors are one matrix
sums = half.detach().sum(1).expand(4, 4) + half.detach().sum(0)[:, None]
torch.testing.assert_close(half.grad, sums, rtol=2.0**-8, atol=2.0**-8)


def switched_off():
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    scaler = GradScaler(enabled=False)
    for input, target in data:
        optimizer.zero_grad()
        with autocast(enabled=False):
            loss = loss_fn(model(input), target)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    return list(model.parameters())


plain = make_model()
optimizer = torch.optim.SGD(plain.parameters(), lr=LR)
for input, target in data:
    optimizer.zero_grad()
    loss_fn(plain(input), target).backward()
    optimizer.step()
assert all(map(torch.equal, switched_off(), plain.parameters()))

print("torch.cuda.amp: done")
