"""A script after torch.amp's recipe.

It has autocast, GradScaler, use_amp, clipping after unscale_, and a checkpoint.

C52 of data/claims.csv: autocast, and GradScaler(enabled=False) is a no-op. torch's own classes are
the oracle.
"""

import copy

import torch

from labkit.frameworks.torch_amp import GradScaler, autocast, custom_bwd, custom_fwd

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LR = 0.001


def make_model(in_size, out_size, num_layers):
    torch.manual_seed(0)
    layers = []
    for _ in range(num_layers - 1):
        layers.append(torch.nn.Linear(in_size, in_size))
        layers.append(torch.nn.ReLU())
    layers.append(torch.nn.Linear(in_size, out_size))
    return torch.nn.Sequential(*tuple(layers)).to(DEVICE)


batch_size, in_size, out_size, num_layers = 8, 16, 4, 3
torch.manual_seed(1)
data = [torch.randn(batch_size, in_size, device=DEVICE) for _ in range(6)]
targets = [100 * torch.randn(batch_size, out_size, device=DEVICE) for _ in range(6)]
loss_fn = torch.nn.MSELoss()


def train(autocast, GradScaler, use_amp=True, **scaler_arguments):
    """Train by the recipe's loop.

    Returns:
        The weights, the scaler, and the dtypes of outputs and losses.
    """
    net = make_model(in_size, out_size, num_layers)
    opt = torch.optim.SGD(net.parameters(), lr=LR)
    scaler = GradScaler(DEVICE, enabled=use_amp, **scaler_arguments)
    dtypes = set()
    for input, target in zip(data, targets, strict=True):
        with autocast(device_type=DEVICE, dtype=torch.float16, enabled=use_amp):
            output = net(input)
            dtypes.add(output.dtype)
            loss = loss_fn(output.float(), target)
            dtypes.add(loss.dtype)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        opt.zero_grad(set_to_none=True)
    return [p.detach() for p in net.parameters()], scaler, dtypes


# --- the recipe -----------------------------------------------------------------------------------

ours, scaler, dtypes = train(autocast, GradScaler, init_scale=2.0**16)
theirs, torchs, _ = train(torch.autocast, torch.amp.GradScaler, init_scale=2.0**16)
assert dtypes == {torch.float16, torch.float32}
# some steps were skipped
assert scaler.get_scale() == torchs.get_scale() < 2.0**16
assert scaler.state_dict() == torchs.state_dict()
for p, q in zip(ours, theirs, strict=True):
    torch.testing.assert_close(p, q, rtol=2.0**-9, atol=2.0**-9)

# with enabled=False, the training equals a plain loop bit for bit
ours, scaler, dtypes = train(autocast, GradScaler, use_amp=False)
net = make_model(in_size, out_size, num_layers)
opt = torch.optim.SGD(net.parameters(), lr=LR)
for input, target in zip(data, targets, strict=True):
    loss_fn(net(input), target).backward()
    opt.step()
    opt.zero_grad()
assert all(map(torch.equal, ours, net.parameters()))
assert dtypes == {torch.float32}
assert (scaler.get_scale(), scaler.state_dict()) == (1.0, {})
loss = torch.ones(1)
assert scaler.scale(loss) is loss

# --- clip gradients after unscale_ ----------------------------------------------------------------

net = make_model(in_size, out_size, num_layers)
opt = torch.optim.SGD(net.parameters(), lr=LR)
scaler = GradScaler(DEVICE, init_scale=1024.0)
for input, target in zip(data, targets, strict=True):
    with autocast(device_type=DEVICE, dtype=torch.float16):
        loss = loss_fn(net(input), target)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    torch.nn.utils.clip_grad_norm_(net.parameters(), max_norm=0.1)
    before = [p.detach().clone() for p in net.parameters()]
    scaler.step(opt)
    scaler.update()
    opt.zero_grad()
    moved = torch.cat([(p - b).flatten() for p, b in zip(net.parameters(), before, strict=True)])
    assert moved.norm() <= 0.1 * LR * 1.01

# --- a checkpoint ---------------------------------------------------------------------------------

checkpoint = {
    "model": copy.deepcopy(net.state_dict()),
    "optimizer": opt.state_dict(),
    "scaler": scaler.state_dict(),
}
new_scaler, torchs = GradScaler(DEVICE), torch.amp.GradScaler(DEVICE)
new_scaler.load_state_dict(checkpoint["scaler"])
torchs.load_state_dict(checkpoint["scaler"])
assert new_scaler.get_scale() == torchs.get_scale() == scaler.get_scale()

# --- a disabled region inside, a decorated function, a function with a backward of its own --------

a, b = torch.rand(8, 8, device=DEVICE), torch.rand(8, 8, device=DEVICE)
with autocast(device_type=DEVICE, dtype=torch.float16):
    e_float16 = torch.mm(a, b)
    with autocast(device_type=DEVICE, enabled=False):
        f_float32 = torch.mm(a, e_float16.float())
    g_float16 = torch.mm(b, f_float32)
assert [t.dtype for t in (e_float16, f_float32, g_float16)] == [
    torch.float16,
    torch.float32,
    torch.float16,
]


@autocast(device_type=DEVICE, dtype=torch.float16)
def forward(x):
    return net(x)


assert forward(data[0]).dtype == torch.float16


class MyMM(torch.autograd.Function):
    @staticmethod
    @custom_fwd(device_type=DEVICE)
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a.mm(b)

    @staticmethod
    @custom_bwd(device_type=DEVICE)
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        return grad.mm(b.t()), a.t().mm(grad)


a.requires_grad_()
with autocast(device_type=DEVICE, dtype=torch.float16):
    output = MyMM.apply(a, b)
assert output.dtype == torch.float16
output.float().sum().backward()
torch.testing.assert_close(a.grad, b.sum(1).expand(8, 8), rtol=2.0**-9, atol=0.0)

print("torch.amp: done")
