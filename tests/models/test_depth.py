import pyro
import pytest
import torch
from pyroccam import models
from pyroccam.data import PyroccamError
from pyroccam.models import log_likelihood_by_depth
from torch import nn


class Data:
    """What a model needs to know of a data set."""

    def __init__(self, N, task="classification", outputs=3, input_shape=(2,)):
        self.N, self.task, self.outputs, self.input_shape = N, task, outputs, input_shape


def smooth(D=3, task="classification", outputs=3, N=8, dtype=torch.float64, prior=None):
    """A stack without batch statistics, its data."""
    blocks = [nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(D)]
    model = models.LearntDepth(
        nn.Linear(2, 4), blocks, nn.Linear(4, outputs), data=Data(N, task, outputs), prior=prior
    ).to(dtype)
    x = torch.randn(N, 2, dtype=dtype)
    classes = task == "classification"
    return model, x, torch.arange(N) % outputs if classes else torch.randn(N, outputs, dtype=dtype)


# -- making one -------------------------------------------------------------------------------


def test_takes_a_stack_or_its_parts():
    stem, blocks, head = nn.Linear(2, 4), [nn.Linear(4, 4)], nn.Linear(4, 3)
    parts = models.LearntDepth(stem, blocks, head, data=Data(5))
    whole = models.LearntDepth(models.DepthStack(stem, blocks, head), data=Data(5))
    x = torch.randn(5, 2)
    torch.testing.assert_close(parts.stack.outputs(x), whole.stack.outputs(x), rtol=0, atol=0)
    weights = torch.tensor([0.85, 0.85**2])  # the authors' prior
    torch.testing.assert_close(parts.log_prior.exp(), weights / weights.sum())
    wrong = [(stem,), (models.DepthStack(stem, blocks, head), None, head)]
    for given in wrong:
        with pytest.raises(PyroccamError):
            models.LearntDepth(*given, data=Data(5))


# -- what it computes -------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_log_likelihood_by_depth_equals_each_fixed_depth(task):
    torch.manual_seed(0)
    model, x, y = smooth(task=task, outputs=3)
    table = model.log_likelihood(x, y)
    assert table.shape == (4, 8)
    streamed = log_likelihood_by_depth(model, x, y, batch_size=3)
    torch.testing.assert_close(streamed, table.sum(1).detach())
    for d in range(4):
        fixed = model.at_depth(d)
        out = fixed.net(x)
        if task == "classification":
            expected = out.log_softmax(-1)[torch.arange(8), y]
        else:
            expected = torch.distributions.Normal(out, model.likelihood.scale).log_prob(y).sum(-1)
        torch.testing.assert_close(table[d], expected)
        torch.testing.assert_close(fixed.log_likelihood(x, y), table[d : d + 1])


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_a_scalar_depth_picks_its_row(depth):
    torch.manual_seed(0)
    model, x, y = smooth()
    conditioned = pyro.poutine.condition(model, {"depth": torch.tensor(depth)})
    trace = pyro.poutine.trace(conditioned).get_trace(x, y)
    trace.compute_log_prob()
    expected = model.log_likelihood(x, y)[depth]
    torch.testing.assert_close(trace.nodes["y"]["log_prob"], expected)


@pytest.mark.parametrize("particles", [1, 2, 4, 5])  # 4 is D + 1, the size of the support
def test_vectorised_draws_pick_their_own_rows(particles):
    torch.manual_seed(0)
    model, x, y = smooth()
    table = model.log_likelihood(x, y)
    seen = set()
    for _ in range(5):
        with pyro.plate("particles", particles, dim=-2):
            trace = pyro.poutine.trace(model).get_trace(x, y)
        trace.compute_log_prob()
        depths = trace.nodes["depth"]["value"]
        assert depths.shape == (particles, 1)
        torch.testing.assert_close(trace.nodes["y"]["log_prob"], table[depths[:, 0]])
        seen.add(tuple(depths[:, 0].tolist()))
    assert any(list(s) != sorted(s) or len(set(s)) < particles for s in seen) or particles == 1
