r"""Policies with random weights in reinforcement learning, by REINFORCE, over seeds.

    python -m experiments policy_gradient --again

A policy is a network of two hidden layers from observations to the logits of actions; the weights
between the hidden layers are points (``deterministic``), normal with means and deviations
(``parameter-noise``), or normal without means (``variance``). With :math:`w = μ + σ ε` the aim is

.. math:: J(θ) = E_ε E_{τ \mid w(ε)} \sum_t r_t

over episodes τ. The noise does not depend on θ, so with ε held fixed the score function gives

.. math:: ∇J = E_ε E_{τ \mid w(ε)} \sum_t ∇_θ \log π(a_t \mid s_t, w(ε))\, (G_t - b_t), \qquad
          G_t = \sum_{k \ge t} γ^{k - t} r_k

without bias for γ = 1, for a baseline :math:`b_t` that is independent of the episode's own noise
and actions: here the mean return-to-go at time t of the *other* episodes of the update. γ < 1 takes
variance away, and what is far ahead with it. There is no KL: for a log-uniform prior and weights
without means it is constant, and the other two take none.

Noise is drawn anew at every step, in the activations: the formula holds with :math:`w(ε_t)`, and
the policy is :math:`E_ε\, π(a \mid s, w(ε))`. With weights that are drawn for a whole episode, as
parameter noise was proposed, the variance policy learns much more slowly
(``results/policy_gradient/episode``, by the script at a9ba2b7).

An update takes one whole episode of each parallel environment, all started together, so that short
episodes are not seen more often than long ones. A time limit ends an episode as a fall does: the
aim is the return within the limit, and nothing is estimated beyond it. Where all episodes of an
update have the same rewards it has no gradient: in Acrobot, a run that does not meet the goal in
its first episodes may stay where it is.

References:
    Williams 1992, Simple statistical gradient-following algorithms for connectionist reinforcement
    learning; Kool, van Hoof, Welling 2019, Buy 4 REINFORCE samples, get a baseline for free, for
    the baseline; Fortunato et al. 2018, arXiv:1706.10295, and Plappert et al. 2018,
    arXiv:1706.01905, for parameter noise; Neklyudov et al. 2018, arXiv:1803.03764, for the
    experiment.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from pyroccam.guides import Delta, MeanField, ZeroMean
from pyroccam.guides.base import NetworkGuide
from pyroccam.models import BayesianNetwork, priors
from pyroccam.models.distributions.wrapped import base
from pyroccam.models.local_reparameterisation import TINY
from pyroccam.models.priors.base import WeightPrior
from torch import Tensor, nn

from ..lines import panels
from ..markdown import header, plus_minus, read_all, row
from ..runner import Choice, File, Given, Made, Row, Spec, seeds

__all__ = [
    "POLICIES", "SPEC", "Episodes", "Noise", "Spaces", "build_policy", "draw_actions", "interval",
    "others_mean", "returns_to_go", "roll_out", "surrogate", "train",
]  # fmt: skip

RANDOM_LAYER = "2"  # in the network: the weights between the two hidden layers
PARAMETER_NOISE = 0.017  # the deviation at the start, of Fortunato et al. for independent noise
EVALUATION_EPISODES = 16
LAST = 0.1  # of the updates: what the final return is taken over
POINTS = 40  # of a curve in the figure, at most

POLICIES: dict[str, tuple[WeightPrior, Callable[[BayesianNetwork], NetworkGuide]]] = {
    "deterministic": (priors.Normal(), Delta),
    "parameter-noise": (priors.Normal(), partial(MeanField, scale=PARAMETER_NOISE)),
    "variance": (priors.LogUniform(), ZeroMean),
}


@dataclass(frozen=True)
class Spaces:
    """The shapes that a Bayesian network asks of data, said of an environment.

    Attributes:
        input_shape: of an observation.
        outputs: number of actions.
        N: observations that the plate stands for.
    """

    input_shape: tuple[int, ...]
    outputs: int
    N: int = 1
    task: str = "classification"


def build_policy(name: str, spaces: Spaces, width: int) -> tuple[BayesianNetwork, NetworkGuide]:
    """Model and guide of a policy; the middle layer alone is random, biases are numbers."""
    prior, guide = POLICIES[name]
    (inputs,) = spaces.input_shape
    net = nn.Sequential(
        nn.Linear(inputs, width), nn.ReLU(),
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, spaces.outputs),
    )  # fmt: skip
    model = BayesianNetwork(net, spaces, prior=prior, layers=[RANDOM_LAYER], random_biases=False)
    return model, guide(model)


class Noise:
    """A policy while it plays one batch of episodes. Each step of each episode has noise of its
    own: that of the activations, as :class:`~pyroccam.models.LocalReparameterization` has it, but
    kept, to be used again.

    Arguments:
        model, guide: of :func:`build_policy`; normal weights, or points.
        mean: the mean weights instead, without noise.
    """

    def __init__(self, model: BayesianNetwork, guide: NetworkGuide, *, mean: bool = False) -> None:
        # Of a layer: means of its weights, their variances, and biases.
        self.layers: list[tuple[Tensor | None, Tensor | None, Tensor]] = []
        for name, part in model.part("net").named_children():
            if name == RANDOM_LAYER:
                fn, bias = guide.posterior(f"{name}.weight"), model.layers[name].bias
                assert bias is not None
                if mean or guide.handler is None:
                    self.layers.append((fn.mean, None, bias))
                else:
                    q = base(fn)
                    self.layers.append(
                        (None if guide.traits.zero_mean else q.loc, q.scale.square(), bias)
                    )
            elif isinstance(part, nn.Linear):
                self.layers.append((part.weight, None, part.bias))
        self._kept: list[list[Tensor]] = []

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        """Logits ``(E, actions)`` for ``(E, inputs)``, without a gradient."""
        self._kept.append([
            torch.randn(len(observations), len(bias))
            for _, variance, bias in self.layers if variance is not None
        ])  # fmt: skip
        return self._outputs(observations, self._kept[-1])

    def logits(self, observations: Tensor) -> Tensor:
        """The same logits ``(T, E, actions)`` again, with gradients, for ``(T, E, inputs)``."""
        return self._outputs(observations, [torch.stack(n) for n in zip(*self._kept, strict=True)])

    def _outputs(self, x: Tensor, noise: list[Tensor]) -> Tensor:
        """Outputs for ``(*, inputs)``, with the noise ``(*, outputs)`` of each random layer."""
        drawn = iter(noise)
        for number, (mean, variance, bias) in enumerate(self.layers):
            x = x if number == 0 else x.relu()
            out = bias if mean is None else F.linear(x, mean, bias)
            if variance is not None:
                out = out + (F.linear(x.square(), variance) + TINY).sqrt() * next(drawn)
            x = out
        return x


def draw_actions(logits: Tensor) -> Tensor:
    """Draws from ``Categorical(logits)``, as the argmax of logits with Gumbel noise: ``(*,
    actions)`` to ``(*,)``."""
    return (logits - torch.empty_like(logits).exponential_().log()).argmax(-1)


@dataclass(frozen=True)
class Episodes:
    """One episode of each of E environments, of at most T steps.

    Attributes:
        observations: ``(T, E, *)``.
        actions: ``(T, E)``.
        rewards: ``(T, E)``, zero after the end.
        running: ``(T, E)``, whether the step belongs to the episode.
    """

    observations: Tensor
    actions: Tensor
    rewards: Tensor
    running: Tensor

    @property
    def returns(self) -> Tensor:
        """``(E,)``, undiscounted."""
        return self.rewards.sum(0)


def roll_out(
    environments: Any, act: Callable[[Tensor], Tensor], *, seed: int | None = None
) -> Episodes:
    """Play one episode in every environment, from a reset of all until the last one ends.

    Environments that end early are reset by gymnasium, at the next step or at the same one, and
    what they do from then on is left out. The reward of the step that ends an episode counts; the
    observation that comes with it is not acted on.

    Arguments:
        environments: a ``gymnasium.vector.VectorEnv`` that resets by itself.
        act: observations ``(E, *)`` to actions ``(E,)``.
        seed: of the environments; by default they go on with their generators.
    """
    observation, _ = environments.reset(seed=seed)
    alive = np.ones(environments.num_envs, dtype=bool)
    steps: list[tuple[Tensor, ...]] = []
    while alive.any():
        seen = torch.as_tensor(np.array(observation), dtype=torch.get_default_dtype())
        actions = act(seen)
        observation, reward, terminated, truncated, _ = environments.step(actions.numpy())
        reward = torch.as_tensor(np.where(alive, reward, 0.0), dtype=seen.dtype)
        steps.append((seen, actions, reward, torch.as_tensor(alive.copy())))
        alive &= ~(terminated | truncated)
    return Episodes(*(torch.stack(column) for column in zip(*steps, strict=True)))


def returns_to_go(rewards: Tensor, discount: float) -> Tensor:
    """``G_t = r_t + γ G_{t+1}``, for rewards ``(T, *)``."""
    found = rewards.clone()
    for t in range(len(rewards) - 2, -1, -1):
        found[t] += discount * found[t + 1]
    return found


def others_mean(values: Tensor, running: Tensor) -> Tensor:
    """At each time the mean of the *other* episodes that are running; zero where there are none.

    Arguments:
        values, running: ``(T, E)``.
    """
    counted = values * running
    total = counted.sum(1, keepdim=True) - counted
    count = running.sum(1, keepdim=True) - running.to(values.dtype)
    return total / count.clamp_min(1.0)


def surrogate(log_prob: Tensor, episodes: Episodes, discount: float = 1.0) -> Tensor:
    r"""A scalar whose negative gradient estimates that of the expected return.

    .. math:: -\frac1E \sum_e \sum_t \log π(a_t \mid s_t, w_e)\, (G_t - b_t)

    Arguments:
        log_prob: of the actions, ``(T, E)``, with the noise that they were taken under.
    """
    found = returns_to_go(episodes.rewards, discount)
    advantage = (found - others_mean(found, episodes.running)) * episodes.running
    return -(log_prob * advantage).sum() / log_prob.shape[1]


def train(settings: Mapping[str, Any], seed: int) -> Row:
    """One run.

    Returns:
        ``steps`` of the environments up to each update, and ``returns``, the mean of its episodes,
        played before it is learnt from; ``final``, the mean return over the last tenth of the
        updates; ``noise`` and ``mean_weights``, mean returns of the finished policy as it was
        trained and with the mean weights.
    """
    gymnasium: Any = importlib.import_module("gymnasium")  # of the extra ``experiments``
    environments = gymnasium.make_vec(settings["environment"], num_envs=settings["episodes"])
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.closing(environments))
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(pyro.validation_enabled(False))
        torch.manual_seed(seed)
        shape = environments.single_observation_space.shape
        spaces = Spaces(shape, int(environments.single_action_space.n))
        return _learn(settings, seed, environments, spaces)


def _learn(settings: Mapping[str, Any], seed: int, environments: Any, spaces: Spaces) -> Row:
    model, guide = build_policy(settings["policy"], spaces, settings["width"])
    likelihood = model.part("likelihood")
    parameters = [*model.parameters(), *guide.parameters()]
    optimiser = torch.optim.Adam(parameters, lr=settings["lr"])
    episodes, updates = settings["episodes"], settings["updates"]

    def play(noise: Noise, seed: int | None = None) -> Episodes:
        return roll_out(environments, lambda x: draw_actions(noise.act(x)), seed=seed)

    steps: list[int] = []
    returns: list[float] = []
    for update in range(updates):
        noise = Noise(model, guide)
        # Seeds of parallel environments follow one another.
        played = play(noise, seed * episodes if update == 0 else None)
        log_prob = likelihood(noise.logits(played.observations)).log_prob(played.actions)
        optimiser.zero_grad()
        surrogate(log_prob, played, settings["discount"]).backward()
        optimiser.step()
        steps.append(int(played.running.sum()) + (steps[-1] if steps else 0))
        returns.append(round(float(played.returns.mean()), 3))
    batches = range(-(-EVALUATION_EPISODES // episodes))
    with torch.no_grad():
        noisy = [play(Noise(model, guide)).returns for _ in batches]
        mean = [play(Noise(model, guide, mean=True)).returns for _ in batches]
    return {
        "final": float(np.mean(returns[-max(1, round(LAST * updates)) :])),
        "noise": float(torch.cat(noisy).mean()),
        "mean_weights": float(torch.cat(mean).mean()),
        "steps": steps,
        "returns": returns,
    }


def interval(values: Any, draws: int = 10_000) -> tuple[Any, Any]:
    """The ends of the 95 % interval of the mean over the runs ``(R, *)``, by bootstrap.

    Runs are drawn whole, with replacement. Unlike Student's interval this one keeps to returns that
    there are, where some runs learn and some do not; for few runs it is rather narrow.

    References:
        Agarwal et al. 2021, Deep reinforcement learning at the edge of the statistical precipice,
        arXiv:2108.13264.
    """
    chosen = np.random.default_rng(0).integers(len(values), size=(draws, len(values)))
    times = (chosen[:, :, None] == np.arange(len(values))).sum(1)
    means = np.tensordot(times / len(values), values, 1)
    low, high = np.quantile(means, (0.025, 0.975), axis=0, method="inverted_cdf")
    return low, high


def returns_figure(folder: Path, environments: Iterable[str]) -> Figure:
    """Mean return against episodes, with its 95 % :func:`interval`, a panel an environment."""
    found: dict[str, dict[str, Any]] = {}
    for environment in environments:
        for name in POLICIES:
            for one in read_all(folder, f"{environment}-{name}").values():
                returns = np.array([run["returns"] for run in one["runs"]])
                # A point is the mean over a few updates, which are a few episodes each.
                parts = np.array_split(np.arange(returns.shape[1]), min(POINTS, returns.shape[1]))
                x = [one["config"]["episodes"] * (part.mean() + 0.5) for part in parts]
                means = np.stack([returns[:, part].mean(1) for part in parts], 1)
                lines = found.setdefault(f"{environment}, {len(returns)} seeds", {})
                lines[name.replace("-", " ")] = (x, means)
    return panels(found, "episodes", "return", interval, sharey=False)


def files(given: Given) -> Iterable[File]:
    """One of each environment and policy."""
    names = ("updates", "episodes", "width", "lr", "discount")
    how = {**{name: getattr(given, name) for name in names}, "noise": "step"}
    for environment in given.environments:
        for policy in given.policies:
            config = {"environment": environment, "policy": policy, **how}
            run_one = partial(train, config)
            yield File(f"{environment}-{policy}", {"config": config}, run_one, seeds(given))


def drawn(given: Given) -> Mapping[str, Made]:
    """Of all environments."""
    return {"returns": partial(returns_figure, given.out, given.environments)}


def table(folder: Path) -> Iterable[str]:
    """Mean returns while learning, of the finished policy, and of its mean weights."""
    files = read_all(folder).values()
    if not files:
        return
    yield from header("environment, policy (seeds)", "return", "after training", "mean weights")
    for found in files:
        config, runs = found["config"], found["runs"]
        cells = [plus_minus(runs, name, 0) for name in ("final", "noise", "mean_weights")]
        yield row(f"{config['environment']}, {config['policy']} ({len(runs)})", *cells)


SPEC = Spec(
    "experiments.published.variance.policy_gradient", "Policies", "policy_gradient",
    {
        "environments": ("CartPole-v1", "Acrobot-v1"), "policies": Choice(POLICIES), "seeds": 9,
        "updates": 80, "episodes": 8, "width": 256, "lr": 3e-3, "discount": 0.99,
    },
    files, table, drawn,
    small="--environments CartPole-v1 --seeds 2 --updates 2 --episodes 4 --width 4",
)  # fmt: skip

if __name__ == "__main__":
    SPEC.main()
