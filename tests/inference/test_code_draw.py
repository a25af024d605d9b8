"""Networks that are sent as a draw, from the fit to the file and back."""

import copy
import math
import signal
from dataclasses import replace

import plain
import pytest
import torch
from fitting import blobs, fit_weights
from pyroccam import data, guides, inference, models
from pyroccam.data import PyroccamError
from pyroccam.inference import Draw
from pyroccam.inference.draws import draw, phases
from pyroccam.inference.draws.frequencies import in_frequencies, in_weights
from pyroccam.inference.draws.phases import Phase
from pyroccam.inference.files.draw_file import decoded
from pyroccam.inference.training import TrainingStep
from pyroccam.models import priors
from stacks import odd_stack
from torch import nn

QUICK = {"epochs": 40, "steps": 2, "bits": 8, "batch_size": 64, "lr": 2e-2, "coding_lr": 1e-3}


def network(width=8):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, 3))


def accuracy(net, x, y):
    return float((net(x).argmax(-1) == y).float().mean())


@pytest.fixture(scope="module")
def rows():
    return blobs()


@pytest.fixture(autouse=True)
def eager(monkeypatch):
    """A draw traces three graphs, which takes longer than its steps: that of ``drawn`` does."""
    monkeypatch.setattr(phases, "TrainingStep", EagerStep)


class EagerStep(TrainingStep):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **{**options, "compile": False})


@pytest.fixture(scope="module")
def drawn(rows):
    return draw(network(), rows, Draw(bytes=60, **QUICK))


def test_a_draw_is_sent_in_the_size_that_was_asked_for(drawn, rows):
    assert 55 <= len(drawn.content) <= 60
    assert type(drawn.net) is nn.Sequential
    assert drawn.report.weights == 51
    # Every block had the KL that it was given: a bit less than its index.
    assert drawn.report.kl == pytest.approx(7 * drawn.report.blocks, rel=1e-4)
    assert drawn.report.index_bits == pytest.approx(8 * drawn.report.blocks, abs=8)
    net = decoded(drawn.content)
    for ours, theirs in zip(drawn.net.parameters(), net.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert accuracy(net, rows.x_train, rows.y_train) > 0.7


def test_it_is_repeated_and_gone_on_with(rows, tmp_path, monkeypatch):
    """Stopped in each of its three parts: the same file as without."""
    how = Draw(bytes=50, **{**QUICK, "epochs": 4})
    whole = draw(network(), rows, how)
    units = {"n": 0}
    before = Phase.run

    def counting(self, run):
        own = self.unit

        def unit(number):
            units["n"] += 1
            if units["n"] in (3, 20, 37):
                signal.raise_signal(signal.SIGINT)
            return own(number)

        self.unit = unit
        before(self, run)

    monkeypatch.setattr(Phase, "run", counting)
    stops = 0
    while True:
        try:
            found = draw(network(), rows, replace(how, out=tmp_path, resume=stops > 0))
            break
        except inference.Interrupted:
            stops += 1
    assert stops == 3
    assert found.content == whole.content
    on = replace(how, out=tmp_path, resume=True)
    with pytest.raises(FileExistsError):
        draw(network(), rows, replace(how, out=tmp_path))
    with pytest.raises(inference.CheckpointError):
        draw(network(9), rows, on)
    with pytest.raises(inference.CheckpointError):
        draw(network(), rows, replace(on, epochs=5))
    fewer = replace(rows, x_train=rows.x_train[:-1], y_train=rows.y_train[:-1])
    with pytest.raises(inference.CheckpointError):
        draw(network(), fewer, on)


def test_what_is_not_drawn_is_sent_as_it_is(rows):
    torch.manual_seed(0)
    net = plain.network(
        lambda net, x: net.last(net.norm(net.first(x).relu() + net.other(x))),
        first=nn.Linear(2, 6), other=nn.Linear(2, 6, bias=False),
        norm=nn.BatchNorm1d(6), last=nn.Linear(6, 3),
    )  # fmt: skip
    before = copy.deepcopy(net.state_dict())
    drawn = draw(net, rows, Draw(bytes=400, **{**QUICK, "epochs": 5}))
    found = decoded(drawn.content)
    assert drawn.report.weights == 51
    assert len(drawn.content) <= 400
    for ours, theirs in zip(
        drawn.net.state_dict().values(), found.state_dict().values(), strict=True
    ):
        assert torch.equal(ours, theirs)
    assert not torch.equal(found.norm.running_mean, before["norm.running_mean"])
    assert not torch.equal(found.norm.weight, before["norm.weight"])
    assert torch.equal(net.norm.weight, before["norm.weight"])


def test_a_fit_is_cut_and_sent(rows, tmp_path):
    fit = fitted(rows, priors.GroupNormalJeffreys(), epochs=30)
    before = copy.deepcopy(fit.model.state_dict())
    code = Draw(bytes=45, **{**QUICK, "epochs": 5})
    small = inference.shrink(fit, cut=inference.Noise(), code=code)
    net = inference.load(small.save(tmp_path / "draw.pocc"))
    assert net(rows.x_test).shape == (len(rows.x_test), 3)
    assert all(map(torch.equal, before.values(), fit.model.state_dict().values()))


def test_what_is_refused(rows):
    ids = torch.randint(0, 5, (40, 3))
    read = data.Dataset.from_tensors(ids, ids[:, 0], ids, ids[:, 0], val_fraction=0.0, ids=True)
    x = torch.randn(40, 1, 4, 4)
    images = data.Dataset.from_tensors(x, ids[:, 0] % 2, x, ids[:, 0] % 2, val_fraction=0.0)
    padded = nn.Sequential(nn.Embedding(5, 4, padding_idx=0), nn.Flatten(), nn.Linear(12, 5))
    for net, own, odd in (
        (network(), rows, {"bytes": 12}),
        (network(), rows, {"shift": 1}),
        (network(), rows, {"basis": "frequencies"}),
        (nn.Sequential(nn.Flatten(), nn.Linear(16, 2)), images, {"basis": "frequencies"}),
        (nn.Sequential(nn.ReLU()), rows, {}),
        (padded, read, {}),
    ):
        with pytest.raises(PyroccamError):
            draw(net, own, Draw(**odd))


def test_a_posterior_that_saw_moved_images_knows_them():
    """A bright pixel in the left or in the right half, always in the same row of training."""
    y = torch.arange(200) % 2
    x = torch.zeros(200, 1, 5, 5)
    x[torch.arange(200), 0, (torch.arange(200) < 120) + 1, 1 + 2 * y] = 4.0
    rows = data.Dataset.from_tensors(x[:120], y[:120], x[120:], y[120:], standardise=False)
    net, nlls = nn.Sequential(nn.Flatten(), nn.Linear(25, 2)), []
    for shift in (0, 1):
        found = draw(net, rows, Draw(bytes=60, shift=shift, **{**QUICK, "steps": 0})).net
        nlls.append(float(nn.functional.cross_entropy(found(rows.x_test).detach(), rows.y_test)))
    assert nlls[1] < 0.5 * nlls[0]


def convolutions():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, (3, 2), stride=2, padding=1), nn.Conv2d(4, 4, 3, groups=2, dilation=2),
        nn.ReLU(), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"),
        nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3, padding="same", bias=False),
        nn.Flatten(), nn.Dropout(), nn.Linear(4 * 2 * 3, 24), nn.Linear(24, 3, bias=False),
    )  # fmt: skip


def test_a_network_reads_frequencies_and_computes_the_same():
    net, x = convolutions(), torch.randn(5, 2, 11, 13)
    found = in_frequencies(net, x[:1]).eval()
    torch.testing.assert_close(found(x), net.eval()(x), rtol=1e-4, atol=1e-5)
    assert found[1].in_frequencies.weight.shape == (4, 18, 1, 1)
    back, grids = in_weights(found)
    assert grids == {
        "0.weight": (3, 2), "1.weight": (3, 3), "6.weight": (3, 3), "9.weight": (2, 3),
    }  # fmt: skip
    torch.testing.assert_close(back.state_dict(), net.state_dict(), rtol=1e-4, atol=1e-5)
    assert str(back) == str(net)


def test_frequencies_are_sent():
    """Of smooth kernels, in few bytes."""
    x = torch.randn(240, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    smooth = nn.functional.avg_pool2d(x, 3, stride=1, padding=1)
    y = (smooth[:, 0, 2, 2] > smooth[:, 0, 5, 5]).long()
    rows = data.Dataset.from_tensors(x[:200], y[:200], x[200:], y[200:], standardise=False)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 2))
    how = Draw(bytes=70, basis="frequencies", **{**QUICK, "epochs": 20})
    found = draw(net, rows, how)
    assert len(found.content) <= 70
    assert found.report.weights == 166
    assert torch.equal(decoded(found.content)(x), found.net(x))
    assert accuracy(found.net, rows.x_train, rows.y_train) > 0.75


def fitted(rows, prior, guide=guides.MeanField, epochs=40):
    return fit_weights(prior, None, rows, guide, epochs=epochs, lr=2e-2)


def sent(fit, **how):
    asked = Draw(posterior="own", **{**QUICK, "epochs": 1, **how})
    return inference.shrink(fit, code=asked)


def test_the_posterior_of_a_fit_is_sent_at_the_price_of_its_kl(rows):
    fit = fitted(rows, priors.Normal(learn="scale"))
    before = copy.deepcopy([fit.model.state_dict(), fit.guide.state_dict()])
    found = sent(fit)
    # Of the KL that the fit reports; deviations of priors are rounded by up to 4.5 %.
    kl = inference.description_length(fit).weights
    assert found.report.kl == pytest.approx(kl, rel=0.02)
    assert found.report.blocks == math.ceil(found.report.kl / 7 - 1e-3)
    assert found.report.index_bits == pytest.approx(8 * found.report.blocks, abs=8)
    assert accuracy(decoded(found.content), rows.x_test, rows.y_test) > 0.8
    for was, now in zip(before, [fit.model.state_dict(), fit.guide.state_dict()], strict=True):
        assert all(torch.equal(was[name], now[name]) for name in was)
    needed = len(found.content)
    with pytest.raises(PyroccamError):
        sent(fit, bytes=needed - 5)
    assert len(sent(fit, bytes=needed + 2, steps=0).content) <= needed + 2


def test_what_is_sent_are_draws_of_the_posterior_of_the_fit():
    """All weights have means of the same size, and one deviation, so that all blocks have the same
    KL. What is sent has their means, and their mean squared distances to them."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 20, generator=generator), torch.arange(60) % 30
    rows = data.Dataset.from_tensors(x, y, x, y, val_fraction=0.0, task="classification")
    net, scale = nn.Sequential(nn.Linear(20, 30, bias=False)), 0.3
    loc = 0.4 * torch.randn(30, 20, generator=generator).sign()
    net[0].weight.data.copy_(loc)
    model = models.BayesianNetwork(net, rows, prior=priors.Normal(1.0))
    guide = guides.MeanField(model, scale=scale)
    fit = inference.fit(model, guide, rows, epochs=1, lr=1e-12, device="cpu", progress=False)
    how = {"bits": 16, "slack": 4.0, "steps": 0, "lr": 1e-12}
    found = sent(fit, **how)
    apart = (found.net[0].weight.detach() - loc) / scale
    # Blocks differ in size by a weight.
    assert found.report.distance == pytest.approx(float(apart.square().mean()), rel=0.02)
    # 600 independent weights: a mean of 0 and a mean square of 1, within four standard errors.
    assert abs(float((apart * loc.sign()).mean())) < 4 / math.sqrt(600)
    assert abs(float(apart.square().mean()) - 1) < 4 * math.sqrt(2 / 600)


NORMAL = priors.Normal(1.0)
UNSENT = [  # the prior, the guide, what parameters of the guide are filled with, and what is asked
    (priors.GroupNormalJeffreys(), guides.MeanField, None, {}),
    (priors.Normal(1.0, loc=0.3), guides.MeanField, None, {}),
    (priors.Normal(learn="weight"), guides.MeanField, None, {}),
    (priors.Normal(1e-6), guides.MeanField, None, {}),
    (NORMAL, guides.Delta, None, {}),
    (NORMAL, guides.MeanField, (1.0, -20.0), {"bits": 2}),
    (NORMAL, guides.MeanField, (0.1, -3.0), {"bits": 4, "slack": 1.0}),
    (NORMAL, guides.MeanField, (0.0, 0.0), {}),
    (NORMAL, guides.MeanField, (math.nan, math.nan), {}),
    (NORMAL, guides.MeanField, None, {"cut": inference.Noise()}),
]


@pytest.mark.parametrize(("prior", "guide", "values", "how"), UNSENT)
def test_posteriors_that_cannot_be_sent_are_refused(prior, guide, values, how, rows):
    fit = fitted(rows, prior, guide, epochs=1)
    with torch.no_grad():  # scales of single weights that are learnt, if there are any
        for name, number in fit.model.named_parameters():
            if name.endswith("log_scale") and number.dim() > 1:
                number.view(-1)[1] += 1.0
        for name, number in fit.guide.named_parameters():
            if values is not None:
                number.fill_(values["loc" not in name])
    code = Draw(posterior="own", **{k: v for k, v in how.items() if k != "cut"})
    with pytest.raises(PyroccamError):
        inference.shrink(fit, code=code, cut=how.get("cut"))


def test_a_stack_is_sent(rows):
    stack = models.BayesianStack(odd_stack(2, 3), rows, prior=priors.Normal(1.0))
    how = {"epochs": 1, "progress": False, "compile": False}
    deep = inference.fit(stack, guides.MeanField(stack), rows, **how)
    assert sent(deep, steps=0).report.blocks > 0
