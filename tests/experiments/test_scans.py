"""The scans: what is run, and their figure."""

from types import SimpleNamespace

from experiments.published.depth import scans


def test_the_points_are_the_sources():
    given = SimpleNamespace(set={}, data_root=None)
    points = [scans.Point.of(name, value, given) for name, scan in scans.SCANS.items()
              for value in scan.values if scan.data == "spirals"]  # fmt: skip
    for p in points:
        network, data = p.config.network_options, p.config.data
        varied = {
            "max-depth": network["max_depth"],
            "held-depth": network["max_depth"],
            "fixed-depth": network["max_depth"],
            "degrees": data["turns"],
            "rows": len(p.data.x_train) + len(p.data.x_val),
            "width": network["width"],
        }
        usual = {"max-depth": 20, "degrees": 720, "rows": 200, "width": 20, "fixed-depth": 20,
                 "held-depth": 20}  # fmt: skip
        for scan, value in varied.items():
            mine = scan == p.scan or ("depth" in scan and "depth" in p.scan)
            assert value == (p.value if mine else usual[scan])
        assert len(p.data.x_test) == 1800
        assert data["noise"] == (0.15 if p.scan in ("rows", "degrees") else 0.2)
