r"""Policies with random weights in reinforcement learning, by REINFORCE, over seeds.

    python -m experiments.published.variance.policy_gradient

A policy is a network of two hidden layers from observations to the logits of actions; the weights
between the hidden layers are points (``deterministic``), normal with means and deviations
(``parameter-noise``), or normal without means (``variance``). The estimator is in
:mod:`~experiments.published.variance.reinforce`.

Noise is drawn anew at every step (``--noise step``), in the activations: the formula holds with
:math:`w(ε_t)`, and the policy is :math:`E_ε\, π(a \mid s, w(ε))`. ``--noise episode`` draws weights
for a whole episode, as parameter noise was proposed, so that exploration is consistent within it;
then a return is that of one draw of all the weights, and the variance policy learns much more
slowly (``results/policy_gradient/episode``, by ``--environments CartPole-v1 --policies variance
--noise episode``).

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
import importlib.metadata
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import numpy as np
import pyro
import torch
import typer
from matplotlib.figure import Figure
from pyroccam.inference import figures
from pyroccam.inference.figures.canvas import new_figure
from pyroccam.inference.figures.style import CYCLE, styled
from pyroccam.inference.posterior.metrics import mean_spread
from pyroccam.inference.storage.checkpoint import versions
from pyroccam.models.checks import nearest, one_of, unknown_name

from .. import options
from ..runner import ResultFile, Row, renew
from .reinforce import (
    POLICIES,
    Episodes,
    Noise,
    NoiseOfEpisode,
    NoiseOfStep,
    Spaces,
    build_policy,
    draw_actions,
    roll_out,
    surrogate,
)

__all__ = ["NOISES", "Settings", "interval", "make_environments", "returns_figure", "train"]

NOISES = ("episode", "step")
EVALUATION_EPISODES = 16
LAST = 0.1  # of the updates: what the final return is taken over
KEPT = ("final", "noise", "mean_weights")  # of a run, with their spread over seeds
LINES = ("--", "-.", "-")  # of the policies, for a figure printed in grey
POINTS = 40  # of a curve in the figure, at most


@dataclass(frozen=True)
class Settings:
    """Settings of a run.

    Attributes:
        environment: a gymnasium id.
        policy: one of :data:`POLICIES`.
        updates: steps of Adam.
        episodes: of an update, one in each parallel environment; at least two, for the baseline.
        width: of both hidden layers.
        lr: of Adam.
        discount: γ.
        noise: of an ``episode`` or of a ``step``.
    """

    environment: str = "CartPole-v1"
    policy: str = "variance"
    updates: int = 80
    episodes: int = 8
    width: int = 256
    lr: float = 3e-3
    discount: float = 0.99
    noise: str = "step"

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ValueError(unknown_name("policy", self.policy, POLICIES))
        one_of("noise", self.noise, NOISES)
        if self.episodes < 2:
            raise ValueError(
                f"episodes must be at least 2, got {self.episodes}: the baseline of an episode is "
                "the mean of the others."
            )
        if not 0.0 < self.discount <= 1.0:
            raise ValueError(f"discount must be in (0, 1], got {self.discount}; 1 discounts not.")


def make_environments(name: str, count: int) -> Any:
    """Parallel environments of gymnasium with discrete actions and observations ``(inputs,)``.

    Raises:
        ImportError: without gymnasium.
        ValueError: for a name that gymnasium does not know, or other spaces.
    """
    try:
        gymnasium: Any = importlib.import_module("gymnasium")
    except ImportError:
        raise ImportError(
            "Policy gradients need environments of gymnasium, which is not installed: "
            "pip install -e '.[experiments]'"
        ) from None
    try:
        gymnasium.spec(name)
    except gymnasium.error.Error:
        raise ValueError(
            f"Unknown environment {name!r}.{nearest(name, gymnasium.registry)} Any of gymnasium "
            "with discrete actions can be used, such as CartPole-v1 and Acrobot-v1; "
            "gymnasium.pprint_registry() lists them."
        ) from None
    found = gymnasium.make_vec(name, num_envs=count)
    seen, acts = found.single_observation_space, found.single_action_space
    if not isinstance(acts, gymnasium.spaces.Discrete) or len(seen.shape or ()) != 1:
        found.close()
        raise ValueError(
            f"{name} has the actions {acts} and the observations {seen}; expected discrete actions "
            "and observations that are one vector. Try CartPole-v1 or Acrobot-v1."
        )
    return found


def train(settings: Settings, seed: int) -> dict[str, Any]:
    """One run.

    Returns:
        ``steps`` of the environments up to each update, and ``returns``, the mean of its episodes,
        played before it is learnt from; ``final``, the mean return over the last tenth of the
        updates; ``noise`` and ``mean_weights``, mean returns of the finished policy as it was
        trained and with the mean weights.
    """
    environments = make_environments(settings.environment, settings.episodes)
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.closing(environments))
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(pyro.validation_enabled(False))
        torch.manual_seed(seed)
        spaces = Spaces(
            environments.single_observation_space.shape, int(environments.single_action_space.n)
        )
        return _learn(settings, seed, environments, spaces)


def _learn(settings: Settings, seed: int, environments: Any, spaces: Spaces) -> dict[str, Any]:
    model, guide = build_policy(settings.policy, spaces, settings.width)
    likelihood = model.part("likelihood")
    optimiser = torch.optim.Adam([*model.parameters(), *guide.parameters()], lr=settings.lr)
    kind = NoiseOfEpisode if settings.noise == "episode" else NoiseOfStep

    def play(noise: Noise, seed: int | None = None) -> Episodes:
        return roll_out(environments, lambda x: draw_actions(noise.act(x)), seed=seed)

    steps: list[int] = []
    returns: list[float] = []
    for update in range(settings.updates):
        noise = kind(model, guide, settings.episodes)
        # Seeds of parallel environments follow one another.
        played = play(noise, seed * settings.episodes if update == 0 else None)
        log_prob = likelihood(noise.logits(played.observations)).log_prob(played.actions)
        loss = surrogate(log_prob, played, settings.discount)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        steps.append(int(played.running.sum()) + (steps[-1] if steps else 0))
        returns.append(round(float(played.returns.mean()), 3))
    last = returns[-max(1, round(LAST * settings.updates)) :]
    batches = -(-EVALUATION_EPISODES // settings.episodes)
    with torch.no_grad():
        count = settings.episodes
        noisy = [play(kind(model, guide, count)).returns for _ in range(batches)]
        mean = [play(NoiseOfEpisode(model, guide, count, mean=True)).returns for _ in noisy]
    return {
        "seed": seed,
        "final": float(np.mean(last)),
        "noise": float(torch.cat(noisy).mean()),
        "mean_weights": float(torch.cat(mean).mean()),
        "steps": steps,
        "returns": returns,
    }


def interval(values: Any, draws: int = 10_000) -> tuple[Any, Any, Any]:
    """Mean over the runs ``(R, *)``, and the ends of its 95 % interval by bootstrap.

    Runs are drawn whole, with replacement. Unlike Student's interval this one keeps to returns that
    there are, where some runs learn and some do not; for few runs it is rather narrow.

    References:
        Agarwal et al. 2021, Deep reinforcement learning at the edge of the statistical precipice,
        arXiv:2108.13264.
    """
    values = np.asarray(values, dtype=np.float64)
    chosen = np.random.default_rng(0).integers(len(values), size=(draws, len(values)))
    times = (chosen[:, :, None] == np.arange(len(values))).sum(1)
    means = np.tensordot(times / len(values), values, 1)
    return values.mean(0), *np.quantile(means, (0.025, 0.975), axis=0, method="inverted_cdf")


@styled
def returns_figure(
    results: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]], episodes: int
) -> Figure:
    """Mean return against episodes, a panel for each environment, with the 95 % :func:`interval`.

    Arguments:
        results: by environment and policy the runs of :func:`train`, at least one, of one length.
        episodes: of an update.
    """
    fig = new_figure(2.9)
    grid = fig.subplots(1, len(results), squeeze=False)[0]
    for ax, (environment, found) in zip(grid, results.items(), strict=True):
        count = max(len(runs) for runs in found.values())
        ax.set_title(f"{environment}, {count} seed{'s' * (count != 1)}")
        for name, runs in found.items():
            look = list(POLICIES).index(name)
            returns = np.array([run["returns"] for run in runs])
            # A point is the mean over a few updates, which are a few episodes each.
            parts = np.array_split(np.arange(returns.shape[1]), min(POINTS, returns.shape[1]))
            x = [episodes * (part.mean() + 0.5) for part in parts]
            mean, low, high = interval(np.stack([returns[:, part].mean(1) for part in parts], 1))
            ax.plot(x, mean, color=CYCLE[look], linestyle=LINES[look], label=shown(name))
            ax.fill_between(x, low, high, color=CYCLE[look], alpha=0.2, linewidth=0)
        ax.set_xlabel("episodes")
        ax.set_xlim(left=0)
    grid[0].set_ylabel("return")
    handles, names = grid[0].get_legend_handles_labels()
    fig.legend(handles, names, loc="outside upper center", ncols=len(names))
    return fig


def shown(policy: str) -> str:
    """Its name in a figure."""
    return policy.replace("-", " ")


def main(
    out: options.Out = options.RESULTS / "policy_gradient",
    environments: Annotated[str, typer.Option(help="Of gymnasium, separated by commas.")] = (
        "CartPole-v1,Acrobot-v1"
    ),
    policies: Annotated[str, options.BY_COMMAS] = ",".join(POLICIES),
    seeds: options.Count = 9,
    updates: Annotated[int, typer.Option(min=1, help="Steps of Adam.")] = Settings.updates,
    episodes: Annotated[int, typer.Option(min=2, help="Of an update.")] = Settings.episodes,
    width: Annotated[int, typer.Option(min=1, help="Of both hidden layers.")] = Settings.width,
    lr: Annotated[float, typer.Option()] = Settings.lr,
    discount: Annotated[float, typer.Option(min=0.0, max=1.0)] = Settings.discount,
    noise: Annotated[str, typer.Option(help="Of an episode or of a step.")] = Settings.noise,
    threads: options.Count = 1,
) -> None:
    """Run what is missing; write one JSON file for each environment and policy, and a figure."""
    torch.set_num_threads(threads)
    files: dict[Settings, ResultFile] = {}
    try:
        for environment in environments.split(","):
            for policy in policies.split(","):
                one = Settings(environment, policy, updates, episodes, width, lr, discount, noise)
                name = f"{environment}-{policy}.json".replace("/", "-")
                files[one] = ResultFile(out / name, config=asdict(one))
            make_environments(environment, 2).close()
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    about = {**versions(), "gymnasium": importlib.metadata.version("gymnasium")}
    results: dict[str, dict[str, list[Row]]] = {}
    # Seed by seed, so that what an interruption leaves is as many seeds of each policy.
    for environment in environments.split(","):
        own = {one: file for one, file in files.items() if one.environment == environment}
        for seed in range(seeds):
            for one, file in own.items():
                if file.missing([seed]):
                    file.add(train(one, seed), _spread, versions=about)
                    print(_line(one, file.runs[-1]), flush=True)
        results[environment] = {one.policy: file.runs[:seeds] for one, file in own.items()}
        picture = returns_figure(results, episodes)
        renew(out / "returns.png", figures.save, picture, out / "returns")


def _spread(runs: Sequence[Row]) -> Row:
    return mean_spread([{k: one[k] for k in KEPT} for one in runs])


def _line(settings: Settings, run: Row) -> str:
    return (
        f"{settings.environment} {settings.policy} seed {run['seed']}: {run['final']:.1f} over the "
        f"last updates; then {run['noise']:.1f} with noise, {run['mean_weights']:.1f} with mean "
        "weights"
    )


if __name__ == "__main__":
    typer.run(main)
