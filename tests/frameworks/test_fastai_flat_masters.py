"""Flat masters of `labkit.frameworks.fastai`: one tensor for the weights of a group."""

import pytest

from labkit.frameworks.fastai.basics import *  # noqa: F403 - as scripts of fastai begin
from labkit.frameworks.fastai.basics import SGD, Adam, nn, partial, torch
from labkit.frameworks.fastai.callback import fp16
from tests.frameworks.test_fastai_loop import copies, differ, two_layers

pytestmark = pytest.mark.usefixtures("same_numbers")


def test_flat_masters_train_as_single_ones_do():
    models = []
    for flat in (False, True):
        torch.manual_seed(7)
        learn = two_layers().to_non_native_fp16(flat_master=flat, max_loss_scale=2.0**10, clip=1.0)
        learn.fit(2)
        models.append(learn.model)
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("opt_func", [partial(SGD, mom=0.9), partial(Adam, wd=0.3)])
def test_flat_masters_keep_each_parameters_state_from_fit_to_fit(opt_func):
    """A weight that was frozen in the first fit has fewer steps than the rest of its group.

    Biases do not decay.
    """
    results = []
    for flat in (False, True):
        torch.manual_seed(7)
        learn = two_layers(opt_func=opt_func, lr=0.01)
        learn.to_non_native_fp16(flat_master=flat, max_loss_scale=2.0**10)
        learn.create_opt()
        learn.model[0].weight.requires_grad_(False)
        learn.fit(1)
        learn.model[0].weight.requires_grad_(True)
        learn.fit(2)
        states = [learn.opt.state[p] for p in learn.model.parameters()]
        assert [state.get("do_wd", True) for state in states] == [True, False, True, False]
        averages = [state["grad_avg"] for state in states]
        steps = [torch.tensor(state.get("step", 0)) for state in states]
        results.append([*copies(learn.model), *averages, *steps])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_a_flat_master_may_hold_a_parameter_without_elements():
    class Shifted(nn.Linear):
        def __init__(self):
            super().__init__(1, 1)
            self.empty = nn.Parameter(torch.empty(0))

        def forward(self, inputs):
            return super().forward(inputs) + self.empty.sum()

    learn = two_layers(model=Shifted())
    learn.to_non_native_fp16(flat_master=True, max_loss_scale=2.0**10).fit(2)
    # the bias, in the same group, does not decay
    assert learn.opt.state[learn.model.bias]["do_wd"] is False
    assert "do_wd" not in learn.opt.state[learn.model.empty]


def in_three_dtypes():
    """Return a model in FP16, FP32 and BF16, and its optimizer with two groups."""
    model = nn.Sequential(nn.Linear(2, 3).half(), nn.BatchNorm1d(3), nn.Linear(3, 1).bfloat16())
    optimizer = SGD([[*model[0].parameters(), *model[1].parameters()], model[2].parameters()], 0.1)
    for i, p in enumerate(model.parameters()):
        p.grad = torch.full_like(p, 2.0**-i)
    return model, optimizer


def test_a_flat_master_holds_a_group_of_several_dtypes():
    model, optimizer = in_three_dtypes()
    before = copies(model)
    model_pgs, master_pgs = fp16.get_master(optimizer, flat_master=True)
    assert [[m.shape for m in group] for group in master_pgs] == [[(15,)], [(4,)]]
    fp16.to_master_grads(model_pgs, master_pgs, flat_master=True)
    with torch.no_grad():
        for (master,) in master_pgs:
            assert master.dtype == torch.float32
            assert master.grad.dtype == torch.float32
            master.sub_(master.grad)
    # A parameter is not a view into its master.
    assert not any(differ(model, before))
    fp16.to_model_params(model_pgs, master_pgs, flat_master=True)
    for i, (p, b) in enumerate(zip(model.parameters(), before, strict=True)):
        assert p.dtype == b.dtype
        assert torch.equal(p, (b.float() - 2.0**-i).to(b.dtype))


def test_a_flat_master_needs_all_gradients_of_its_group():
    model, optimizer = in_three_dtypes()
    pgs = fp16.get_master(optimizer, flat_master=True)
    model[0].weight.grad = None
    with pytest.raises(RuntimeError, match="flat master: parameter '0 of its group'"):
        fp16.to_master_grads(*pgs, flat_master=True)


def test_single_masters_accept_a_missing_gradient():
    model, optimizer = in_three_dtypes()
    model[0].weight.grad = None
    model_pgs, master_pgs = fp16.get_master(optimizer)
    fp16.to_master_grads(model_pgs, master_pgs)
    assert master_pgs[0][0].grad is None


def test_frozen_groups_have_no_flat_master():
    model, optimizer = in_three_dtypes()
    model.requires_grad_(False)
    assert fp16.get_master(optimizer, flat_master=True) == ([[], []], [[], []])
