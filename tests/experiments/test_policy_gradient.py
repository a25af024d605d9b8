"""Policy gradients: exact on a small problem, episodes counted right, and a script that goes on."""

import importlib.util

import numpy as np
import pytest
import torch
from random_weights import assert_same_means
from scipy.stats import binom

from experiments.published.variance import policy_gradient
from experiments.published.variance.policy_gradient import (
    Episodes,
    Noise,
    Spaces,
    build_policy,
    draw_actions,
    roll_out,
    surrogate,
)

POLICIES = list(policy_gradient.POLICIES)

# Of (state, action): reward and next state; an episode also ends after HORIZON steps.
TABLE = {(0, 0): (1.0, 1), (0, 1): (0.5, None), (1, 0): (2.0, None), (1, 1): (-1.0, 0)}
HORIZON = 3
UPDATES = 800  # that the mean gradient is taken over


class Table:
    """The problem of TABLE in parallel; what has ended starts anew at the next step."""

    metadata = {}  # noqa: RUF012

    def __init__(self, count):
        self.num_envs = count

    def reset(self, seed=None):
        self.at = [(0, 0)] * self.num_envs
        self.over = np.zeros(self.num_envs, dtype=bool)
        return self.seen(), {}

    def seen(self):
        return np.eye(2, dtype=np.float32)[[state or 0 for state, _ in self.at]]

    def step(self, actions):
        rewards = np.zeros(self.num_envs)
        terminated, truncated = np.zeros((2, self.num_envs), dtype=bool)
        for e, action in enumerate(actions):
            if self.over[e]:
                self.at[e] = (0, 0)
                continue
            state, t = self.at[e]
            rewards[e], following = TABLE[state, int(action)]
            self.at[e] = (following, t + 1)
            terminated[e], truncated[e] = following is None, t + 1 == HORIZON
        self.over = terminated | truncated
        return self.seen(), rewards, terminated, truncated, {}


def expected_return(chances, state=0, left=HORIZON):
    """By enumeration, for probabilities ``(*, state, action)``."""
    total = 0.0
    for action in (0, 1) if left else ():
        reward, following = TABLE[state, action]
        ahead = 0.0 if following is None else expected_return(chances, following, left - 1)
        total = total + chances[..., state, action] * (reward + ahead)
    return total


def one_unit(policy):
    """A policy of width one in the problem of TABLE, with all its units alive, and parameters."""
    model, guide = build_policy(policy, Spaces((2,), 2), 1)
    values = {
        "net.0.weight": [[0.5, 1.5]], "net.0.bias": [0.3], "net.2.bias": [0.2],
        "net.4.weight": [[1.2], [-0.8]], "net.4.bias": [0.1, -0.3],
        "factors.2/weight.value": [[0.7]], "factors.2/weight.loc": [[0.5]],
        "factors.2/weight.log_scale": [[-0.3]], "factors.2/weight.signed_scale": [[-0.9]],
    }  # fmt: skip
    named = {**dict(model.named_parameters()), **dict(guide.named_parameters())}
    with torch.no_grad():
        for name, p in named.items():
            p.copy_(torch.tensor(values[name]))
    return model, guide, named


def exact_gradient(named):
    """Of the expected return: the one random weight on a fine grid, the episodes enumerated."""
    p = {name.rpartition(".")[2] if "/" in name else name: v for name, v in named.items()}
    grid = torch.linspace(-8.0, 8.0, 4001)
    density = torch.exp(-0.5 * grid.double().square())
    density = (density / density.sum()).float()
    if "value" in p:
        weight = p["value"] + 0.0 * grid
    elif "loc" in p:
        weight = p["loc"] + p["log_scale"].exp() * grid
    else:
        weight = p["signed_scale"].abs() * grid
    hidden = (p["net.0.weight"][0] + p["net.0.bias"]).relu()  # of the two states
    middle = (hidden[None, :, None] * weight.reshape(-1, 1, 1) + p["net.2.bias"]).relu()
    chances = (middle * p["net.4.weight"][:, 0] + p["net.4.bias"]).softmax(-1)
    # Fresh noise at each step: the policy is the mean over it.
    aim = expected_return((chances * density[:, None, None]).sum(0))
    return torch.cat([g.flatten() for g in torch.autograd.grad(aim, list(named.values()))])


@pytest.mark.parametrize("policy", POLICIES)
def test_the_gradient_is_without_bias(policy):
    torch.manual_seed(0)
    model, guide, named = one_unit(policy)
    exact = exact_gradient(named)
    assert exact.abs().min() > 1e-3  # nothing is left untested
    table, found = Table(2), []
    for _ in range(UPDATES):
        played_by = Noise(model, guide)
        played = roll_out(table, lambda x, by=played_by: draw_actions(by.act(x)))
        chosen = played_by.logits(played.observations).log_softmax(-1)
        log_prob = chosen.gather(-1, played.actions[..., None])[..., 0]
        gradient = torch.autograd.grad(-surrogate(log_prob, played), list(named.values()))
        found.append(torch.cat([g.flatten() for g in gradient]))
    assert_same_means(torch.stack(found), exact[None].expand(2, -1))


def test_surrogate_by_hand():
    log_prob = torch.tensor([[0.1, 0.2], [0.3, 5.0]])
    rewards = torch.tensor([[1.0, 2.0], [4.0, 0.0]])
    running = torch.tensor([[True, True], [True, False]])
    played = Episodes(torch.zeros(2, 2, 1), torch.zeros(2, 2).long(), rewards, running)
    # γ = ½: G = (3, 2), (4, -); b = (2, 3), (0, -)
    expected = -(0.1 * (3 - 2) + 0.3 * 4 + 0.2 * (2 - 3)) / 2
    assert float(surrogate(log_prob, played, 0.5)) == pytest.approx(expected)
    assert played.returns.tolist() == [5.0, 2.0]


def test_without_its_noise_a_variance_policy_sees_nothing():
    torch.manual_seed(0)
    x = torch.randn(6, 1, 3)
    for policy in POLICIES:
        model, guide = build_policy(policy, Spaces((3,), 2), 5)
        played_by = Noise(model, guide, mean=True)
        found = torch.stack([played_by.act(step) for step in x])
        assert (float(found.std(0).max()) < 1e-6) == (policy == "variance")


def test_interval_by_bootstrap():
    # Of zeros and ones: the sum over runs that are drawn anew is binomial.
    low, high = policy_gradient.interval(np.array([[0.0]] * 5 + [[1.0]] * 4))
    assert low[0] == pytest.approx(binom.ppf(0.025, 9, 4 / 9) / 9)
    assert high[0] == pytest.approx(binom.ppf(0.975, 9, 4 / 9) / 9)
    assert [float(v[0]) for v in policy_gradient.interval(np.array([[3.0]]))] == [3.0, 3.0]


# What follows needs gymnasium itself.

needs_gymnasium = pytest.mark.skipif(
    importlib.util.find_spec("gymnasium") is None, reason="gymnasium is not installed"
)


def counters(mode):
    """Parallel environments: one terminates after 2 steps, one is truncated after 3, one after 5.
    They say how many steps were made since the reset, and the n-th step gives n."""
    import gymnasium

    class Counter(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(0.0, 99.0, (1,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)

        def __init__(self, length, truncates):
            self.length, self.truncates, self.resets = length, truncates, 0

        def seen(self):
            return np.array([self.t], np.float32)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.t, self.resets = 0, self.resets + 1
            return self.seen(), {}

        def step(self, action):
            self.t += 1
            over = self.t == self.length
            return self.seen(), self.t, over and not self.truncates, over and self.truncates, {}

    made = [lambda n=n, t=t: Counter(n, t) for n, t in ((2, False), (3, True), (5, False))]
    return gymnasium.vector.SyncVectorEnv(made, autoreset_mode=mode)


@needs_gymnasium
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_one_episode_of_each_whatever_resets_there_are(mode):
    environments = counters(mode)
    for _ in range(2):  # the second starts anew, although others were under way
        played = roll_out(environments, lambda x: torch.zeros(3, dtype=torch.long))
        rewards = [[1, 1, 1], [2, 2, 2], [0, 3, 3], [0, 0, 4], [0, 0, 5]]
        assert played.rewards.tolist() == rewards
        assert played.running.tolist() == [[bool(r) for r in row] for row in rewards]
        for e in range(3):
            seen = played.observations[played.running[:, e], e, 0]
            assert seen.tolist() == list(range(len(seen)))
        assert played.returns.tolist() == [3.0, 6.0, 15.0]
