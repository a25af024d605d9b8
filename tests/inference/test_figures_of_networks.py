"""Figures of what is cut, of files, of predictions and of repeated trainings show their data."""

import math

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from drawn import SIGHTS, inside, legend, lines, seen_as, texts_overlap
from matplotlib.collections import LineCollection
from pyroccam.inference import figures
from pyroccam.inference.figures import style
from pyroccam.inference.posterior.bands import Bands
from pyroccam.inference.rounding.bits import LayerBits
from pyroccam.inference.shrinking.intervals import ScaleIntervals
from pyroccam.inference.shrinking.inventory import Remains
from pyroccam.inference.shrinking.relevance import Irrelevance

RNG = np.random.default_rng(0)


def scales(sizes=(30, 7), positive=(False, True), threshold=0.0, seed=0):
    """Scales, irrelevance and thresholds of layers ``a``, ``b``, ..."""
    generator = torch.Generator().manual_seed(seed)
    intervals, found = {}, {}
    for name, size, above in zip("abcd", sizes, positive, strict=False):
        median = torch.rand(size, generator=generator, dtype=torch.float64) + 0.2
        step = 0.1 + torch.rand(size, generator=generator, dtype=torch.float64)
        low, high = (
            (median / (1 + step), median * (1 + step)) if above else (median - step, median + step)
        )
        intervals[name] = ScaleIntervals(name, low, median, high, "scale", 0.9, above)
        values = torch.randn(size, generator=generator, dtype=torch.float64)
        found[name] = Irrelevance(name, values, "log alpha of the group", True, 100)
    return intervals, found, dict.fromkeys(intervals, threshold)


def remains(**changes):
    kept = torch.tensor([[1, 0, 1, 1, 0], [0, 0, 0, 1, 0], [1, 0, 1, 1, 1]]).bool()
    whole = torch.ones(2, 3).bool()
    return {"1": Remains("1", kept, (6, 10)), "3": Remains("3", whole, (2, 6)), **changes}


BITS = {"1": LayerBits(4, 3), "3": LayerBits(2, 5)}
WEIGHTS = {"1": 800, "3": 100}
LONG = ["conv1", "layer2.0.conv1", "layer2.0.conv2", "layer2.0.downsample.0", "fc"]
PARTS = {"1": 500.0, "3": 80.0, "biases and others": 60.0, "tables": 40.0, "description": 120.0}


def bands(n, seed=0):
    rng = np.random.default_rng(seed)
    epistemic = rng.uniform(0.05, 0.3, n)
    return Bands(rng.normal(size=n), epistemic, np.hypot(epistemic, 0.4))


def over_one_input(**changes):
    grid = np.linspace(-2, 3, 40)
    arguments = {
        "grid": torch.tensor(grid),
        "bands": bands(40),
        "x": RNG.uniform(-2, 3, 25),
        "y": RNG.normal(size=25),
        "at_rows": bands(25, 1),
    }
    return figures.predictive_bands(**{**arguments, **changes})


def observed_as_said(n=200):
    """Rows that lie where they should: at the quantiles of what is predicted."""
    mean, total = RNG.normal(size=n), RNG.uniform(0.5, 2.0, n)
    p = torch.tensor((RNG.permutation(n) + 0.5) / n)
    y = mean + total * torch.special.ndtri(p).numpy()
    return y, Bands(mean, total / 2, total)


def histories(lengths=(10, 10, 7)):
    return [
        [{"epoch": e, "loss": 2.0 + k - 0.1 * e, "kl": 3.0 + k * e} for e in range(n)]
        for k, n in enumerate(lengths)
    ]


EVERY = {
    "scales": lambda: figures.scale_posteriors(*scales()),
    "scales, many": lambda: figures.scale_posteriors(*scales((900,), (True,))),
    "scales, none cut": lambda: figures.scale_posteriors(*scales(threshold=math.inf)),
    "sparsity": lambda: figures.sparsity_maps(remains(), torch.arange(12).reshape(3, 4)),
    "sparsity, five": lambda: figures.sparsity_maps({k: remains()["1"] for k in "vwxyz"}),
    "sparsity, long names": lambda: figures.sparsity_maps({k: remains()["1"] for k in LONG}),
    "bits": lambda: figures.bits_per_layer(BITS, WEIGHTS, PARTS),
    "bits, long names": lambda: figures.bits_per_layer(
        dict.fromkeys(LONG, BITS["1"]), dict.fromkeys(LONG, 400), dict.fromkeys(LONG, 1234.0)
    ),
    "bands": over_one_input,
    "observed": lambda: figures.predicted_observed(*observed_as_said()),
    "repeats": lambda: figures.training_curve(histories()),
}


@pytest.mark.parametrize("name", EVERY)
def test_texts_are_legible_and_the_session_is_left_alone(name):
    before = dict(matplotlib.rcParams)
    fig = EVERY[name]()
    assert dict(matplotlib.rcParams) == before
    assert plt.get_fignums() == []
    assert texts_overlap(fig) == []
    assert inside(fig)


# -- scales -----------------------------------------------------------------------------------


def segments(ax):
    """Ends of the intervals by their place, and the colour of each."""
    found = {}
    for part in ax.collections:
        assert isinstance(part, LineCollection)
        for segment in part.get_segments():
            found[segment[0, 0]] = (*segment[:, 1], matplotlib.colors.to_hex(part.get_color()[0]))
    return found


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
            low, high, colour = drawn[rank]
            assert (low, high) == pytest.approx((float(one.low[k]), float(one.high[k])))
            assert colour == (style.CYCLE[0] if rank <= kept else style.GREY)
        medians = {
            x: (y, line.get_markerfacecolor())
            for line in ax.lines
            if line.get_marker() == "o"
            for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)
        }
        for rank, k in enumerate(order, start=1):
            height, face = medians[rank]
            assert height == pytest.approx(float(one.median[k]))
            assert face == (style.CYCLE[0] if rank <= kept else "white")
        cuts = [line for line in ax.lines if set(line.get_xdata()) == {kept + 0.5}]
        assert len(cuts) == 1
        assert ax.get_title(loc="left") == f"layer {name}: {kept} of {len(values)} groups kept"
    assert [ax.get_yscale() for ax in fig.axes] == ["linear", "log"]
    assert legend(fig.axes[0]) == ["kept", "cut"]


def test_of_many_scales_some_are_drawn_and_the_title_says_which():
    intervals, found, thresholds = scales((450,), (False,))
    (ax,) = figures.scale_posteriors(intervals, found, thresholds).axes
    assert sorted(segments(ax)) == list(range(1, 451, 3))
    assert ax.get_title(loc="left").endswith("of 450 groups kept, every 3rd drawn")


def test_nothing_is_cut_without_a_threshold():
    intervals, found, thresholds = scales(threshold=math.inf)
    for ax in figures.scale_posteriors(intervals, found, thresholds).axes:
        assert {colour for *_, colour in segments(ax).values()} == {style.CYCLE[0]}
        assert not [line for line in ax.lines if line.get_linestyle() == "--"]


# -- what is left -----------------------------------------------------------------------------


def images(fig):
    return [ax.images[0].get_array() for ax in fig.axes if ax.images]


def test_sparsity_shows_the_data():
    one, other = images(figures.sparsity_maps(remains()))
    assert one.shape == (6, 10)
    # Rows by what they have left, then columns: four, three, one; and three, two, two, one, none.
    expected = np.zeros((6, 10))
    expected[0, :4] = 1
    expected[1, :3] = 1
    expected[2, 0] = 1
    assert one.tolist() == expected.tolist()
    expected = np.zeros((2, 6))
    expected[:, :3] = 1
    assert other.tolist() == expected.tolist()


def test_large_layers_are_drawn_as_shares():
    kept = torch.rand(384, 400, generator=torch.Generator().manual_seed(0)) < 0.3
    (image,) = images(figures.sparsity_maps({"1": Remains("1", kept, (576, 768))}))
    assert image.shape == (192, 192)  # squares of 3 x 4 weights
    assert image.mean() == pytest.approx(float(kept.sum()) / (576 * 768))
    assert {round(12 * float(v), 9) % 1 for v in image.flat} == {0.0}
    assert image[:128, :100].min() > image[128:].max() - 1e-12 == image[:, 100:].max() - 1e-12
    assert image[128:].max() == 0


def test_pixels_have_a_map_of_their_own():
    counts = torch.zeros(3, 4, 5)
    counts[0, 1, 2], counts[2, 1, 2], counts[1, 3, 0] = 3.0, 5.0, 2.0
    fig = figures.sparsity_maps(remains(), counts)
    assert images(fig)[0][1, 2] == 1
    assert images(fig)[0][3, 0] == pytest.approx(2 / 8)
    assert np.count_nonzero(images(fig)[0]) == 2
    assert fig.axes[0].get_title(loc="left") == "2 of 20 pixels"
    assert fig.axes[1].get_title(loc="left") == "1: 13.3 % left"  # 8 of 60


# -- bits -------------------------------------------------------------------------------------


def test_bits_show_the_data():
    left, right = figures.bits_per_layer(BITS, WEIGHTS, PARTS).axes
    widths = [[bar.get_width() for bar in bars] for bars in left.containers]
    assert widths == [[4, 2], [3, 5], [1, 1]]
    starts = [[bar.get_x() for bar in bars] for bars in left.containers]
    assert starts == [[0, 0], [4, 2], [7, 7]]
    assert legend(left) == ["significand", "exponent", "sign", "in the file"]
    assert lines(left)["in the file"].get_xdata() == pytest.approx([8 * 500 / 800, 8 * 80 / 100])
    (bars,) = right.containers
    assert [bar.get_width() for bar in bars] == pytest.approx([62.5, 10.0, 7.5, 5.0, 15.0])
    assert [t.get_text() for t in right.texts] == ["500 B", "80 B", "60 B", "40 B", "120 B"]
    colours = [matplotlib.colors.to_hex(bar.get_facecolor()) for bar in bars]
    assert colours == [style.CYCLE[0]] * 2 + [style.GREY] * 3
    assert "800 bytes" in right.get_xlabel()


def test_shared_values_have_an_index():
    left, _ = figures.bits_per_layer({"1": LayerBits(5, 0, 0)}, {"1": 10}, {"1": 8.0}).axes
    assert legend(left) == ["index of a shared value", "in the file"]


# -- predictions ------------------------------------------------------------------------------


def test_bands_over_one_input_show_the_data():
    own = bands(40)
    (ax,) = over_one_input(bands=own).axes
    wide, narrow = ax.collections
    for drawn, sd in ((wide, own.total), (narrow, own.epistemic)):
        corners = drawn.get_paths()[0].vertices
        for x, mean, deviation in zip(np.linspace(-2, 3, 40), own.mean, sd, strict=True):
            heights = corners[np.isclose(corners[:, 0], x), 1]
            assert heights.min() == pytest.approx(mean - 1.959964 * deviation)
            assert heights.max() == pytest.approx(mean + 1.959964 * deviation)
    assert lines(ax)["mean"].get_ydata() == pytest.approx(own.mean)
    assert len(lines(ax)["test rows"].get_xdata()) == 25


def test_the_legend_says_how_many_rows_the_band_holds():
    at_rows = Bands(np.zeros(25), np.zeros(25), np.ones(25))
    y = np.r_[np.full(20, 1.9), np.full(5, 2.0)]  # 1.96 lies between
    (ax,) = over_one_input(y=y, at_rows=at_rows).axes
    assert "95 % band of a row, holds 80 % of them" in legend(ax)
    (ax,) = over_one_input(at_rows=None).axes
    assert "95 % band of a row" in legend(ax)


def test_intervals_of_predictions_that_are_right_hold_what_they_say():
    y, own = observed_as_said(200)
    left, right = figures.predicted_observed(y, own).axes
    (curve,) = lines(right).values()
    assert curve.get_ydata() == pytest.approx(curve.get_xdata(), abs=1 / 200)
    assert curve.get_label() == "95 % holds 95 % of 200"
    shown = {name: line.get_xydata() for name, line in lines(left).items()}
    assert len(shown["within"]) == 190
    assert len(shown["outside"]) == 10
    beyond = np.abs(y - own.mean) > 1.959964 * own.total
    expected = {(a, b) for a, b in zip(y[beyond], own.mean[beyond], strict=True)}
    assert {tuple(pair) for pair in shown["outside"]} == expected


def test_too_sure_is_below_the_diagonal():
    y, own = observed_as_said(200)
    half = Bands(own.mean, own.epistemic / 2, own.total / 2)
    (curve,) = lines(figures.predicted_observed(y, half).axes[1]).values()
    assert (np.array(curve.get_ydata()) < np.array(curve.get_xdata())).all()


# -- repeats ----------------------------------------------------------------------------------


def test_repeats_are_thin_lines_with_their_mean():
    nats, kl = figures.training_curve(histories()).axes
    for ax, name, of in (
        (nats, "loss", lambda k, e: 2.0 + k - 0.1 * e),
        (kl, "kl", lambda k, e: 3.0 + k * e),
    ):
        *each, mean = ax.lines
        assert len(each) == 3
        for k, (line, n) in enumerate(zip(each, (10, 10, 7), strict=True)):
            assert line.get_xdata().tolist() == list(range(n))
            assert line.get_ydata() == pytest.approx([of(k, e) for e in range(n)])
            assert line.get_linewidth() < mean.get_linewidth() / 2
        assert mean.get_label() == name
        assert mean.get_xdata().tolist() == list(range(7))  # where all three have a value
        expected = [sum(of(k, e) for k in range(3)) / 3 for e in range(7)]
        assert mean.get_ydata() == pytest.approx(expected)
    assert nats.get_title(loc="right") == "thin: each of 3 repeats; thick: their mean"


def test_one_repeat_is_a_single_training():
    single, listed = (figures.training_curve(h).axes for h in (histories()[0], histories()[:1]))
    for one, other in zip(single, listed, strict=True):
        ends = [[line.get_xydata().tolist() for line in ax.lines] for ax in (one, other)]
        assert ends[0] == ends[1]
        assert one.get_title(loc="right") == other.get_title(loc="right") == ""


# -- look -------------------------------------------------------------------------------------


@pytest.mark.parametrize("sight", SIGHTS)
def test_what_stands_together_differs_for_every_kind_of_sight(sight):
    blue, orange, _, _, amber, sky = style.CYCLE
    grey = style.GREY
    together = [(blue, grey), (blue, orange), (blue, amber), (amber, grey), (blue, sky)]
    for one, other in together:
        assert np.linalg.norm(seen_as(one, sight) - seen_as(other, sight)) > 0.15
    shades = [seen_as(style.AMOUNT(k / 8), sight) @ [0.2126, 0.7152, 0.0722] for k in range(9)]
    assert (np.diff(shades) < -0.03).all()  # more is darker, step by step


def test_figures_are_saved_as_pixels_and_as_vectors(tmp_path):
    files = figures.save(EVERY["sparsity"](), tmp_path / "a", ("png", "svg", "pdf"))
    assert [path.read_bytes()[:4] for path in files] == [b"\x89PNG", b"<?xm", b"%PDF"]


def test_the_simplex_is_offered():
    (ax,) = figures.simplex_panels({"a": {"b": [[0.2, 0.3, 0.5]]}}, ["x", "y", "z"]).axes
    x, y = ax.lines[0].get_xydata()[0]
    assert (x, y) == pytest.approx((0.3 + 0.25, 0.5 * math.sqrt(0.75)))
