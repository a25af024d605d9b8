import math
from dataclasses import replace

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from drawn import SIGHTS, inside, legend, lines, seen_as, texts_overlap
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PathCollection, QuadMesh
from matplotlib.patches import StepPatch
from pyroccam.data.errors import PyroccamError
from pyroccam.inference import figures
from pyroccam.inference.figures import style
from pyroccam.inference.posterior import metrics
from pyroccam.inference.posterior.depth import DepthStructure


def posterior(n, peak, decay):
    d = np.arange(n)
    p = np.exp(-0.5 * np.maximum(peak - d, 0) ** 2 - decay * d)
    return p / p.sum()


def depth_figure(n=21, **changes):
    d = np.arange(n)
    curve = 0.7 * np.exp(-d / 3) + 0.01
    q, exact = (torch.tensor(posterior(n, n // k, s)) for k, s in ((3, 0.03), (4, 0.16)))
    found = DepthStructure.from_probs(q, exact)
    found = replace(found, depth_chosen=n // 3, depth_chosen_exact=n // 4)
    nll = {"nll_by_depth": {"train": curve, "test": torch.tensor(1.3 * curve)}}
    return figures.depth_posterior(found, **{**nll, **changes})


def spirals_figure(k=5, **changes):
    rng = np.random.default_rng(0)
    grid_x, grid_y = np.linspace(-2, 2, 30), np.linspace(-1, 1, 20)
    slope = grid_x[None, None, :] + 0.3 * np.arange(k)[:, None, None] * grid_y[None, :, None]
    arguments = {
        "x_train": torch.tensor(rng.normal(size=(40, 2))),
        "y_train": torch.tensor([0, 1, 1, 1] * 10),
        "grid_x": grid_x,
        "grid_y": grid_y,
        "probs": 1 / (1 + np.exp(-slope)),
        "depths": [0, 1, 2, 4, 8, 9, 10, 11, 12][:k],
        "q": torch.tensor([1e-9, 0.002, 0.03, 0.25, 0.1, 0.1, 0.1, 0.1, 0.1])[:k],
    }
    return figures.spiral_functions(**{**arguments, **changes})


def reliability(sharpness, seed=0, bins=15, n=600):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, 5, generator=generator, dtype=torch.float64)
    y = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
    return metrics.reliability((sharpness * logits).log_softmax(-1), y, bins)


def history():
    rows = [{"epoch": e, "loss": 2.0 - 0.1 * e, "kl": 3.0 + e, "note": "x"} for e in range(10)]
    for e in (0, 5, 9):
        rows[e]["val_nll"] = torch.tensor(1.5 + e)
    rows[7]["val_nll"] = math.nan
    rows[8]["val_nll"] = None
    return rows


def comparison_figure(**changes):
    arguments = {
        "ddn": {10: [0.2, 0.3, 0.25], 0: [0.5, 0.7], 5: [0.4]},
        "ldn_full": [0.22, 0.26],
        "ldn_pruned": [(6, 0.24), (4, 0.28)],
        "ylabel": "test error",
        "title": "Spirals",
    }
    return figures.depth_comparison(**{**arguments, **changes})


def trade_figure(**changes):
    arguments = {
        "costs": {"bytes": [200, 900, 4000], "ms": [0.2, 0.9, 0.5]},
        "errors": [30.0, 5.0, 4.0],
        "labels": ["0", "3", "12"],
        "chosen": 1,
    }
    return figures.trade_off(**{**arguments, **changes})


def bytes_figure(**changes):
    arguments = {
        "predicted": [40.0, 300.0, 900.0],
        "actual": [200, 700, 1500],
        "weights": [50, 350, 900],
        "labels": ["0", "3", "12"],
        "chosen": 2,
    }
    return figures.bytes_by_bound(**{**arguments, **changes})


def path_figure(**changes):
    columns = {
        "weight": [0.01, 0.1, 1.0, 10.0],
        "scores": [{"nll": nll} for nll in (0.1, 0.12, 0.2, 2.0)],
        "band": [(0.1, 0.13), (0.1, 0.14), (0.18, 0.3), (1.9, 2.1)],
        "small_scores": [{"nll": nll} for nll in (0.1, 0.12, 0.21, 2.0)],
        "file_bytes": [90_000, 4_000, 900, 300],
        "widths": [{"1": units, "3": 10} for units in (50, 48, 20, 2)],
        "depth": [None] * 4,
        **changes,
    }
    points = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return figures.weight_path(points, 1)


EVERY = {
    "path": path_figure,
    "path, bare": lambda: path_figure(widths=[{}] * 4),
    "path, deep": lambda: path_figure(depth=[9, 5, 2, 0]),
    "trade": trade_figure,
    "bytes": bytes_figure,
    "depth, 4": lambda: depth_figure(4),
    "depth, 101": lambda: depth_figure(101),
    "depth, bare": lambda: depth_figure(nll_by_depth=None),
    "spirals, 1": lambda: spirals_figure(1),
    "spirals, 9": lambda: spirals_figure(9),
    "reliability": lambda: figures.reliability_diagram(
        {"DDN": reliability(2), "LDN, pruned": reliability(1.2), "LDN": reliability(1, bins=10)}
    ),
    "training": lambda: figures.training_curve(history()),
    "comparison": comparison_figure,
}


@pytest.mark.parametrize("name", EVERY)
def test_texts_are_legible_and_the_session_is_left_alone(name):
    before = dict(matplotlib.rcParams)
    fig = EVERY[name]()
    assert dict(matplotlib.rcParams) == before
    assert plt.get_fignums() == []
    assert isinstance(fig.canvas, FigureCanvasAgg)
    assert texts_overlap(fig) == []
    assert inside(fig)


def test_a_path_marks_its_choice_on_every_axis():
    axes = path_figure().axes
    assert len(axes) == 3
    assert len(path_figure(widths=[{}] * 4).axes) == 2
    for ax in axes:
        assert any(list(line.get_xdata()) == [0.1, 0.1] for line in ax.get_lines())
    drawn = {tuple(line.get_ydata()) for ax in axes for line in ax.get_lines()}
    assert {(90_000, 4_000, 900, 300), (50, 48, 20, 2), (0.1, 0.12, 0.21, 2.0)} <= drawn
    deep = path_figure(depth=[9, 5, 2, 0]).axes
    assert len(deep) == 4
    assert next(tuple(line.get_ydata()) for line in deep[2].get_lines()) == (9, 5, 2, 0)


def test_settings_come_back_after_an_error():
    before = dict(matplotlib.rcParams)
    with pytest.raises(ValueError, match="same first dimension"):
        depth_figure(nll_by_depth={"test": [2.0]})
    assert dict(matplotlib.rcParams) == before


# -- depth ------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [4, 21, 101])
def test_depth_posterior_shows_the_data(n):
    top, bottom = depth_figure(n).axes
    bars = top.containers[0]
    assert [bar.get_height() for bar in bars] == pytest.approx(posterior(n, n // 3, 0.03))
    assert [bar.get_x() + bar.get_width() / 2 for bar in bars] == pytest.approx(range(n))
    (outline,) = [patch for patch in top.patches if isinstance(patch, StepPatch)]
    values, edges, _ = outline.get_data()
    assert values == pytest.approx(posterior(n, n // 4, 0.16))
    assert edges == pytest.approx(np.arange(n + 1) - 0.5)
    by_q, by_exact = f"chosen by q: {n // 3}", f"by exact posterior: {n // 4}"
    assert legend(top) == ["q(d)", "exact posterior", by_q, by_exact]
    for ax in (top, bottom):
        assert set(lines(ax)[by_q].get_xdata()) == {n // 3}
        assert set(lines(ax)[by_exact].get_xdata()) == {n // 4}
    curve = 0.7 * np.exp(-np.arange(n) / 3) + 0.01
    assert legend(bottom) == ["train", "test"]
    assert lines(bottom)["train"].get_ydata() == pytest.approx(curve)
    assert lines(bottom)["test"].get_ydata() == pytest.approx(1.3 * curve)
    assert bottom.get_xlabel() == "depth d"
    assert all(float(tick).is_integer() for tick in bottom.get_xticks())


def test_depth_posterior_without_the_rest():
    (ax,) = depth_figure(nll_by_depth={}).axes
    assert legend(ax) == ["q(d)", "exact posterior", "chosen by q: 7", "by exact posterior: 5"]
    assert ax.get_xlabel() == "depth d"


@pytest.mark.parametrize(
    ("values", "scale"),
    [([0.01, 0.5, 1.0], "log"), ([0.1, 0.5, 1.0], "linear"), ([-1.0, 0.01, 1.0], "linear")],
)
def test_wide_positive_likelihoods_get_a_logarithmic_axis(values, scale):
    q = torch.tensor([0.2, 0.3, 0.5])
    fig = figures.depth_posterior(DepthStructure.from_probs(q, q), {"test": values})
    assert fig.axes[1].get_yscale() == scale


def test_spiral_functions_show_the_data():
    fig = spirals_figure(5, depth_chosen=4)
    panels, (bar,) = fig.axes[:5], fig.axes[5:]
    titles = [ax.get_title() for ax in panels]
    assert titles == [
        "d = 0,  q < 0.001",
        "d = 1,  q = 0.002",
        "d = 2,  q = 0.030",
        "d = 4,  q = 0.25",
        "d = 8,  q = 0.10",
    ]
    weights = [ax.title.get_fontweight() for ax in panels]
    assert weights == ["normal"] * 3 + ["bold", "normal"]
    assert bar.get_ylabel() == "p(class 1)"
    for k, ax in enumerate(panels):
        (mesh,) = [c for c in ax.collections if isinstance(c, QuadMesh)]
        surface = mesh.get_array()
        assert surface.shape == (20, 30)  # rows run over grid_y, columns over grid_x
        slope = np.linspace(-2, 2, 30)[7] + 0.3 * k * np.linspace(-1, 1, 20)[3]
        assert surface[3, 7] == pytest.approx(1 / (1 + math.exp(-slope)))
        assert mesh.get_clim() == (0, 1)
        points = [c for c in ax.collections if isinstance(c, PathCollection)]
        assert [len(c.get_offsets()) for c in points] == [10, 30]
        assert ax.get_xlim() == (-2, 2)
        assert ax.get_ylim() == (-1, 1)


def test_a_function_that_never_crosses_one_half_has_no_boundary():
    fig = spirals_figure(1, probs=np.full((1, 20, 30), 0.4))
    assert len(fig.axes[0].collections) == 3  # the surface and two classes of points


def test_depth_comparison_shows_the_data():
    (ax,) = comparison_figure().axes
    assert legend(ax) == ["fixed depth, mean ± sd", "learnt depth, all depths", "learnt depth, cut"]
    (fixed,) = ax.containers
    mean, _, (bars,) = fixed
    assert mean.get_xdata().tolist() == [0, 5, 10]
    assert mean.get_ydata() == pytest.approx([0.6, 0.4, 0.25])
    sds = [np.std([0.5, 0.7], ddof=1), 0, np.std([0.2, 0.3, 0.25], ddof=1)]
    assert [np.ptp(s[:, 1]) / 2 for s in bars.get_segments()] == pytest.approx(sds)
    full = lines(ax)["learnt depth, all depths"]
    assert full.get_ydata() == pytest.approx([0.24, 0.24])
    cut = lines(ax)["learnt depth, cut"]
    assert cut.get_xdata().tolist() == [6, 4]
    assert cut.get_ydata() == pytest.approx([0.24, 0.28])
    assert ax.get_ylabel() == "test error"
    assert ax.figure.get_suptitle() == "Spirals"


def test_depth_comparison_of_one_family():
    (ax,) = comparison_figure(ldn_full=[], ldn_pruned=[], title="").axes
    assert legend(ax) == ["fixed depth, mean ± sd"]


# -- calibration and training -----------------------------------------------------------------


def test_reliability_diagram_shows_the_data():
    tables = {"one": reliability(2.0), "two": reliability(1.0, bins=10)}
    top, bottom = figures.reliability_diagram(tables).axes
    names = [f"{name} (ECE {100 * table.ece:.2g} %)" for name, table in tables.items()]
    assert legend(top) == [*names, "under 20 rows"]
    outlines = [patch for patch in bottom.patches if isinstance(patch, StepPatch)]
    for table, name, outline in zip(tables.values(), names, outlines, strict=True):
        trusted = table.counts >= 20
        assert lines(top)[name].get_xdata() == pytest.approx(table.confidence[trusted].numpy())
        assert lines(top)[name].get_ydata() == pytest.approx(table.accuracy[trusted].numpy())
        few = ~trusted & (table.counts > 0)
        assert few.any()
        assert any(
            line.get_markerfacecolor() == "white"
            and len(line.get_xdata()) == few.sum()
            and np.allclose(line.get_xdata(), table.confidence[few])
            for line in top.lines
        )
        values, edges, _ = outline.get_data()
        assert values.tolist() == table.counts.tolist()
        assert edges == pytest.approx(np.linspace(0, 1, len(table.counts) + 1))
    diagonal = top.lines[0]
    assert list(diagonal.get_xdata()) == list(diagonal.get_ydata()) == [0, 1]


def test_training_curve_shows_the_data():
    nats, kl = figures.training_curve(history()).axes
    assert legend(nats) == ["loss", "val nll"]
    assert nats.get_ylabel() == "nats per row"
    assert lines(nats)["loss"].get_xdata().tolist() == list(range(10))
    assert lines(nats)["loss"].get_ydata() == pytest.approx(2.0 - 0.1 * np.arange(10))
    # missing, None and nan are skipped
    assert lines(nats)["val nll"].get_xdata().tolist() == [0, 5, 9]
    assert lines(nats)["val nll"].get_ydata() == pytest.approx([1.5, 6.5, 10.5])
    assert kl.get_ylabel() == "kl"
    assert lines(kl)["kl"].get_ydata() == pytest.approx(3.0 + np.arange(10))
    assert kl.get_xlabel() == "epoch"


def test_training_curve_of_chosen_columns_without_epochs():
    rows = [{"loss": 1.0, "kl": 2.0}, {"loss": 0.5, "kl": 1.0}]
    (ax,) = figures.training_curve(rows, ["kl"]).axes
    assert lines(ax)["kl"].get_xdata().tolist() == [0, 1]
    assert ax.get_xlabel() == "record"


def test_trades_show_the_data():
    """The chosen network is filled, and every cost has its axis."""
    fig = trade_figure()
    assert [ax.get_xlabel() for ax in fig.axes] == ["bytes", "ms"]
    for ax, costs in zip(fig.axes, ([200, 900, 4000], [0.2, 0.9, 0.5]), strict=True):
        _, every, chosen = ax.lines
        assert every.get_xdata().tolist() == costs
        assert chosen.get_xydata().tolist() == [[costs[1], 5.0]]
    ax = bytes_figure().axes[0]
    diagonal, weights, every, chosen = ax.lines
    assert diagonal.get_xdata().tolist() == diagonal.get_ydata().tolist()
    assert weights.get_xydata().tolist() == [[40, 50], [300, 350], [900, 900]]
    assert every.get_xydata().tolist() == [[40, 200], [300, 700], [900, 1500]]
    assert chosen.get_xydata().tolist() == [[900, 1500]]


# -- files and look ---------------------------------------------------------------------------


def test_save_writes_the_same_file_for_the_same_figure(tmp_path):
    target = tmp_path / "new" / "run-0.85"
    written = figures.save(comparison_figure(), target, formats=("png", "svg"))
    assert [path.name for path in written] == ["run-0.85.png", "run-0.85.svg"]
    assert plt.imread(written[0]).shape[1] == 900  # 6 inches at 150 dots
    first = [path.read_bytes() for path in written]
    again = figures.save(comparison_figure(), str(target), formats=("png", "svg"))
    assert [path.read_bytes() for path in again] == first


def test_save_writes_through_no_link(tmp_path):
    (tmp_path / "theirs").write_text("theirs")
    (tmp_path / "a.png").symlink_to(tmp_path / "theirs")
    (path,) = figures.save(spirals_figure(1), tmp_path / "a")
    assert not path.is_symlink()
    assert (tmp_path / "theirs").read_text() == "theirs"


def test_save_writes_undated_pdf(tmp_path):
    (path,) = figures.save(spirals_figure(1), tmp_path / "a", formats=("pdf",))
    assert path.read_bytes().startswith(b"%PDF")
    assert b"CreationDate" not in path.read_bytes()


@pytest.mark.parametrize("formats", [("gif",), "png"])
def test_save_refuses(tmp_path, formats):
    with pytest.raises(PyroccamError):
        figures.save(comparison_figure(), tmp_path / "a", formats=formats)
    assert list(tmp_path.iterdir()) == []


def test_neighbouring_colours_differ_for_every_kind_of_sight():
    """Simulated dichromats (Vienot, Brettel and Mollon 1999) still tell the first three apart."""
    for sight in SIGHTS:
        seen = [seen_as(colour, sight) for colour in style.CYCLE[:3]]
        for i in range(3):
            for j in range(i):
                assert np.linalg.norm(seen[i] - seen[j]) > 0.15
