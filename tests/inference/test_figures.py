"""Figures show their data, in texts that can be read."""

import math
from dataclasses import replace

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from alternatives import FIRST, SECOND, graph
from drawn import SIGHTS, inside, legend, lines, seen_as, texts_overlap
from matplotlib.collections import QuadMesh
from matplotlib.patches import FancyArrowPatch, StepPatch
from pyroccam.data import PyroccamError
from pyroccam.inference import figures
from pyroccam.inference.figures import style
from pyroccam.inference.posterior import Bands, DepthStructure, metrics
from pyroccam.inference.rounding import LayerBits
from pyroccam.inference.shrinking.intervals import ScaleIntervals
from pyroccam.inference.shrinking.inventory import Remains
from pyroccam.inference.shrinking.relevance import Irrelevance

RNG = np.random.default_rng(0)
Z = 1.959964


def masses(n, peak, decay):
    d = np.arange(n)
    p = np.exp(-0.5 * np.maximum(peak - d, 0) ** 2 - decay * d)
    return p / p.sum()


def depth_figure(n=21):
    curve = 0.7 * np.exp(-np.arange(n) / 3) + 0.01
    q, exact = (torch.tensor(masses(n, n // k, s)) for k, s in ((3, 0.03), (4, 0.16)))
    found = DepthStructure.from_probs(q, exact)
    found = replace(found, depth_chosen=n // 3, depth_chosen_exact=n // 4)
    return figures.depth_posterior(found, {"train": curve, "test": torch.tensor(1.3 * curve)})


def spirals_figure(k=5, probs=None, chosen=None):
    rng = np.random.default_rng(0)
    x, y = np.linspace(-2, 2, 30), np.linspace(-1, 1, 20)
    slope = x[None, None, :] + 0.3 * np.arange(k)[:, None, None] * y[None, :, None]
    probs = 1 / (1 + np.exp(-slope)) if probs is None else probs
    points = torch.tensor(rng.normal(size=(40, 2))), torch.tensor([0, 1, 1, 1] * 10)
    q = torch.tensor([1e-9, 0.002, 0.03, 0.25, 0.1, 0.1, 0.1, 0.1, 0.1])[:k]
    depths = [0, 1, 2, 4, 8, 9, 10, 11, 12][:k]
    return figures.spiral_functions(*points, x, y, probs, depths, q, chosen)


def reliability(sharpness, n=600):
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(n, 5, generator=generator, dtype=torch.float64)
    y = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
    return metrics.reliability((sharpness * logits).log_softmax(-1), y)


def history():
    rows = [{"epoch": e, "loss": 2.0 - 0.1 * e, "kl": 3.0 + e, "note": "x"} for e in range(10)]
    for e, value in ((0, torch.tensor(1.5)), (5, 6.5), (9, 10.5), (7, math.nan), (8, None)):
        rows[e]["val_nll"] = value
    return rows


def histories(lengths=(10, 10, 7)):
    return [
        [{"epoch": e, "loss": 2.0 + k - 0.1 * e, "kl": 3.0 + k * e} for e in range(n)]
        for k, n in enumerate(lengths)
    ]


def comparison_figure():
    fixed = {10: [0.2, 0.3, 0.25], 0: [0.5, 0.7], 5: [0.4]}
    full, cut = (0.22, 0.26), ((6, 0.24), (4, 0.28))
    return figures.depth_comparison(fixed, full, cut, "test error", "Spirals")


def trade_figure():
    costs = {"bytes": [200, 900, 4000], "ms": [0.2, 0.9, 0.5]}
    return figures.trade_off(costs, [30.0, 5.0, 4.0], ["0", "3", "12"], 1)


def bytes_figure():
    sizes = [40.0, 300.0, 900.0], [200, 700, 1500], [50, 350, 900]
    return figures.bytes_by_bound(*sizes, ["0", "3", "12"], 2)


def path_figure(depth=(9, 5, 2, 0)):
    points = [
        {
            "weight": 0.01 * 10**k,
            "scores": {"nll": (0.1, 0.12, 0.2, 2.0)[k]},
            "band": ((0.1, 0.13), (0.1, 0.14), (0.18, 0.3), (1.9, 2.1))[k],
            "small_scores": {"nll": (0.1, 0.12, 0.21, 2.0)[k]},
            "file_bytes": (90_000, 4_000, 900, 300)[k],
            "widths": {"1": (50, 48, 20, 2)[k], "3": 10},
            "depth": depth[k],
        }
        for k in range(4)
    ]
    return figures.weight_path(points, 1)


def scales(sizes=(30, 7), positive=(False, True), threshold=0.0):
    """Scales, irrelevance and thresholds of layers ``a``, ``b``."""
    generator = torch.Generator().manual_seed(0)
    intervals, found = {}, {}
    for name, size, above in zip("ab", sizes, positive, strict=False):
        median = torch.rand(size, generator=generator, dtype=torch.float64) + 0.2
        step = 0.1 + torch.rand(size, generator=generator, dtype=torch.float64)
        ends = median - step, median + step
        low, high = (median / (1 + step), median * (1 + step)) if above else ends
        intervals[name] = ScaleIntervals(name, low, median, high, "scale", 0.9, above)
        values = torch.randn(size, generator=generator, dtype=torch.float64)
        found[name] = Irrelevance(name, values, "log alpha of the group", True, 100)
    return intervals, found, dict.fromkeys(intervals, threshold)


KEPT = torch.tensor([[1, 0, 1, 1, 0], [0, 0, 0, 1, 0], [1, 0, 1, 1, 1]]).bool()
REMAINS = {"1": Remains("1", KEPT, (6, 10)), "3": Remains("3", torch.ones(2, 3).bool(), (2, 6))}
BITS = {"1": LayerBits(4, 3), "3": LayerBits(2, 5)}
WEIGHTS = {"1": 800, "3": 100}
LONG = ["conv1", "layer2.0.conv1", "layer2.0.conv2", "layer2.0.downsample.0", "fc"]
PARTS = {"1": 500.0, "3": 80.0, "biases and others": 60.0, "tables": 40.0, "description": 120.0}


def bands(n, seed=0):
    rng = np.random.default_rng(seed)
    epistemic = rng.uniform(0.05, 0.3, n)
    return Bands(rng.normal(size=n), epistemic, np.hypot(epistemic, 0.4))


def over_one_input(own=None, y=None, at_rows=None):
    grid, y = np.linspace(-2, 3, 40), RNG.normal(size=25) if y is None else y
    x = RNG.uniform(-2, 3, 25)
    return figures.predictive_bands(torch.tensor(grid), own or bands(40), x, y, at_rows)


def observed_as_said(n=200):
    """Rows that lie where they should: at the quantiles of what is predicted."""
    mean, total = RNG.normal(size=n), RNG.uniform(0.5, 2.0, n)
    p = torch.tensor((RNG.permutation(n) + 0.5) / n)
    y = mean + total * torch.special.ndtri(p).numpy()
    return y, Bands(mean, total / 2, total)


EVERY = {
    "path": path_figure,
    "trade": trade_figure,
    "bytes": bytes_figure,
    "depth": lambda: depth_figure(101),
    "spirals": lambda: spirals_figure(9),
    "reliability": lambda: figures.reliability_diagram(
        {"DDN": reliability(2), "LDN, pruned": reliability(1.2), "LDN": reliability(1)}
    ),
    "training": lambda: figures.training_curve(history()),
    "repeats": lambda: figures.training_curve(histories()),
    "comparison": comparison_figure,
    "scales": lambda: figures.scale_posteriors(*scales((900,), (True,))),
    "sparsity": lambda: figures.sparsity_maps(dict.fromkeys(LONG, REMAINS["1"])),
    "bits": lambda: figures.bits_per_layer(
        dict.fromkeys(LONG, BITS["1"]), dict.fromkeys(LONG, 400), dict.fromkeys(LONG, 1234.0)
    ),
    "bands": over_one_input,
    "observed": lambda: figures.predicted_observed(*observed_as_said()),
}


@pytest.mark.parametrize("name", EVERY)
def test_texts_are_legible_and_the_session_is_left_alone(name):
    before = dict(matplotlib.rcParams)
    fig = EVERY[name]()
    assert dict(matplotlib.rcParams) == before
    assert plt.get_fignums() == []
    assert texts_overlap(fig) == []
    assert inside(fig)


def test_depth_posterior_shows_the_data():
    n = 21
    top, bottom = depth_figure(n).axes
    assert bottom.get_yscale() == "log"
    bars = top.containers[0]
    assert [bar.get_height() for bar in bars] == pytest.approx(masses(n, n // 3, 0.03))
    (outline,) = [patch for patch in top.patches if isinstance(patch, StepPatch)]
    values, edges, _ = outline.get_data()
    assert values == pytest.approx(masses(n, n // 4, 0.16))
    assert edges == pytest.approx(np.arange(n + 1) - 0.5)
    for ax in (top, bottom):
        assert set(lines(ax)["chosen by q: 7"].get_xdata()) == {7}
        assert set(lines(ax)["by exact posterior: 5"].get_xdata()) == {5}
    curve = 0.7 * np.exp(-np.arange(n) / 3) + 0.01
    assert lines(bottom)["train"].get_ydata() == pytest.approx(curve)
    assert lines(bottom)["test"].get_ydata() == pytest.approx(1.3 * curve)


def test_spiral_functions_show_the_data():
    panels = spirals_figure(5, chosen=4).axes[:5]
    titles = ["d = 0,  q < 0.001", "d = 1,  q = 0.002", "d = 2,  q = 0.030", "d = 4,  q = 0.25"]
    assert [ax.get_title() for ax in panels] == [*titles, "d = 8,  q = 0.10"]
    for k, ax in enumerate(panels):
        (mesh,) = [c for c in ax.collections if isinstance(c, QuadMesh)]
        surface = mesh.get_array()
        assert surface.shape == (20, 30)  # rows run over grid_y, columns over grid_x
        slope = np.linspace(-2, 2, 30)[7] + 0.3 * k * np.linspace(-1, 1, 20)[3]
        assert surface[3, 7] == pytest.approx(1 / (1 + math.exp(-slope)))
    flat = spirals_figure(1, probs=np.full((1, 20, 30), 0.4))
    assert len(flat.axes[0].collections) == 3  # the surface and two classes, and no boundary


def test_depth_comparison_shows_the_data():
    (ax,) = comparison_figure().axes
    ((mean, _, (bars,)),) = ax.containers
    assert mean.get_xdata().tolist() == [0, 5, 10]
    assert mean.get_ydata() == pytest.approx([0.6, 0.4, 0.25])
    sds = [np.std([0.5, 0.7], ddof=1), 0, np.std([0.2, 0.3, 0.25], ddof=1)]
    assert [np.ptp(s[:, 1]) / 2 for s in bars.get_segments()] == pytest.approx(sds)
    assert lines(ax)["learnt depth, all depths"].get_ydata() == pytest.approx([0.24, 0.24])
    cut = lines(ax)["learnt depth, cut"].get_xydata()
    assert cut == pytest.approx(np.array([[6, 0.24], [4, 0.28]]))


def test_reliability_diagram_shows_the_data():
    tables = {"one": reliability(2.0), "two": reliability(1.0)}
    top, bottom = figures.reliability_diagram(tables).axes
    names = [f"{name} (ECE {100 * table.ece:.2g} %)" for name, table in tables.items()]
    assert [*lines(top)] == [*names, "under 20 rows"]
    outlines = [patch for patch in bottom.patches if isinstance(patch, StepPatch)]
    hollow = [line for line in top.lines if line.get_markerfacecolor() == "white"]
    for table, name, outline in zip(tables.values(), names, outlines, strict=True):
        trusted = table.counts >= 20
        assert lines(top)[name].get_xdata() == pytest.approx(table.confidence[trusted].numpy())
        assert lines(top)[name].get_ydata() == pytest.approx(table.accuracy[trusted].numpy())
        few = table.confidence[~trusted & (table.counts > 0)].tolist()
        assert few in [line.get_xdata().tolist() for line in hollow[:-1]]
        values, edges, _ = outline.get_data()
        assert values.tolist() == table.counts.tolist()
        assert edges == pytest.approx(np.linspace(0, 1, len(table.counts) + 1))


def test_training_curve_shows_the_data():
    nats, kl = figures.training_curve(history()).axes
    assert lines(nats)["loss"].get_ydata() == pytest.approx(2.0 - 0.1 * np.arange(10))
    # missing, None and nan are skipped
    assert lines(nats)["val nll"].get_xydata().tolist() == [[0, 1.5], [5, 6.5], [9, 10.5]]
    assert kl.get_ylabel() == "kl"
    assert lines(kl)["kl"].get_ydata() == pytest.approx(3.0 + np.arange(10))


def test_repeats_are_thin_lines_with_their_mean():
    axes = figures.training_curve(histories()).axes
    for ax, of in zip(axes, (lambda k, e: 2 + k - 0.1 * e, lambda k, e: 3 + k * e), strict=True):
        *each, mean = ax.lines
        for k, (line, n) in enumerate(zip(each, (10, 10, 7), strict=True)):
            assert line.get_xdata().tolist() == list(range(n))
            assert line.get_ydata() == pytest.approx([of(k, e) for e in range(n)])
        assert mean.get_xdata().tolist() == list(range(7))  # where all three have a value
        expected = [sum(of(k, e) for k in range(3)) / 3 for e in range(7)]
        assert mean.get_ydata() == pytest.approx(expected)


def test_sizes_show_the_data():
    """The chosen network is filled, and every cost has its axis."""
    fig = trade_figure()
    assert [ax.get_xlabel() for ax in fig.axes] == ["bytes", "ms"]
    for ax, costs in zip(fig.axes, ([200, 900, 4000], [0.2, 0.9, 0.5]), strict=True):
        _, every, chosen = ax.lines
        assert every.get_xdata().tolist() == costs
        assert chosen.get_xydata().tolist() == [[costs[1], 5.0]]
    diagonal, weights, every, chosen = bytes_figure().axes[0].lines
    assert diagonal.get_xdata().tolist() == diagonal.get_ydata().tolist()
    assert weights.get_xydata().tolist() == [[40, 50], [300, 350], [900, 900]]
    assert every.get_xydata().tolist() == [[40, 200], [300, 700], [900, 1500]]
    assert chosen.get_xydata().tolist() == [[900, 1500]]
    axes = path_figure().axes
    for ax in axes:
        assert any(list(line.get_xdata()) == [0.1, 0.1] for line in ax.get_lines())
    drawn = [{tuple(line.get_ydata()) for line in ax.get_lines()} for ax in axes]
    shown = (0.1, 0.12, 0.21, 2.0), (90_000, 4_000, 900, 300), (9, 5, 2, 0), (50, 48, 20, 2)
    assert all(one in own for one, own in zip(shown, drawn, strict=True))


def segments(ax):
    """Ends of the intervals by their place, and the colour of each."""
    return {
        segment[0, 0]: (*segment[:, 1], matplotlib.colors.to_hex(part.get_color()[0]))
        for part in ax.collections
        for segment in part.get_segments()
    }


def test_scales_show_the_data():
    intervals, found, thresholds = scales()
    fig = figures.scale_posteriors(intervals, found, thresholds)
    for ax, (name, one) in zip(fig.axes, intervals.items(), strict=True):
        values = found[name].values
        kept = int((values <= 0).sum())
        assert 0 < kept < len(values)
        order = sorted(range(len(values)), key=lambda k: (values[k] > 0, -one.median[k]))
        drawn = segments(ax)
        assert sorted(drawn) == list(range(1, len(values) + 1))
        for rank, k in enumerate(order, start=1):
            *ends, colour = drawn[rank]
            assert ends == pytest.approx([float(one.low[k]), float(one.high[k])])
            assert colour == (style.CYCLE[0] if rank <= kept else style.GREY)
        assert len([line for line in ax.lines if set(line.get_xdata()) == {kept + 0.5}]) == 1
    assert [ax.get_yscale() for ax in fig.axes] == ["linear", "log"]
    (ax,) = figures.scale_posteriors(*scales((450,), (False,))).axes
    assert sorted(segments(ax)) == list(range(1, 451, 3))


def images(fig):
    return [ax.images[0].get_array() for ax in fig.axes if ax.images]


def test_sparsity_shows_the_data():
    one, other = images(figures.sparsity_maps(REMAINS))
    # Rows by what they have left, then columns: four, three, one; and three, two, two, one, none.
    expected = np.zeros((6, 10))
    for row, left in enumerate((4, 3, 1)):
        expected[row, :left] = 1
    assert one.tolist() == expected.tolist()
    assert other.tolist() == [[1, 1, 1, 0, 0, 0]] * 2
    kept = torch.rand(384, 400, generator=torch.Generator().manual_seed(0)) < 0.3
    (image,) = images(figures.sparsity_maps({"1": Remains("1", kept, (576, 768))}))
    assert image.shape == (192, 192)  # squares of 3 x 4 weights
    assert image.mean() == pytest.approx(float(kept.sum()) / (576 * 768))
    counts = torch.zeros(3, 4, 5)
    counts[0, 1, 2], counts[2, 1, 2], counts[1, 3, 0] = 3.0, 5.0, 2.0
    fig = figures.sparsity_maps(REMAINS, counts)
    pixels = images(fig)[0]
    assert (pixels[1, 2], pixels[3, 0], np.count_nonzero(pixels)) == (1, pytest.approx(2 / 8), 2)
    assert fig.axes[1].get_title(loc="left") == "1: 13.3 % left"  # 8 of 60


def test_bits_show_the_data():
    left, right = figures.bits_per_layer(BITS, WEIGHTS, PARTS).axes
    widths = [[bar.get_width() for bar in bars] for bars in left.containers]
    starts = [[bar.get_x() for bar in bars] for bars in left.containers]
    assert (widths, starts) == ([[4, 2], [3, 5], [1, 1]], [[0, 0], [4, 2], [7, 7]])
    assert lines(left)["in the file"].get_xdata() == pytest.approx([8 * 500 / 800, 8 * 80 / 100])
    (bars,) = right.containers
    assert [bar.get_width() for bar in bars] == pytest.approx([62.5, 10.0, 7.5, 5.0, 15.0])


def test_bands_over_one_input_show_the_data():
    own = bands(40)
    (ax,) = over_one_input(own).axes
    for drawn, sd in zip(ax.collections, (own.total, own.epistemic), strict=True):
        corners = drawn.get_paths()[0].vertices
        for x, mean, deviation in zip(np.linspace(-2, 3, 40), own.mean, sd, strict=True):
            heights = corners[np.isclose(corners[:, 0], x), 1]
            assert heights.min() == pytest.approx(mean - Z * deviation)
            assert heights.max() == pytest.approx(mean + Z * deviation)
    assert lines(ax)["mean"].get_ydata() == pytest.approx(own.mean)
    at_rows = Bands(np.zeros(25), np.zeros(25), np.ones(25))
    y = np.r_[np.full(20, 1.9), np.full(5, 2.0)]  # 1.96 lies between
    assert "95 % band of a row, holds 80 % of them" in legend(
        over_one_input(None, y, at_rows).axes[0]
    )


def test_intervals_of_predictions_that_are_right_hold_what_they_say():
    y, own = observed_as_said(200)
    left, right = figures.predicted_observed(y, own).axes
    (curve,) = lines(right).values()
    assert curve.get_ydata() == pytest.approx(curve.get_xdata(), abs=1 / 200)
    assert curve.get_label() == "95 % holds 95 % of 200"
    shown = {name: line.get_xydata().tolist() for name, line in lines(left).items()}
    beyond = np.abs(y - own.mean) > Z * own.total
    assert sorted(shown["outside"]) == sorted(np.stack([y, own.mean], 1)[beyond].tolist())


def test_lines_of_a_graph_are_as_wide_as_primitives_are_probable():
    probs = {
        FIRST: {"tanh": 0.1, "relu": 0.7, "deep": 0.2},
        SECOND: {"straight": 0.55, "bent": 0.45},
    }
    chosen = {FIRST: ["relu"], SECOND: ["straight"]}
    (ax,) = figures.structure_graph(graph(), probs, chosen).axes
    values = [p for edge in probs.values() for p in edge.values()]
    widths = [p.get_linewidth() for p in ax.patches if isinstance(p, FancyArrowPatch)]
    slope = (widths[1] - widths[0]) / (values[1] - values[0])
    assert slope > 0
    assert widths == pytest.approx([widths[0] + slope * (p - values[0]) for p in values])
    said = {text.get_text(): text.get_fontweight() for text in ax.texts}
    assert {"x", "h", "y"} < set(said)
    for edge, names in probs.items():
        for name, p in names.items():
            assert said[f"{name} {p:.2f}"] == ("bold" if name in chosen[edge] else "normal")


def test_the_simplex_has_barycentric_coordinates():
    point = [0.2, 0.3, 0.5]
    one, shares = {"a": {"b": [point]}}, {"a": {"b": point}}
    (ax,) = figures.simplex_panels(one, ["x", "y", "z"], shares).axes
    x, y = ax.lines[0].get_xydata()[0]
    assert (x, y) == pytest.approx((0.3 + 0.25, 0.5 * math.sqrt(0.75)))


def test_a_figure_is_the_same_undated_file(tmp_path):
    target, formats = tmp_path / "new" / "run-0.85", ("png", "svg", "pdf")
    written = figures.save(trade_figure(), target, formats)
    assert [path.name for path in written] == ["run-0.85.png", "run-0.85.svg", "run-0.85.pdf"]
    assert plt.imread(written[0]).shape[1] == 900  # 6 inches at 150 dots
    first = [path.read_bytes() for path in written]
    again = figures.save(trade_figure(), str(target), formats)
    assert [path.read_bytes() for path in again] == first
    with pytest.raises(PyroccamError):
        figures.save(trade_figure(), target, formats="png")


@pytest.mark.parametrize("sight", SIGHTS)
def test_what_stands_together_differs_for_every_kind_of_sight(sight):
    """Simulated dichromats (Vienot, Brettel and Mollon 1999)."""
    blue, orange, green, _, amber, sky = style.CYCLE
    grey = style.GREY
    together = [(blue, grey), (blue, orange), (blue, amber), (amber, grey), (blue, sky)]
    for one, other in (*together, (blue, green), (orange, green)):
        assert np.linalg.norm(seen_as(one, sight) - seen_as(other, sight)) > 0.15
    shades = [seen_as(style.AMOUNT(k / 8), sight) @ [0.2126, 0.7152, 0.0722] for k in range(9)]
    assert (np.diff(shades) < -0.03).all()  # more is darker, step by step
