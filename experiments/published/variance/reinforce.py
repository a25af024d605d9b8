r"""REINFORCE for policies with random weights: what is played, and what is learnt of it.

With :math:`w = μ + σ ε` the aim is

.. math:: J(θ) = E_ε E_{τ \mid w(ε)} \sum_t r_t

over episodes τ. The noise does not depend on θ, so with ε held fixed the score function gives

.. math:: ∇J = E_ε E_{τ \mid w(ε)} \sum_t ∇_θ \log π(a_t \mid s_t, w(ε))\, (G_t - b_t), \qquad
          G_t = \sum_{k \ge t} γ^{k - t} r_k

without bias for γ = 1, for a baseline :math:`b_t` that is independent of the episode's own noise
and actions: here the mean return-to-go at time t of the *other* episodes of the update. γ < 1 takes
variance away, and what is far ahead with it. There is no KL: for a log-uniform prior and weights
without means it is constant, and the other two take none.

References:
    Williams 1992, Simple statistical gradient-following algorithms for connectionist reinforcement
    learning; Kool, van Hoof, Welling 2019, Buy 4 REINFORCE samples, get a baseline for free, for
    the baseline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from pyroccam.guides import Delta, MeanField, ZeroMean
from pyroccam.guides.base import NetworkGuide
from pyroccam.models import BayesianNetwork, priors
from pyroccam.models.checks import unknown_name
from pyroccam.models.distributions.wrapped import base
from pyroccam.models.layers.local_reparameterisation import TINY
from pyroccam.models.priors.base import WeightPrior
from torch import Tensor, nn

__all__ = [
    "POLICIES",
    "Episodes",
    "Noise",
    "NoiseOfEpisode",
    "NoiseOfStep",
    "Spaces",
    "build_policy",
    "draw_actions",
    "others_mean",
    "policy_network",
    "returns_to_go",
    "roll_out",
    "surrogate",
]

RANDOM_LAYER = "2"  # in the network: the weights between the two hidden layers
PARAMETER_NOISE = 0.017  # the deviation at the start, of Fortunato et al. for independent noise

# Of a layer: means of its weights, their variances (``None`` where there are none), and biases.
_Moments = tuple[Tensor | None, Tensor | None, Tensor]


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


def policy_network(inputs: int, actions: int, width: int) -> nn.Sequential:
    """Observations ``(B, inputs)`` to logits ``(B, actions)``."""
    return nn.Sequential(
        nn.Linear(inputs, width), nn.ReLU(),
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, actions),
    )  # fmt: skip


Made = Callable[[BayesianNetwork], NetworkGuide]

POLICIES: dict[str, tuple[WeightPrior, Made]] = {
    "deterministic": (priors.Normal(), Delta),
    "parameter-noise": (priors.Normal(), partial(MeanField, scale=PARAMETER_NOISE)),
    "variance": (priors.LogUniform(), ZeroMean),
}


def build_policy(name: str, spaces: Spaces, width: int) -> tuple[BayesianNetwork, NetworkGuide]:
    """Model and guide of a policy; the middle layer alone is random, biases are numbers.

    Arguments:
        name: one of :data:`POLICIES`.
    """
    if name not in POLICIES:
        raise ValueError(unknown_name("policy", name, POLICIES))
    prior, guide = POLICIES[name]
    (inputs,) = spaces.input_shape
    net = policy_network(inputs, spaces.outputs, width)
    model = BayesianNetwork(net, spaces, prior=prior, layers=[RANDOM_LAYER], random_biases=False)
    return model, guide(model)


class Noise(Protocol):
    """A policy while it plays one batch of episodes."""

    def act(self, observations: Tensor) -> Tensor:
        """Logits ``(E, actions)`` for ``(E, inputs)``, without a gradient."""
        ...

    def logits(self, observations: Tensor) -> Tensor:
        """The same logits ``(T, E, actions)`` again, with gradients, for ``(T, E, inputs)``."""
        ...


class NoiseOfEpisode:
    """Each episode is played by a network of its own, whose weights are drawn.

    Arguments:
        model, guide: of :func:`build_policy`.
        episodes: E.
        mean: the mean weights in all episodes instead.
    """

    def __init__(
        self, model: BayesianNetwork, guide: NetworkGuide, episodes: int, *, mean: bool = False
    ) -> None:
        self.layers: list[tuple[Tensor, Tensor]] = []
        for fn, weight, bias in _layers(model, guide):
            if fn is not None:
                one = mean or guide.handler is None  # a point is one for all episodes
                weight = fn.mean if one else fn.rsample((episodes,))
            self.layers.append((weight, bias))

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        return self.logits(observations[None])[0]

    def logits(self, observations: Tensor) -> Tensor:
        x = observations.transpose(0, 1)
        for number, (weight, bias) in enumerate(self.layers):
            x = x if number == 0 else x.relu()
            if weight.dim() == 3:
                x = torch.baddbmm(bias, x, weight.mT)
            else:
                x = F.linear(x, weight, bias)
        return x.transpose(0, 1)


class NoiseOfStep:
    """Each step of each episode has noise of its own: that of the activations, as
    :class:`~pyroccam.models.LocalReparameterization` has it, but kept, to be used again.

    Arguments:
        model, guide: of :func:`build_policy`; normal weights, or points.
        episodes: E.
    """

    def __init__(self, model: BayesianNetwork, guide: NetworkGuide, episodes: int) -> None:
        self.layers: list[_Moments] = []
        for fn, weight, bias in _layers(model, guide):
            if fn is None:
                self.layers.append((weight, None, bias))
            elif guide.handler is None:
                self.layers.append((fn.mean, None, bias))
            else:
                q = base(fn)
                mean = None if guide.traits.zero_mean else q.loc
                self.layers.append((mean, q.scale.square(), bias))
        self._kept: list[list[Tensor]] = []

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        self._kept.append([
            torch.randn(len(observations), len(bias))
            for _, variance, bias in self.layers if variance is not None
        ])  # fmt: skip
        return self._outputs(observations, self._kept[-1])

    def logits(self, observations: Tensor) -> Tensor:
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


def _layers(model: BayesianNetwork, guide: NetworkGuide) -> Iterator[tuple[Any, Tensor, Tensor]]:
    """The posterior of the weight (``None`` of a number), the weight (not random), the bias."""
    for name, part in model.part("net").named_children():
        if name == RANDOM_LAYER:
            layer = model.layers[name]
            assert layer.bias is not None
            yield guide.posterior(f"{name}.weight"), layer.start["weight"], layer.bias
        elif isinstance(part, nn.Linear):
            yield None, part.weight, part.bias


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

    Raises:
        ValueError: for environments that do not reset by themselves.
    """
    mode = getattr(environments, "metadata", {}).get("autoreset_mode")
    if getattr(mode, "value", mode) == "Disabled":
        raise ValueError(
            "These environments do not reset by themselves (autoreset_mode=Disabled), and those "
            "that end early cannot be stepped further: make them with AutoresetMode.NEXT_STEP."
        )
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
