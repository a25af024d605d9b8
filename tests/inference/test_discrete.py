"""One structure out of a posterior: what is chosen, the plain network, random ones beside it."""

import copy
import itertools
import math

import pytest
import torch
from alternatives import EDGES, FIRST, SECOND, graph
from pyroccam import data, guides, inference, models
from pyroccam.data import PyroccamError
from pyroccam.inference.shrinking import discretise, random_structures
from pyroccam.models import priors
from pyroccam.models.networks import discretised
from pyroccam.models.networks.primitives import Zero
from scipy import stats
from torch import nn


@pytest.fixture(scope="module")
def rows():
    torch.manual_seed(0)
    x = torch.randn(40, 3)
    y = x.sum(1, keepdim=True).tanh() + 0.1 * torch.randn(40, 1)
    return data.Dataset.from_tensors(x, y, x, y)


def fitted(rows, structure=None, prior=None, net=None, **more):
    structure = structure or priors.GumbelSoftmax(0.5)
    net = graph() if net is None else net
    model = models.StructuredNetwork(net, rows, structure=structure, prior=prior)
    settings = {"epochs": 3, "weight_decay": 0.0, "progress": False, **more}
    return inference.fit(model, guides.MeanField(model), rows, **settings)


def put(fit, edge, *weights):
    with torch.no_grad():
        fit.guide.edge(f"{edge}.structure").logits.copy_(torch.tensor(weights).log())


def test_what_is_chosen(rows):
    fit = fitted(rows)
    put(fit, FIRST, 0.1, 0.7, 0.2)
    put(fit, SECOND, 0.6, 0.4)
    (found,) = fit.structures
    assert found.chosen == {FIRST: ["relu"], SECOND: ["straight"]}
    assert found.probs[FIRST] == pytest.approx({"tanh": 0.1, "relu": 0.7, "deep": 0.2}, abs=1e-6)
    assert found.log_prob == pytest.approx(math.log(0.7 * 0.6), abs=1e-6)
    entropy = -sum(p * math.log(p) for p in (0.1, 0.7, 0.2, 0.6, 0.4))
    assert found.entropy == pytest.approx(entropy, abs=1e-6)
    assert found.certainty == pytest.approx(0.42, abs=1e-6)
    assert "x-h: relu (0.70)" in str(found)
    assert "x-h: relu" in " ".join(found.sentences())


def test_entropy_over_all_vertices_of_the_cube(rows):
    fit = fitted(rows, priors.Bernoulli())
    p, r = 0.9, 0.3
    table = (1 - p) * (1 - r), (1 - p) * r, p * (1 - r), p * r  # though it could do more
    put(fit, SECOND, *table)
    put(fit, FIRST, *[1e-30 if k != 5 else 1.0 for k in range(8)])  # the subset 101
    (found,) = fit.structures
    assert found.chosen == {FIRST: ["tanh", "deep"], SECOND: ["straight"]}
    assert found.entropy == pytest.approx(-sum(q * math.log(q) for q in table), abs=1e-4)
    assert found.log_prob == pytest.approx(math.log(p * (1 - r)), abs=1e-4)


@pytest.mark.parametrize("together", ["sum", "concatenate"])
@pytest.mark.parametrize("seed", range(2))
def test_a_choice_leaves_no_vertex_empty(rows, seed, together):
    """It is the most probable of all with the primitives that are probable by themselves."""
    torch.manual_seed(seed)
    pairs = [("x", "h"), ("x", "k"), ("h", "k"), ("h", "y"), ("k", "y")]
    sizes = {"x": 3, "h": 2, "k": 2 if together == "sum" else 4, "y": 1}
    ends = {**sizes, "k": 2}
    edges = {(a, b): [nn.Linear(sizes[a], ends[b]) for _ in range(2)] for a, b in pairs}
    net = models.StructureGraph(edges, aggregate={"k": together})
    fit = fitted(rows, priors.RelaxedBernoulli(0.5), net=net)
    with torch.no_grad():
        for site in fit.model.structure:
            fit.guide.edge(site).logits.copy_(torch.randn(2) - 1.5)
    (found,) = fit.structures
    scored = []
    for chosen in itertools.product(*[[[], ["0"], ["1"], ["0", "1"]]] * len(pairs)):
        choice = dict(zip(fit.model.primitives, chosen, strict=True))
        probs = [(q, name in choice[e]) for e, p in found.probs.items() for name, q in p.items()]
        if all(q <= 0.5 or there for q, there in probs):
            scored.append((sum(math.log(q if there else 1.0 - q) for q, there in probs), choice))

    def stands(choice):
        try:
            return discretise(fit, choice)
        except ValueError:  # a vertex would be empty
            return None

    best = next(p for p, choice in sorted(scored, key=lambda one: -one[0]) if stands(choice))
    assert found.log_prob == pytest.approx(best, abs=1e-4)


@pytest.mark.parametrize("prior", [None, priors.Normal(1.0)])
def test_the_plain_network_is_that_of_the_most_probable_structure(rows, prior, tmp_path):
    fit, x = fitted(rows, prior=prior), rows.x_test
    for first, second in itertools.product(range(3), range(2)):
        put(fit, FIRST, *[1.0 + 5.0 * (k == first) for k in range(3)])
        put(fit, SECOND, *[1.0 + 5.0 * (k == second) for k in range(2)])
        small = inference.shrink(fit)
        torch.testing.assert_close(small.net(x), fit.outputs(x, "deterministic")[0])
        assert {m.__module__.split(".")[0] for m in small.net.modules()} == {"torch"}
        layers = [m for m in small.net.modules() if isinstance(m, nn.Linear)]
        assert len(layers) == 2 + (EDGES[FIRST][first] == "deep")
    small.save(tmp_path)
    assert torch.equal(inference.load(tmp_path)(x), small.net(x))
    other = discretise(fit, {FIRST: "deep", SECOND: "bent"})
    assert sum(p.numel() for p in other.parameters()) == 3 * 2 + 2 + 2 * 2 + 2 + 2 + 1
    with pytest.raises(PyroccamError):
        discretise(fit, {FIRST: "rellu", SECOND: "bent"})
    with pytest.raises(PyroccamError):
        inference.narrow(fit)
    with pytest.raises(PyroccamError):
        inference.shrink(fit, cut=inference.Noise())


def test_random_structures_of_one_size(rows):
    fit = fitted(rows)
    model, sizes = fit.model, {"tanh": 8, "relu": 8, "deep": 14}
    before = torch.get_rng_state()
    found = random_structures(model, 10, parameters=8 + 3, seed=1)
    assert torch.equal(before, torch.get_rng_state())
    small = [c for c in found if c[FIRST] != ["deep"]]
    assert len(small) == 4  # all there are within a tenth; the others come after them
    assert found[:4] == small
    assert len({str(choice) for choice in found}) == len(found) == 6
    for choice in found:
        count = sum(p.numel() for p in discretise(fit, choice).parameters())
        assert count == sizes[choice[FIRST][0]] + 3
        # What they are to be compared with is none of them.
        others = random_structures(model, 10, parameters=8 + 3, other_than=choice, seed=1)
        assert {str(c) for c in others} == {str(c) for c in found} - {str(choice)}
    assert random_structures(model, 3, seed=1) == random_structures(model, 3, seed=1)


def test_every_structure_is_as_likely(rows):
    """Two of six have 17 parameters, the others 11; half of 12 is more than either differs by."""
    model = models.StructuredNetwork(graph(), rows, structure=priors.GumbelSoftmax())
    of = {"parameters": 12, "tolerance": 0.5}
    drawn = [random_structures(model, 1, seed=seed, **of)[0] for seed in range(90)]
    for name in EDGES[FIRST]:
        count = sum(choice[FIRST] == [name] for choice in drawn)
        assert stats.binomtest(count, len(drawn), 1 / 3).pvalue > 1e-4


def test_random_structures_compute_different_functions():
    """Three skips in a row, or one beside zeros, are the same network, and count once; zeros on
    both ways into the last vertex give a constant, and are no contenders."""
    torch.manual_seed(0)
    x = torch.randn(8, 3)
    table = data.Dataset.from_tensors(x, torch.arange(8) % 2, x, torch.arange(8) % 2)
    edges = {
        pair: {"zero": Zero(), "skip": nn.Identity(), "line": nn.Linear(3, 3)}
        for pair in (("a", "b"), ("a", "c"), ("b", "c"))
    }
    net = nn.Sequential(models.StructureGraph(edges), nn.Linear(3, 2))
    model = models.StructuredNetwork(net, table, structure=priors.GumbelSoftmax(0.5))
    every = random_structures(model, 99, seed=1)
    chosen = {"0.a-b": ["zero"], "0.a-c": ["skip"], "0.b-c": ["zero"]}
    starts = {name: layer.start for name, layer in model.layers.items()}
    whole = model.plain({n: (s["weight"], s.get("bias")) for n, s in starts.items()})

    def outputs(choice):
        with torch.no_grad():
            return discretised(copy.deepcopy(whole), choice).eval()(x)

    def constant(own):
        return torch.allclose(own, own[:1].expand_as(own), atol=1e-5)

    found = random_structures(model, 99, example=x, other_than=chosen, seed=1)
    drawn = [outputs(choice) for choice in (chosen, *found)]
    assert not any(map(constant, drawn))
    for k, one in enumerate(drawn):
        assert not any(torch.allclose(one, other, atol=1e-5) for other in drawn[:k])
    for own in map(outputs, every):  # and there are no others
        assert constant(own) or any(torch.allclose(own, other, atol=1e-4) for other in drawn)
