"""The contract of a guide, for all that there are."""

import pytest
import torch
from guide_case import CASES
from pyroccam import guides
from pyroccam.guides import Guide, NetworkGuide
from pyroccam.guides.factors import NormalFactor
from pyroccam.testing import GuideCase

for name, case in CASES.items():
    globals()[f"Test {name}"] = type(f"Test {name}", (type(case),), {})


def test_there_is_a_case_for_each():
    kinds = {getattr(guides, name) for name in guides.__all__}
    known = {kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Guide)}
    bases = {Guide, NetworkGuide, guides.DepthGuide, guides.Samples}  # draws are not trained
    assert {type(one.pair()[1]) for one in CASES.values()} == known - bases


class WrongSecond(NormalFactor):
    """It gives variances in place of second moments."""

    def moments(self, power):
        return self.loc, (2.0 * self.log_scale).exp()


class WrongBelow(NormalFactor):
    """It gives a probability that is not that of its draws."""

    def cdf(self, value):
        return torch.full_like(self.loc, 0.4, dtype=torch.float64)


@pytest.mark.parametrize("factor", [WrongSecond, WrongBelow])
def test_the_contract_finds_a_factor_that_does_not_say_what_it_draws(factor):
    class Wrong(NetworkGuide):
        def __init__(self, model):
            super().__init__(model, local=False, scales="example")
            self.build(model)

        def factor(self, layer, name, latent):
            return factor(layer.start[name], 0.3)

    class Case(GuideCase):
        def guide(self, model):
            return Wrong(model)

    with pytest.raises(AssertionError):
        Case().test_the_posterior_of_a_site_is_what_is_drawn()
