"""What every Pyro model keeps to: a test of one inherits it and says how it is made."""

import copy
import pickle

import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, TraceEnum_ELBO
from pyroccam import guides


class ModelCase:
    """One kind of model.

    Attributes:
        latents: its sites in their order, without ``y``.
    """

    latents = ()

    def made(self):
        """A model of ten rows, with inputs and targets of five."""
        raise NotImplementedError

    def fresh(self):
        pyro.clear_param_store()
        torch.manual_seed(0)
        return self.made()

    @pytest.mark.parametrize("local", [True, False])
    def test_it_is_ordinary_pyro(self, local):
        """In both of Pyro's modes for parameters, with validation on: a plate of all rows."""
        model, x, y = self.fresh()
        with pyro.settings.context(module_local_params=local), pyro.validation_enabled():
            trace = poutine.trace(model).get_trace(x, y)
            trace.compute_log_prob()
            assert model(torch.cat([x] * 4)).shape == (20, *y.shape[1:])
        sites = {n: s for n, s in trace.nodes.items() if s["type"] == "sample" and n != "data"}
        assert list(sites) == [*self.latents, "y"] == [*model.latents(), "y"]
        assert [site["scale"] for site in sites.values()] == [1.0] * len(self.latents) + [2.0]
        assert trace.nodes["y"]["log_prob"].shape == (5,)
        assert trace.observation_nodes == ["y"]
        assert len(pyro.get_param_store()) == (0 if local else len([*model.parameters()]))
        pyro.clear_param_store()

    def test_it_trains_by_svi(self):
        """With the guide that it names, which has its sites and its signature."""
        model, x, y = self.fresh()
        guide = getattr(guides, model.usual_guide)(model)
        assert guide.latents() == [*self.latents]
        elbo = TraceEnum_ELBO(max_plate_nesting=1, strict_enumeration_warning=False)
        svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), elbo)
        before = copy.deepcopy([*model.parameters(), *guide.parameters()])
        losses = torch.tensor([svi.step(x, y) for _ in range(3)])
        assert losses.isfinite().all()
        for one, other in zip(before, [*model.parameters(), *guide.parameters()], strict=True):
            assert not torch.equal(one, other)
        pyro.clear_param_store()

    def test_copies_and_saved_states(self):
        """They compute the same, in single and in double precision, and share nothing."""
        model, x, y = self.fresh()
        model(x)  # moves running statistics
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.3 * torch.randn_like(p))
        for dtype in (torch.float32, torch.float64):
            x, y = (t.to(dtype) if t.is_floating_point() else t for t in (x, y))
            draws = poutine.trace(model.to(dtype)).get_trace(x, y)

            def log_joint(one, draws=draws, x=x, y=y):
                return (
                    poutine.trace(poutine.replay(one, trace=draws)).get_trace(x, y).log_prob_sum()
                )

            expected = log_joint(model)
            assert expected.dtype is dtype
            other = self.made()[0].to(dtype)
            assert log_joint(other) != expected
            other.load_state_dict(model.state_dict())
            for twin in (other, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
                assert log_joint(twin) == expected
                with torch.no_grad():
                    for p in twin.parameters():
                        p.add_(1.0)
                assert log_joint(twin) != expected == log_joint(model)
