"""What every guide keeps to: a test of one derives from it and says how the guide is made."""

from __future__ import annotations

import contextlib
import copy
import inspect
import json
from collections.abc import Callable, Iterator
from typing import Any

import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, TraceMeanField_ELBO, config_enumerate
from pyro.optim import PyroOptim
from torch import nn

from .. import inference, models
from ..data import Dataset, PyroccamError
from ..guides import Guide
from ..inference.posterior import posterior_of
from .means import assert_same_means

QUICK: dict[str, Any] = {"epochs": 2, "device": "cpu", "progress": False, "checkpoint": "last"}
DRAWS = 4000


def blobs(n: int = 60, seed: int = 0, **options: Any) -> Dataset:
    """Three classes that a line cannot split, 54 training and 6 validation rows, 30 test rows."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n + 30) % 3
    centres = torch.tensor([[2.0, 0.0], [-2.0, 1.0], [0.0, -2.0]])
    x = centres[y] + 0.7 * torch.randn(n + 30, 2, generator=generator)
    return Dataset.from_tensors(x[:n], y[:n], x[n:], y[n:], **options)


class GuideCase:
    """The contract of a guide, as tests that pytest collects of a class that derives from it.

    Its sites, moments and probabilities beside many draws, copies and state, options, plain
    ``SVI`` and a short fit.

    Attributes:
        elbo: makes the bound of Pyro that the pair trains under.
        falls_to: share of the first losses that those of the last of 40 steps are below.

    Example:
        >>> from pyroccam import guides, testing
        >>> class TestMeanField(testing.GuideCase):
        ...     def guide(self, model):
        ...         return guides.MeanField(model)
        >>> TestMeanField().test_what_tells_it_apart_is_plain()
    """

    elbo: Callable[[], Any] = TraceMeanField_ELBO
    falls_to: float = 0.9

    def model(self, rows: Dataset, seed: int = 0) -> Any:
        """The model that the guide is for: a network of 2-8-3 units under a normal prior, unless
        another is made here."""
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))
        return models.BayesianNetwork(net, rows, prior=models.priors.Normal())

    def guide(self, model: Any) -> Guide:
        """The guide of a model."""
        raise NotImplementedError

    def pair(self, seed: int = 0) -> tuple[Any, Any, Dataset]:
        """Model, guide and rows."""
        rows = blobs()
        model = self.model(rows, seed)
        return model, self.guide(model), rows

    @pytest.fixture(autouse=True)
    def _seeded(self) -> Iterator[None]:
        torch.manual_seed(0)
        pyro.clear_param_store()
        yield
        pyro.clear_param_store()

    def test_it_covers_the_latents_of_its_model(self) -> None:
        model, guide, rows = self.pair()
        assert guide.latents() == ([] if guide.traits.sums_out else model.latents())
        with pyro.settings.context(module_local_params=True):
            trace = poutine.trace(guide).get_trace(rows.x_train)
        assert trace.stochastic_nodes == guide.latents()
        assert [*inspect.signature(guide.forward).parameters] == ["x", "y"]
        with pytest.raises(KeyError):
            guide.posterior("nowhere")

    def test_the_posterior_of_a_site_is_what_is_drawn(self) -> None:
        """Moments and probabilities of each factor, beside those of many draws."""
        model, guide, _ = self.pair()
        for site in guide.latents():
            q = guide.posterior(site)
            drawn = q.sample((DRAWS,)).detach()
            assert drawn.shape == (DRAWS, *q.event_shape)
            assert torch.isfinite(q.log_prob(drawn)).all()
            if site not in model.sites:
                continue
            factor = guide.factor_of(site)
            assert factor.is_point == bool((drawn == drawn[0]).all())
            assert (factor.no_density is not None) >= factor.is_point
            if (factor.evidence() or (None,))[0] == "gate":
                continue
            first, second = (m.detach().expand(q.event_shape) for m in factor.moments(1.0))
            known = torch.stack([first, second])
            assert_same_means(
                torch.stack([drawn, drawn**2], 1), known[None].expand(2, *known.shape)
            )
            below = factor.cdf(first)
            if below is not None:
                assert_same_means(
                    (drawn < first)[:, None],
                    below.detach()[None, None].expand(2, 1, *below.shape),
                )

    def test_rebuild_gives_the_same_kind_for_another_model(self) -> None:
        model, guide, rows = self.pair()
        other = self.model(rows, 1)
        new = guide.rebuild(other)
        assert type(new) is type(guide)
        assert new.options() == guide.options()
        assert new.latents() == guide.latents()
        assert new.state_dict().keys() == guide.state_dict().keys()
        assert repr(new.arguments()) == repr(guide.arguments())
        new.check(other, inference.Settings(), 1)
        if guide.latents():
            with pytest.raises(PyroccamError):
                new.check(model, inference.Settings(), 1)

    def test_what_tells_it_apart_is_plain(self) -> None:
        _, guide, _ = self.pair()
        assert json.loads(json.dumps(guide.options())) == guide.options()
        assert guide.options()["kind"] == type(guide).__name__
        assert 0.0 <= guide.schedule.held <= guide.schedule.settled < 1.0

    def test_it_refuses_a_model_that_it_is_not_for(self) -> None:
        _, guide, rows = self.pair()
        depth = models.LearntDepth.mlp(rows, width=6, max_depth=2)
        for other in (depth, depth.at_depth(1), GuideCase().model(rows)):
            if isinstance(other, guide.covers):
                continue
            for refuse in (type(guide), guide.rebuild, lambda m: posterior_of(m, guide)):
                with pytest.raises(PyroccamError):
                    refuse(other)
            with pytest.raises(PyroccamError):
                inference.fit(other, guide, rows, **QUICK)

    def test_it_trains_under_plain_svi_in_pyros_default_mode(self) -> None:
        assert pyro.settings.get("module_local_params") is False
        model, guide, rows = self.pair()
        whole = config_enumerate(model) if guide.traits.sums_out else model
        svi = SVI(whole, guide, PyroOptim(torch.optim.Adam, {"lr": 0.03}), self.elbo())
        before = [p.detach().clone() for part in (model, guide) for p in part.parameters()]
        with guide.handler or contextlib.nullcontext():
            losses = [svi.step(*rows.split("train")) for _ in range(40)]
        assert sum(losses[-5:]) < self.falls_to * sum(losses[:5])
        after = [p for part in (model, guide) for p in part.parameters()]
        assert not any(torch.equal(p, q) for p, q in zip(before, after, strict=True))
        assert len(pyro.get_param_store()) == len(after)

    def test_its_state_goes_into_another_and_into_a_fit(self) -> None:
        model, guide, rows = self.pair()
        again = copy.deepcopy((model, guide))[1]
        with torch.no_grad():
            for p, q in zip(guide.parameters(), again.parameters(), strict=True):
                p.add_(0.1)
                q.zero_()
        again.load_state_dict(guide.state_dict())
        for site in guide.latents():
            ours, theirs = guide.posterior(site), again.posterior(site)
            drawn = ours.sample((3,))
            assert torch.equal(ours.log_prob(drawn), theirs.log_prob(drawn))
        batch: dict[str, Any] = {"batch_size": rows.N} if guide.traits.sums_out else {}
        fit = inference.fit(model, guide, rows, **QUICK, **batch)
        assert torch.isfinite(fit.predict(rows.x_test)).all()
        assert abs(float(fit.weights.sum()) - 1.0) < 1e-5
        assert {*posterior_of(model, guide).draw(3)} == {*guide.latents()}
