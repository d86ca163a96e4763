"""What does the machine do that apex's and fastai's trainings, bit for bit those of others, would not show?"""

import torch
from torch import nn

from labkit.frameworks.steps import Steps


def test_masters_take_over_state_and_edits_and_an_fp32_weight_keeps_its_gradient():
    half, own = nn.Parameter(torch.ones(2).half()), nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([half, own], lr=1.0, momentum=0.5)
    optimizer.state[half]["momentum_buffer"] = torch.ones(2).half()
    steps = Steps(optimizer, masters=True)
    master, same = optimizer.param_groups[0]["params"]
    assert same is own
    assert optimizer.state[master]["momentum_buffer"].dtype is torch.float32
    half.data.fill_(3.0)
    steps.before_backward()
    assert master.tolist() == [3.0, 3.0]
    (half.float().sum() + own.sum()).backward()
    assert not steps.unscale(1.0)
    steps.forget()
    assert master.grad is None
    assert own.grad.tolist() == [1.0, 1.0], "it is the model's own, whose zero_grad forgets it"
