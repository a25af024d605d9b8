"""The same steps in JAX, by hand and by NumPyro; both are no requirements, and come with ``bench``.

A step ends when its loss is a number, so that nothing is left to do in the background.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from pyroccam.inference import Settings
from torch import Tensor, nn

from ..harness import Step

__all__ = ["local_step", "numpyro_step", "scan_step"]


def _jax() -> Any:
    """JAX, with one thread as the others have it."""
    os.environ.setdefault(
        "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    )
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    return import_module("jax")


def _array(t: Tensor) -> Any:
    return import_module("jax.numpy").asarray(t.detach().cpu().numpy())


def scan_step(model: Any, settings: Settings, x: Tensor, y: Tensor) -> Step:
    """Learnt depth as one would write it in JAX: one scan over equal blocks, compiled whole.

    Arguments:
        model: a learnt depth over a residual perceptron, whose weights are copied.
        settings: of the optimiser.
        x, y: a batch.
    """
    jax: Any = _jax()
    np: Any = import_module("jax.numpy")
    stack = model.stack
    linears = [block.f[0] for block in stack.blocks]
    norms = [block.f[2] for block in stack.blocks]

    def stacked(parts: list[nn.Module], name: str) -> Any:
        return np.stack([_array(getattr(part, name)) for part in parts])

    weights = {
        "stem": (_array(stack.stem[1].weight), _array(stack.stem[1].bias)),
        "head": (_array(stack.head.weight), _array(stack.head.bias)),
        "blocks": (
            stacked(linears, "weight"), stacked(linears, "bias"),
            stacked(norms, "weight"), stacked(norms, "bias"),
        ),
    }  # fmt: skip
    logits = np.zeros(len(linears) + 1)
    running = (stacked(norms, "running_mean"), stacked(norms, "running_var"))
    momentum, eps = norms[0].momentum, norms[0].eps
    log_prior, size = _array(model.log_prior), model.size
    a, b = _array(x), _array(y)

    def loss(parameters: Any, running: Any) -> Any:
        weights, logits = parameters
        (w, c), (v, d) = weights["stem"], weights["head"]
        first = a @ w.T + c

        def block(h: Any, part: Any) -> Any:
            (w, c, scale, shift), (mean_before, var_before) = part
            r = jax.nn.relu(h @ w.T + c)
            mean, var = r.mean(0), r.var(0)
            h = h + (r - mean) * jax.lax.rsqrt(var + eps) * scale + shift
            unbiased = var * (len(a) / (len(a) - 1))
            kept = (
                (1 - momentum) * mean_before + momentum * mean,
                (1 - momentum) * var_before + momentum * unbiased,
            )
            return h, (h, kept)

        _, (exits, new) = jax.lax.scan(block, first, (weights["blocks"], running))
        exits = np.concatenate([first[None], exits])
        log_p = jax.nn.log_softmax(exits @ v.T + d)
        nll = -np.take_along_axis(log_p, b[None, :, None], 2)[..., 0].mean(1)
        log_q = jax.nn.log_softmax(logits)
        q = np.exp(log_q)
        return (q * nll).sum() + (q * (log_q - log_prior)).sum() / size, new

    rates = ((settings.lr, settings.weight_decay), (settings.guide_lr, 0.0))
    return _step(
        lambda parameters, rest, key: loss(parameters, rest), (weights, logits), running, rates
    )


def local_step(
    layers: Sequence[Mapping[str, Tensor]], size: int, settings: Settings, x: Tensor, y: Tensor
) -> Step:
    """Scales of groups and local reparameterisation in JAX, compiled whole.

    Arguments:
        layers: linear, with a ReLU between them; by name, ``loc`` and ``log_scale`` ``(O, I)``,
            ``bias`` and ``log_bias_scale`` ``(O,)``, and ``z`` and ``log_z_scale`` ``(I,)``, the
            scales of the inputs.
        size: N.
        settings: of the optimiser.
        x, y: a batch; rows are flattened.
    """
    jax: Any = _jax()
    np: Any = import_module("jax.numpy")
    a, b = _array(x.flatten(1)), _array(y)

    def normal_kl(loc: Any, log_scale: Any) -> Any:
        return (0.5 * (np.exp(2 * log_scale) + loc**2 - 1.0) - log_scale).sum()

    def loss(parameters: Any, rest: Any, key: Any) -> Any:
        (layers,) = parameters
        h, kl = a, 0.0
        for i, one in enumerate(layers):
            of_scales, of_outputs = jax.random.split(jax.random.fold_in(key, i))
            z_scale = np.exp(one["log_z_scale"])
            kl += normal_kl(one["loc"], one["log_scale"])
            kl += normal_kl(one["bias"], one["log_bias_scale"])
            ratio = (one["z"] / z_scale) ** 2
            known = 0.63576 * jax.nn.sigmoid(1.48695 * np.log(ratio + 1e-8) - 1.87320)
            kl += (known + 0.5 * np.log1p(ratio)).sum()
            h = jax.nn.relu(h) if i else h
            h = h * (one["z"] + z_scale * jax.random.normal(of_scales, h.shape))
            variance = h**2 @ np.exp(2 * one["log_scale"]).T + np.exp(2 * one["log_bias_scale"])
            h = h @ one["loc"].T + one["bias"]
            h = h + np.sqrt(variance) * jax.random.normal(of_outputs, h.shape)
        log_p = jax.nn.log_softmax(h)
        return -np.take_along_axis(log_p, b[:, None], 1).mean() + kl / size, rest

    start = [{name: _array(t) for name, t in layer.items()} for layer in layers]
    return _step(loss, (start,), (), ((settings.lr, settings.weight_decay),))


def _step(loss: Any, start: Any, rest: Any, rates: Sequence[tuple[float, float]]) -> Step:
    """A compiled step of AdamW, with torch's constants.

    Arguments:
        loss: of parameters, the rest of the state and a key, to a loss and the new rest.
        start: groups of parameters.
        rest: what else a step changes.
        rates: of each group, the learning rate and the weight decay.
    """
    jax: Any = _jax()
    np: Any = import_module("jax.numpy")
    mapped = jax.tree_util.tree_map

    def update(state: Any) -> Any:
        parameters, first, second, rest, count, key = state
        key, now = jax.random.split(key)
        (value, rest), grads = jax.value_and_grad(loss, has_aux=True)(parameters, rest, now)
        count = count + 1
        first = mapped(lambda m, g: 0.9 * m + 0.1 * g, first, grads)
        second = mapped(lambda s, g: 0.999 * s + 0.001 * g * g, second, grads)

        def moved(rate: float, decay: float, p: Any, m: Any, s: Any) -> Any:
            step = m / (1 - 0.9**count) / (np.sqrt(s / (1 - 0.999**count)) + 1e-8)
            return p * (1 - rate * decay) - rate * step

        parameters = tuple(
            mapped(partial(moved, *how), *group)
            for how, *group in zip(rates, parameters, first, second, strict=True)
        )
        return value, (parameters, first, second, rest, count, key)

    zeros = mapped(np.zeros_like, start)
    begun = (start, zeros, mapped(np.zeros_like, start), rest, np.zeros(()), jax.random.PRNGKey(0))
    state = [begun]
    compiled = jax.jit(update, donate_argnums=0)

    def step() -> float:
        value, state[0] = compiled(state[0])
        return float(value)

    return step


def numpyro_step(
    net: nn.Sequential, scale: float, size: int, settings: Settings, x: Tensor, y: Tensor
) -> Step:
    """A Gaussian network in NumPyro: ``SVI.update`` of a normal guide, compiled.

    Arguments:
        net: whose weights are the means at the start.
        scale: of every weight at the start.
        size: N.
        settings: of the optimiser.
        x, y: a batch.

    References:
        Phan, Pradhan, Jankowiak 2019, arXiv:1912.11554.
    """
    jax: Any = _jax()
    np: Any = import_module("jax.numpy")
    numpyro: Any = import_module("numpyro")
    dist: Any = import_module("numpyro.distributions")
    infer: Any = import_module("numpyro.infer")
    means = {name: _array(p) for name, p in net.named_parameters()}
    names = list(means)
    a, b = _array(x), _array(y)

    def model(a: Any, b: Any) -> None:
        w = {
            n: numpyro.sample(n, dist.Normal(0, 1).expand(means[n].shape).to_event()) for n in names
        }
        h = a.reshape(len(a), -1)
        for i in range(0, len(names), 2):
            h = (jax.nn.relu(h) if i else h) @ w[names[i]].T + w[names[i + 1]]
        with numpyro.plate("data", size, subsample_size=len(a)):
            numpyro.sample("y", dist.Categorical(logits=h), obs=b)

    def guide(a: Any, b: Any) -> None:
        for name, mean in means.items():
            loc = numpyro.param(f"{name}.loc", mean)
            positive = dist.constraints.softplus_positive
            sd = numpyro.param(f"{name}.sd", np.full(mean.shape, scale), constraint=positive)
            numpyro.sample(name, dist.Normal(loc, sd).to_event())

    svi = infer.SVI(
        model, guide, numpyro.optim.Adam(settings.guide_lr), infer.TraceMeanField_ELBO()
    )
    state = [svi.init(jax.random.PRNGKey(0), a, b)]
    update = jax.jit(svi.update, donate_argnums=0)

    def step() -> float:
        state[0], loss = update(state[0], a, b)
        return float(loss) / size

    return step
