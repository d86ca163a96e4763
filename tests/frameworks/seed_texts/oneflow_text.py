"""A script after OneFlow's tutorial on mixed precision.

It has nn.Graph with enable_amp, set_grad_scaler with both scalers, and accumulation.

C53 of data/claims.csv: nn.Graph with config.enable_amp and set_grad_scaler(GradScaler(init_scale,
growth_factor, backoff_factor, growth_interval)). The trainings are repeated by loops that are
written with torch alone.
"""

import torch

import labkit.frameworks.oneflow as flow
import labkit.frameworks.oneflow.nn as nn

DEVICE = "cuda" if flow.cuda.is_available() else "cpu"
LR = 1e-3


def make_model():
    flow.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))
    model = model.to(DEVICE)
    model.train()
    return model


flow.manual_seed(1)
BATCHES = [
    (
        flow.randn(128, 256).to(DEVICE),
        flow.randint(0, 10, (128, 1), dtype=flow.int64).to(DEVICE),
    )
    for _ in range(6)
]


def train(grad_scaler=None, factor=1.0, steps=1, amp=True):
    """Train by a graph, and return it; the loss is multiplied by `factor`."""
    model = make_model()
    loss_fn = nn.CrossEntropyLoss().to(DEVICE)
    optimizer = flow.optim.SGD(model.parameters(), lr=LR)

    class CustomGraph(flow.nn.Graph):
        def __init__(self):
            super().__init__()
            self.model = model
            self.loss_fn = loss_fn
            self.add_optimizer(optimizer)
            self.config.enable_amp(amp)
            self.config.set_gradient_accumulation_steps(steps)
            if grad_scaler is not None:
                self.set_grad_scaler(grad_scaler)
            self.dtypes = set()

        def build(self, x, y):
            y_pred = self.model(x)
            self.dtypes.add(y_pred.dtype)
            loss = self.loss_fn(y_pred, y) * factor
            loss.backward()
            return y_pred

    graph_model = CustomGraph()
    for x, y in BATCHES:
        y_pred = graph_model(x, y)
        assert not y_pred.requires_grad
        assert y_pred.shape == (128, 10)
    return graph_model


def repeat(scale, factor=1.0, dynamic=True, half=True, growth_factor=2.0, growth_interval=2000):
    """Train by torch alone; return the weights and the scale."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    clean = 0
    for x, y in BATCHES:
        optimizer.zero_grad()
        with torch.autocast(DEVICE, dtype=torch.float16, enabled=half):
            y_pred = model(x)
        loss = torch.nn.functional.cross_entropy(y_pred.float(), y[:, 0]) * factor
        (loss * scale).backward()
        if dynamic and not all(p.grad.isfinite().all() for p in model.parameters()):
            scale, clean = scale / growth_factor, 0
            continue
        for p in model.parameters():
            p.grad /= scale
        optimizer.step()
        clean += 1
        if dynamic and clean == growth_interval:
            scale, clean = scale * growth_factor, 0
    return list(model.parameters()), scale


def close(graph, weights):
    for p, q in zip(graph.model.parameters(), weights, strict=True):
        torch.testing.assert_close(p, q, rtol=2.0**-9, atol=2.0**-11)


def scale_of(graph):
    return graph.state_dict()["scale"][0]


# --- AMP without a scaler, and no AMP -------------------------------------------------------------

graph = train()
assert graph.dtypes == {flow.float16}
close(graph, repeat(1.0, dynamic=False)[0])
graph = train(amp=False)
assert graph.dtypes == {flow.float32}
assert all(map(torch.equal, graph.model.parameters(), repeat(1.0, half=False)[0]))

# --- the dynamic scaler ---------------------------------------------------------------------------

grad_scaler = flow.amp.GradScaler(
    init_scale=3000, growth_factor=2.0, backoff_factor=0.5, growth_interval=1000
)
graph = train(grad_scaler)
weights, scale = repeat(3000.0)
close(graph, weights)
assert scale_of(graph) == scale == 3000

# at inf it skips the step and backs off
graph = train(flow.amp.GradScaler(2**24, 2.0, 0.5, 1000), factor=100.0)
weights, scale = repeat(2.0**24, factor=100.0)
close(graph, weights)
assert scale_of(graph) == scale < 2**24

# after some clean steps it grows
graph = train(flow.amp.GradScaler(init_scale=16, growth_interval=2))
weights, scale = repeat(16.0, growth_interval=2)
close(graph, weights)
assert scale_of(graph) == scale == 128

# --- the static one -------------------------------------------------------------------------------

graph = train(flow.amp.StaticGradScaler(1000))
close(graph, repeat(1000.0, dynamic=False)[0])
assert scale_of(graph) == 1000

# --- micro-batches, BF16, and a graph that predicts -----------------------------------------------

graph = train(flow.amp.GradScaler(), steps=4)
assert graph.dtypes == {flow.float16}


class Predict(flow.nn.Graph):
    def __init__(self, model, dtype):
        super().__init__()
        self.linear = model
        self.config.enable_amp(True, dtype=dtype)

    def build(self, x):
        return self.linear(x)


x = BATCHES[0][0]
for dtype in (flow.float16, flow.bfloat16):
    prediction = Predict(graph.model, dtype)(x)
    assert prediction.dtype == dtype
    torch.testing.assert_close(
        prediction.float(), graph.model(x).detach(), rtol=2.0**-6, atol=2.0**-6
    )

print("OneFlow: done")
