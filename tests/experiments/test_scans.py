"""The scans: what is run, and their figure."""

import numpy as np
from drawn import inside, texts_overlap

from experiments.published.depth import scans
from experiments.published.depth.panels import ScanPanel, scan_panels


def test_the_points_are_the_sources():
    points = [scans.Point.of(name, value, {}) for name, scan in scans.SCANS.items()
              for value in scan.values]  # fmt: skip
    for p in points:
        network, data = p.config.network_options, p.config.data
        varied = {
            "max-depth": network["max_depth"],
            "fixed-depth": network["max_depth"],
            "degrees": data["turns"],
            "rows": len(p.data.x_train) + len(p.data.x_val),
            "width": network["width"],
        }
        usual = {"max-depth": 20, "degrees": 720, "rows": 200, "width": 20, "fixed-depth": 20}
        for scan, value in varied.items():
            mine = scan == p.scan or ("depth" in scan and "depth" in p.scan)
            assert value == (p.value if mine else usual[scan])
        assert len(p.data.x_test) == 1800
        assert data["noise"] == (0.15 if p.scan in ("rows", "degrees") else 0.2)


def test_the_full_figure_has_no_texts_on_top_of_each_other():
    rng = np.random.default_rng(0)
    panels = []
    for scan in scans.SCANS.values():
        shape = len(scan.values), 4
        error, depth = rng.uniform(0, 50, shape), rng.integers(0, 20, shape)
        depth = None if scan.method == "ddn" else depth
        more = scan.authors, scan.ticks, scan.log
        panels.append(ScanPanel(scan.title, scan.xlabel, scan.values, error, depth, *more))
    fig = scan_panels(panels, "the code\nof others")
    assert texts_overlap(fig) == []
    assert inside(fig)
