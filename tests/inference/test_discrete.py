"""One structure out of a posterior: what is chosen, the plain network, random ones beside it."""

import copy
import itertools
import math

import pytest
import torch
from alternatives import EDGES, FIRST, SECOND, graph
from pyroccam import data, guides, inference, models
from pyroccam.data.errors import PyroccamError
from pyroccam.inference.shrinking.graph import random_structures
from pyroccam.models import priors
from pyroccam.models.networks.discrete import discretised
from scipy import stats
from torch import nn


@pytest.fixture(scope="module")
def rows():
    torch.manual_seed(0)
    x = torch.randn(40, 3)
    y = x.sum(1, keepdim=True).tanh() + 0.1 * torch.randn(40, 1)
    return data.Dataset.from_tensors(x, y, x, y)


def fit_of(model, rows, **more):
    settings = {"epochs": 3, "weight_decay": 0.0, "progress": False, **more}
    return inference.fit(model, guides.MeanField(model), rows, **settings)


def fitted(rows, structure=None, prior=None, net=None):
    structure = structure or priors.GumbelSoftmax(0.5)
    net = graph() if net is None else net
    model = models.StructuredNetwork(net, rows, structure=structure, prior=prior)
    return fit_of(model, rows)


def put(fit, edge, *weights):
    factor = fit.guide.edge(f"{edge}.structure")
    with torch.no_grad():
        factor.logits.copy_(torch.tensor(weights).log())


def test_what_is_chosen(rows):
    fit = fitted(rows)
    put(fit, FIRST, 0.1, 0.7, 0.2)
    put(fit, SECOND, 0.6, 0.4)
    found = fit.structures[0]
    assert found.chosen == {FIRST: ["relu"], SECOND: ["straight"]}
    assert found.probs[FIRST] == pytest.approx({"tanh": 0.1, "relu": 0.7, "deep": 0.2}, abs=1e-6)
    assert found.log_prob == pytest.approx(math.log(0.7 * 0.6), abs=1e-6)
    each = [0.1, 0.7, 0.2], [0.6, 0.4]
    entropy = -sum(p * math.log(p) for part in each for p in part)
    assert found.entropy == pytest.approx(entropy, abs=1e-6)
    assert "x-h: relu (0.70)" in str(found)
    assert fit.structures == [found]
    assert found.certainty == pytest.approx(0.42, abs=1e-6)
    assert "x-h: relu" in " ".join(found.sentences())


def test_entropy_over_all_vertices_of_the_cube(rows):
    fit = fitted(rows, priors.Bernoulli())
    factor = fit.guide.edge(f"{SECOND}.structure")
    p, r = 0.9, 0.3
    with torch.no_grad():  # independent, though a table could do more
        table = [[(1 - p) * (1 - r), (1 - p) * r, p * (1 - r), p * r]]
        factor.logits.copy_(torch.tensor(table[0]).log())
        first = fit.guide.edge(f"{FIRST}.structure")
        first.logits.fill_(-50.0)
        first.logits[5] = 50.0  # the subset 101
    found = fit.structures[0]
    assert found.chosen == {FIRST: ["tanh", "deep"], SECOND: ["straight"]}
    entropy = -sum(q * math.log(q) for q in table[0])
    assert found.entropy == pytest.approx(entropy, abs=1e-4)
    assert found.log_prob == pytest.approx(math.log(p * (1 - r)), abs=1e-4)


@pytest.mark.parametrize("together", ["sum", "concatenate"])
@pytest.mark.parametrize("seed", range(3))
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
    found = fit.structures[0]
    scored = []
    for chosen in itertools.product(*[[[], ["0"], ["1"], ["0", "1"]]] * len(pairs)):
        choice = dict(zip(fit.model.primitives, chosen, strict=True))
        probs = [(q, name in choice[e]) for e, p in found.probs.items() for name, q in p.items()]
        if all(q <= 0.5 or there for q, there in probs):
            scored.append((sum(math.log(q if there else 1.0 - q) for q, there in probs), choice))

    def stands(choice):
        try:
            return inference.shrinking.discretise(fit, choice)
        except ValueError:  # a vertex would be empty
            return None

    best = next(p for p, choice in sorted(scored, key=lambda one: -one[0]) if stands(choice))
    assert found.log_prob == pytest.approx(best, abs=1e-4)
    assert isinstance(inference.shrink(fit).net, nn.Module)


@pytest.mark.parametrize("prior", [None, priors.Normal(1.0)])
def test_the_plain_network_is_that_of_the_most_probable_structure(rows, prior):
    fit = fitted(rows, prior=prior)
    x = rows.x_test
    for first, second in itertools.product(range(3), range(2)):
        put(fit, FIRST, *[1.0 + 5.0 * (k == first) for k in range(3)])
        put(fit, SECOND, *[1.0 + 5.0 * (k == second) for k in range(2)])
        net = inference.shrink(fit).net
        expected = fit.outputs(x, "deterministic")[0]
        torch.testing.assert_close(net(x), expected)
        assert {m.__module__.split(".")[0] for m in net.modules()} == {"torch"}
        layers = [m for m in net.modules() if isinstance(m, nn.Linear)]
        assert len(layers) == 2 + (EDGES[FIRST][first] == "deep")
    other = inference.shrinking.discretise(fit, {FIRST: "deep", SECOND: "bent"})
    assert sum(p.numel() for p in other.parameters()) == 3 * 2 + 2 + 2 * 2 + 2 + 2 + 1


def test_it_is_saved_and_loaded_without_pickle(rows, tmp_path):
    fit = fitted(rows)
    net = inference.shrink(fit).net
    inference.Small(net).save(tmp_path)
    again = inference.load(tmp_path)
    assert torch.equal(again(rows.x_test), net(rows.x_test))


def test_random_structures_of_one_size(rows):
    fit = fitted(rows)
    sizes = {"tanh": 8, "relu": 8, "deep": 14}
    found = random_structures(fit.model, 10, parameters=8 + 3, seed=1)
    small = [c for c in found if c[FIRST] != ["deep"]]
    assert len(small) == 4  # all there are within a tenth; the others come after them
    assert found[:4] == small
    assert len({str(choice) for choice in found}) == len(found) == 6
    for choice in found:
        net = inference.shrinking.discretise(fit, choice)
        count = sizes[choice[FIRST][0]] + 3
        assert sum(p.numel() for p in net.parameters()) == count
    assert random_structures(fit.model, 3, seed=1) == random_structures(fit.model, 3, seed=1)
    for chosen in found:  # what they are to be compared with
        others = random_structures(fit.model, 10, parameters=8 + 3, other_than=chosen, seed=1)
        assert {str(c) for c in others} == {str(c) for c in found} - {str(chosen)}
    before = torch.get_rng_state()
    random_structures(fit.model, 2)
    assert torch.equal(before, torch.get_rng_state())


def test_random_structures_are_equally_probable(rows):
    fit = fitted(rows)
    firsts = [random_structures(fit.model, 1, seed=s)[0][FIRST][0] for s in range(300)]
    for name in EDGES[FIRST]:
        assert abs(firsts.count(name) - 100) < 5 * math.sqrt(300 * (1 / 3) * (2 / 3))


def test_random_structures_without_a_path_are_no_contenders():
    """Zeros on both ways into the last vertex give a constant."""
    torch.manual_seed(0)
    x = torch.randn(20, 1, 8, 8)
    images = data.Dataset.from_tensors(x, torch.arange(20) % 2, x, torch.arange(20) % 2)
    net = models.networks.graphs.cell_graph((1, 8, 8), 2, channels=4, vertices=3, cells=1)
    structure = priors.GumbelSoftmax(0.5)
    model = models.StructuredNetwork(net, images, structure=structure)
    every = random_structures(model, 300, seed=1)
    found = random_structures(model, 300, example=images.x_train, seed=1)

    def dead(choice):
        edges = {edge.rpartition(".")[2]: one for edge, (one,) in choice.items()}
        onward = edges["v0-v1"] == "zero" or edges["v1-v2"] == "zero"
        return edges["v0-v2"] == "zero" and onward

    constant = [choice for choice in every if dead(choice)]
    assert 5 < len(constant) <= 11  # 6 + 6 - 1, of those that are drawn
    assert not any(map(dead, found))


def test_random_structures_compute_different_functions(rows):
    """Three skips in a row, or one beside zeros, are the same network, and count once."""
    torch.manual_seed(0)
    x = torch.randn(20, 1, 8, 8)
    images = data.Dataset.from_tensors(x, torch.arange(20) % 2, x, torch.arange(20) % 2)
    net = models.networks.graphs.cell_graph((1, 8, 8), 2, channels=4, vertices=3, cells=1)
    model = models.StructuredNetwork(net, images, structure=priors.GumbelSoftmax(0.5))
    every = random_structures(model, 300, seed=1)
    chosen = next(c for c in every if {*map(tuple, c.values())} == {("skip",), ("zero",)})
    starts = {name: layer.start for name, layer in model.layers.items()}
    whole = model.plain({n: (s["weight"], s.get("bias")) for n, s in starts.items()})

    def outputs(choice):
        with torch.no_grad():
            return discretised(copy.deepcopy(whole), choice).eval()(x)

    found = random_structures(model, 300, example=x, other_than=chosen, seed=1)
    drawn = [outputs(choice) for choice in (chosen, *found)]
    for k, one in enumerate(drawn):
        assert not any(torch.allclose(one, other, atol=1e-5) for other in drawn[:k])
    for choice in every:  # and there are no others, but for constants
        own = outputs(choice)
        known = any(torch.allclose(own, other, atol=1e-4) for other in drawn)
        assert known or torch.allclose(own, own[:1].expand_as(own), atol=1e-5)


def test_random_subsets_leave_no_vertex_empty(rows):
    fit = fitted(rows, priors.Bernoulli())
    for choice in random_structures(fit.model, 20, parameters=20, tolerance=2.0):
        assert choice[FIRST]
        assert choice[SECOND]
        inference.shrinking.discretise(fit, choice)


def test_errors(rows):
    fit = fitted(rows)
    with pytest.raises(PyroccamError):
        inference.narrow(fit)
    with pytest.raises(PyroccamError):
        inference.shrink(fit, cut=inference.Noise())
    with pytest.raises(PyroccamError):
        inference.shrinking.discretise(fit, {FIRST: "rellu", SECOND: "bent"})


def test_averages_over_structure_in_an_ensemble():
    """Weights are numbers, and still a prediction needs draws: of the structure."""
    torch.manual_seed(0)
    x = torch.randn(40, 3)
    classes = data.Dataset.from_tensors(x, (x[:, 0] > 0).long(), x, (x[:, 0] > 0).long())
    fit = fitted(classes, net=nn.Sequential(nn.Identity(), graph(outputs=2)))
    inputs, draws = classes.x_test[:5], 400
    each = fit.outputs(inputs, draws=draws).softmax(-1)
    assert float(each.std(0).max()) > 1e-3
    found = inference.posterior.EnsembleNetwork(fit, draws=draws, seed=1)(inputs).softmax(-1)
    error = 6.0 * each.std(0) * (2.0 / draws) ** 0.5 + 1e-6  # of the difference of two means
    assert bool(((found - each.mean(0)).abs() < error).all())


def test_a_checkpoint_belongs_to_its_structure_prior(rows, tmp_path):
    def go(prior, **more):
        model = models.StructuredNetwork(graph(), rows, structure=prior)
        return fit_of(model, rows, epochs=2, out=tmp_path, **more)

    go(priors.GumbelSoftmax(0.5))
    go(priors.GumbelSoftmax(0.5), resume=True)
    annealed = priors.GumbelSoftmax(models.Annealed(0.5, 0.2))
    for other in (priors.GumbelSoftmax(0.7), annealed, priors.Dirichlet(0.5)):
        with pytest.raises(inference.CheckpointError):
            go(other, resume=True)


def test_random_structures_count_a_graph_within_a_graph_once(rows):
    two = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    inner = models.StructureGraph({("a", "b"): {"one": nn.Linear(3, 3), "two": two}})
    outer = models.StructureGraph({("x", "y"): {"deep": inner, "flat": nn.Identity()}})
    fit = fitted(rows, net=nn.Sequential(outer, nn.Linear(3, 1)))
    (found,) = random_structures(fit.model, 1, parameters=4, tolerance=0.0)
    assert found["0.x-y"] == ["flat"]
    (found,) = random_structures(fit.model, 1, parameters=4 + 12, tolerance=0.0)
    assert found["0.x-y"] == ["deep"]
    assert sum(p.numel() for p in inference.shrinking.discretise(fit, found).parameters()) == 16


def test_within_the_tolerance_every_structure_is_as_likely(rows):
    """Two of six have 17 parameters, the others 11; half of 12 is more than either differs by."""
    model = models.StructuredNetwork(graph(), rows, structure=priors.GumbelSoftmax())
    options = {"count": 1, "parameters": 12, "tolerance": 0.5}
    drawn = [random_structures(model, seed=seed, **options)[0] for seed in range(150)]
    large = sum(choice[FIRST] == ["deep"] for choice in drawn)
    assert stats.binomtest(large, len(drawn), 1 / 3).pvalue > 1e-4
