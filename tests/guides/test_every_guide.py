"""The contract of a guide, for all that there are."""

import contextlib
import copy
import inspect
import json

import pyro
import pytest
import torch
from guide_case import CASES, depth, fixed, network
from pyro import poutine
from pyro.infer import SVI, config_enumerate
from pyroccam import guides, inference
from pyroccam.data.errors import PyroccamError
from pyroccam.guides.base import Guide, NetworkGuide
from pyroccam.inference.posterior.posteriors import posterior_of
from random_weights import assert_same_means

pytestmark = pytest.mark.usefixtures("clean")
QUICK = {"epochs": 2, "device": "cpu", "progress": False, "checkpoint": "last"}


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


def test_there_is_a_case_for_each():
    kinds = {getattr(guides, name) for name in guides.__all__}
    known = {kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Guide)}
    bases = {Guide, NetworkGuide, guides.DepthGuide, guides.Samples}  # draws are not trained
    assert {type(one.pair()[1]) for one in CASES.values()} == known - bases


def test_it_covers_the_latents_of_its_model(case):
    model, guide, rows = case.pair()
    assert guide.latents() == ([] if guide.traits.sums_out else model.latents())
    with pyro.settings.context(module_local_params=True):
        trace = poutine.trace(guide).get_trace(rows.x_train)
    assert trace.stochastic_nodes == guide.latents()
    assert [*inspect.signature(guide.forward).parameters] == ["x", "y"]
    with pytest.raises(KeyError):
        guide.posterior("nowhere")


def test_the_posterior_of_a_site_is_what_is_drawn(case):
    """Moments and probabilities of each factor, beside those of many draws."""
    model, guide, _ = case.pair()
    for site in guide.latents():
        q = guide.posterior(site)
        drawn = q.sample((4000,)).detach()
        assert drawn.shape == (4000, *q.event_shape)
        assert torch.isfinite(q.log_prob(drawn)).all()
        if site not in model.sites:
            continue
        factor = guide.factor_of(site)
        assert factor.is_point == bool((drawn == drawn[0]).all())
        assert (factor.no_density is not None) >= factor.is_point
        if (factor.evidence() or (None,))[0] == "gate":
            continue
        first, second = (m.detach().expand(q.event_shape) for m in factor.moments(1.0))
        assert_same_means(
            torch.stack([drawn, drawn**2], 1),
            torch.stack([first, second])[None].expand(2, *[-1] * (first.dim() + 1)),
        )
        below = factor.cdf(first)
        if below is not None:
            assert_same_means(
                (drawn < first)[:, None],
                below.detach()[None, None].expand(2, 1, *[-1] * first.dim()),
            )


def test_of_gives_the_same_kind_for_another_model(case):
    model, guide, rows = case.pair()
    other = case.model(rows, 1)
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


def test_what_tells_it_apart_is_plain(case):
    _, guide, _ = case.pair()
    assert json.loads(json.dumps(guide.options())) == guide.options()
    assert guide.options()["kind"] == type(guide).__name__
    assert 0.0 <= guide.schedule.held <= guide.schedule.settled < 1.0


def test_it_refuses_a_model_that_it_is_not_for(case):
    _, guide, rows = case.pair()
    for other in (make(rows) for make in (depth, fixed, network)):
        if isinstance(other, guide.covers):
            continue
        for refuse in (type(guide), guide.rebuild, lambda m: posterior_of(m, guide)):
            with pytest.raises(PyroccamError):
                refuse(other)
        with pytest.raises(PyroccamError):
            inference.fit(other, guide, rows, **QUICK)


def test_it_trains_under_plain_svi_in_pyros_default_mode(case):
    assert pyro.settings.get("module_local_params") is False
    model, guide, rows = case.pair()
    whole = config_enumerate(model) if guide.traits.sums_out else model
    svi = SVI(whole, guide, pyro.optim.Adam({"lr": 0.03}), case.elbo())
    before = [p.detach().clone() for part in (model, guide) for p in part.parameters()]
    with guide.handler or contextlib.nullcontext():
        losses = [svi.step(*rows.split("train")) for _ in range(40)]
    assert sum(losses[-5:]) < case.falls_to * sum(losses[:5])
    after = [p for part in (model, guide) for p in part.parameters()]
    assert not any(torch.equal(p, q) for p, q in zip(before, after, strict=True))
    assert len(pyro.get_param_store()) == len(after)


def test_its_state_goes_into_another_and_into_a_fit(case):
    model, guide, rows = case.pair()
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
    batch = {"batch_size": rows.N} if guide.traits.sums_out else {}
    fit = inference.fit(model, guide, rows, **QUICK, **batch)
    assert torch.isfinite(fit.predict(rows.x_test)).all()
    assert float(fit.weights.sum()) == pytest.approx(1.0)
    assert {*posterior_of(model, guide).draw(3)} == {*guide.latents()}
