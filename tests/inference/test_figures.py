"""Figures show their data, in texts that can be read."""

import math
from dataclasses import replace

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from alternatives import FIRST, SECOND, graph
from drawn import inside, legend, lines, texts_overlap
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
DEPTHS = np.arange(21)
CURVE = 0.7 * np.exp(-DEPTHS / 3) + 0.01
Q, EXACT = (np.exp(-0.5 * np.maximum(d - DEPTHS, 0) ** 2 - 0.05 * DEPTHS) for d in (7, 5))
Q, EXACT = Q / Q.sum(), EXACT / EXACT.sum()


def depth_figure():
    found = DepthStructure.from_probs(torch.tensor(Q), torch.tensor(EXACT))
    found = replace(found, depth_chosen=7, depth_chosen_exact=5)
    return figures.depth_posterior(found, {"train": CURVE, "test": torch.tensor(1.3 * CURVE)})


GRID = np.linspace(-2, 2, 30), np.linspace(-1, 1, 20)
SURFACES = 1 / (1 + np.exp(-GRID[0] - 0.3 * np.arange(9)[:, None, None] * GRID[1][:, None]))


def spirals_figure():
    points = torch.tensor(RNG.normal(size=(40, 2))), torch.tensor([0, 1, 1, 1] * 10)
    q = torch.tensor([1e-9, 0.002, 0.03, 0.25, 0.1, 0.1, 0.1, 0.1, 0.1])
    depths = [0, 1, 2, 4, 8, 9, 10, 11, 12]
    return figures.spiral_functions(*points, *GRID, SURFACES, depths, q, 4)


def reliability(sharpness):
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(600, 5, generator=generator, dtype=torch.float64)
    y = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
    return metrics.reliability((sharpness * logits).log_softmax(-1), y)


TABLES = {"DDN": reliability(2), "LDN, pruned": reliability(1.2), "LDN": reliability(1)}
SURE = TABLES["DDN"].counts >= 20


def history():
    rows = [{"epoch": e, "loss": 2.0 - 0.1 * e, "kl": 3.0 + e, "note": "x"} for e in range(10)]
    for e, value in ((0, torch.tensor(1.5)), (5, 6.5), (9, 10.5), (7, math.nan), (8, None)):
        rows[e]["val_nll"] = value
    return rows


def histories():
    return [
        [{"epoch": e, "loss": 2.0 + k - 0.1 * e, "kl": 3.0 + k * e} for e in range(n)]
        for k, n in enumerate((10, 10, 7))
    ]


def path_figure():
    points = [
        {
            "weight": 0.01 * 10**k,
            "scores": {"nll": (0.1, 0.12, 0.2, 2.0)[k]},
            "band": ((0.1, 0.13), (0.1, 0.14), (0.18, 0.3), (1.9, 2.1))[k],
            "small_scores": {"nll": (0.1, 0.12, 0.21, 2.0)[k]},
            "file_bytes": (90_000, 4_000, 900, 300)[k],
            "widths": {"1": (50, 48, 20, 2)[k], "3": 10},
            "depth": (9, 5, 2, 0)[k],
        }
        for k in range(4)
    ]
    return figures.weight_path(points, 1)


def scales(sizes=(30, 7), positive=(False, True)):
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
    return intervals, found, dict.fromkeys(intervals, 0.0)


KEPT = torch.tensor([[1, 0, 1, 1, 0], [0, 0, 0, 1, 0], [1, 0, 1, 1, 1]]).bool()
REMAINS = {"1": Remains("1", KEPT, (6, 10)), "3": Remains("3", torch.ones(2, 3).bool(), (2, 6))}
LONG = ["conv1", "layer2.0.conv1", "layer2.0.conv2", "layer2.0.downsample.0", "fc",
        "bert.encoder.layer.0.attention.output.dense"]  # fmt: skip


def bands(n):
    epistemic = RNG.uniform(0.05, 0.3, n)
    return Bands(RNG.normal(size=n), epistemic, np.hypot(epistemic, 0.4))


OVER = bands(40)


def over_one_input(y=None, at_rows=None):
    y = RNG.normal(size=25) if y is None else y
    grid = torch.linspace(-2, 3, 40)
    return figures.predictive_bands(grid, OVER, RNG.uniform(-2, 3, 25), y, at_rows)


def observed_as_said(n=200):
    """Rows that lie where they should: at the quantiles of what is predicted."""
    mean, total = RNG.normal(size=n), RNG.uniform(0.5, 2.0, n)
    p = torch.tensor((RNG.permutation(n) + 0.5) / n)
    y = mean + total * torch.special.ndtri(p).numpy()
    return y, Bands(mean, total / 2, total)


EVERY = {  # each with numbers that it has to show, in this order
    "path": (path_figure, [[0.1, 0.12, 0.21, 2.0], [90_000, 4_000, 900, 300], [9, 5, 2, 0],
                           [50, 48, 20, 2]]),
    "trade": (lambda: figures.trade_off({"bytes": [200, 900, 4000], "ms": [0.2, 0.9, 0.5]},
                                        [30.0, 5.0, 4.0], ["0", "3", "12"], 1),
              [[200, 900, 4000], [30, 5, 4], [900], [5], [0.2, 0.9, 0.5], [0.9]]),
    "bytes": (lambda: figures.bytes_by_bound([40.0, 300.0, 900.0], [200, 700, 1500], [50, 350, 900],
                                             ["0", "3", "12"], 2),
              [[40, 300, 900], [50, 350, 900], [200, 700, 1500], [900], [1500]]),
    "depth": (depth_figure, [[7, 7], [5, 5], EXACT, Q, CURVE, 1.3 * CURVE]),
    "spirals": (spirals_figure, [surface.ravel() for surface in SURFACES]),
    "reliability": (lambda: figures.reliability_diagram(TABLES),
                    [TABLES["DDN"].confidence[SURE], TABLES["DDN"].accuracy[SURE],
                     *(table.counts for table in TABLES.values())]),
    "confusions": (lambda: figures.confusions([[3, 1], [0, 4]], ["cat", "a long dog"]), []),
    "training": (lambda: figures.training_curve(history()),  # None and NaN are left out
                 [2.0 - 0.1 * np.arange(10), [0, 5, 9], [1.5, 6.5, 10.5], 3.0 + np.arange(10)]),
    "repeats": (lambda: figures.training_curve(histories()),  # and the mean where all have values
                [3.0 - 0.1 * np.arange(10), 3.0 - 0.1 * np.arange(7), np.arange(7),
                 3.0 + np.arange(7)]),
    "comparison": (lambda: figures.depth_comparison(
                       {10: [0.2, 0.3, 0.25], 0: [0.5, 0.7], 5: [0.4]}, (0.22, 0.26),
                       ((6, 0.24), (4, 0.28)), "test error"),
                   [[0.24, 0.24], [0, 5, 10], [0.6, 0.4, 0.25], [6, 4], [0.24, 0.28]]),
    "scales": (lambda: figures.scale_posteriors(*scales((900,), (True,))), []),
    "histograms": (lambda: figures.irrelevance_histograms(
                       scales()[1], {"a": 0.0, "b": math.inf},
                       {name: one.values <= 0.0 for name, one in scales()[1].items()}), []),
    "sparsity": (lambda: figures.sparsity_maps(dict.fromkeys(LONG, REMAINS["1"])), []),
    "bits": (lambda: figures.bits_per_layer(
                 {"1": LayerBits(4, 3), "3": LayerBits(2, 5)}, {"1": 800, "3": 100},
                 {"1": 500.0, "3": 80.0, "tables": 220.0}),
             [[5.0, 6.4], [4, 2], [3, 5], [1, 1], [62.5, 10.0, 27.5]]),
    "bits, long names": (lambda: figures.bits_per_layer(
                             dict.fromkeys(LONG, LayerBits(4, 3)), dict.fromkeys(LONG, 400),
                             dict.fromkeys(LONG, 1234.0)), []),
    "bands": (over_one_input, [OVER.mean]),
    "observed": (lambda: figures.predicted_observed(*observed_as_said()), []),
}  # fmt: skip


def shown(fig):
    """Numbers of lines, stairs, bars and meshes, axes by axes."""
    for ax in fig.axes:
        for line in ax.lines:
            yield from line.get_data()
        yield from (p.get_data().values for p in ax.patches if isinstance(p, StepPatch))
        for bars in ax.containers:
            sizes = [(bar.get_width(), bar.get_height()) for bar in getattr(bars, "patches", ())]
            yield from zip(*sizes, strict=True)
        yield from (
            mesh.get_array().ravel() for mesh in ax.collections if mesh.get_array() is not None
        )


@pytest.mark.parametrize("name", EVERY)
def test_data_are_shown_in_legible_texts_and_the_session_is_left_alone(name):
    before = dict(matplotlib.rcParams)
    make, expected = EVERY[name]
    fig = make()
    assert dict(matplotlib.rcParams) == before
    assert plt.get_fignums() == []
    assert texts_overlap(fig) == []
    assert inside(fig)
    rest = iter([np.asarray(one, dtype=float) for one in shown(fig)])
    for values in expected:
        values = np.asarray(values, dtype=float)
        assert any(one.shape == values.shape and np.allclose(one, values) for one in rest), values


def test_confusions_are_shares_of_the_rows_of_a_class():
    ax = figures.confusions([[3, 1], [0, 0]], ["cat", "dog"]).axes[0]
    assert [text.get_text() for text in ax.texts] == ["75", "25"]
    assert [text.get_text() for text in ax.get_yticklabels()] == ["cat (4)", "dog (0)"]


def segments(ax):
    """Ends of the intervals by their place, and the colour of each."""
    return {
        segment[0, 0]: (*segment[:, 1], matplotlib.colors.to_hex(part.get_color()[0]))
        for part in ax.collections
        for segment in part.get_segments()
    }


def test_scales_are_in_the_order_of_their_size_what_is_kept_before_what_is_cut():
    intervals, found, thresholds = scales()
    fig = figures.scale_posteriors(intervals, found, thresholds)
    for ax, (name, one) in zip(fig.axes, intervals.items(), strict=True):
        values = found[name].values
        kept = int((values <= 0).sum())
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


def test_sparsity_shows_the_data():
    def images(fig):
        return [ax.images[0].get_array() for ax in fig.axes if ax.images]

    # Rows by what they have left, then columns: four, three, one; and three, two, two, one, none.
    expected = np.zeros((6, 10))
    for row, left in enumerate((4, 3, 1)):
        expected[row, :left] = 1
    assert images(figures.sparsity_maps(REMAINS))[0].tolist() == expected.tolist()
    kept = torch.rand(384, 400, generator=torch.Generator().manual_seed(0)) < 0.3
    (image,) = images(figures.sparsity_maps({"1": Remains("1", kept, (576, 768))}))
    assert image.shape == (192, 192)  # squares of 3 x 4 weights
    assert image.mean() == pytest.approx(float(kept.sum()) / (576 * 768))
    counts = torch.zeros(3, 4, 5)
    counts[0, 1, 2], counts[2, 1, 2], counts[1, 3, 0] = 3.0, 5.0, 2.0
    pixels = images(figures.sparsity_maps(REMAINS, counts))[0]
    assert (pixels[1, 2], pixels[3, 0], np.count_nonzero(pixels)) == (1, pytest.approx(2 / 8), 2)


def test_bands_reach_as_far_as_they_say():
    (ax,) = over_one_input().axes
    for drawn, sd in zip(ax.collections, (OVER.total, OVER.epistemic), strict=True):
        corners = drawn.get_paths()[0].vertices
        for x, mean, deviation in zip(np.linspace(-2, 3, 40), OVER.mean, sd, strict=True):
            heights = corners[np.isclose(corners[:, 0], x, atol=1e-6), 1]
            assert heights.min() == pytest.approx(mean - Z * deviation)
            assert heights.max() == pytest.approx(mean + Z * deviation)
    at_rows = Bands(np.zeros(25), np.zeros(25), np.ones(25))
    y = np.r_[np.full(20, 1.9), np.full(5, 2.0)]  # 1.96 lies between
    assert "95 % band of a row, holds 80 % of them" in legend(over_one_input(y, at_rows).axes[0])
    y, own = observed_as_said(200)
    left, right = figures.predicted_observed(y, own).axes
    (curve,) = lines(right).values()
    assert curve.get_ydata() == pytest.approx(curve.get_xdata(), abs=1 / 200)
    beyond = np.abs(y - own.mean) > Z * own.total
    outside = sorted(lines(left)["outside"].get_xydata().tolist())
    assert outside == sorted(np.stack([y, own.mean], 1)[beyond].tolist())


def test_lines_of_a_graph_are_as_wide_as_primitives_are_probable():
    probs = {
        FIRST: {"tanh": 0.1, "relu": 0.7, "deep": 0.2},
        SECOND: {"straight": 0.55, "bent": 0.45},
    }
    chosen = {FIRST: ["relu"], SECOND: ["straight"]}
    (ax,) = figures.structure_graph(graph(), probs, chosen).axes
    values = [p for edge in probs.values() for p in edge.values()]
    widths = [p.get_linewidth() for p in ax.patches if isinstance(p, FancyArrowPatch)]
    assert np.array_equal(np.argsort(widths), np.argsort(values))
    said = {text.get_text(): text.get_fontweight() for text in ax.texts}
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
    written = figures.save(EVERY["trade"][0](), target, formats)
    assert [path.name for path in written] == ["run-0.85.png", "run-0.85.svg", "run-0.85.pdf"]
    assert plt.imread(written[0]).shape[1] == 900  # 6 inches at 150 dots
    first = [path.read_bytes() for path in written]
    again = figures.save(EVERY["trade"][0](), str(target), formats)
    assert [path.read_bytes() for path in again] == first
    with pytest.raises(PyroccamError):
        figures.save(depth_figure(), target, formats="png")
