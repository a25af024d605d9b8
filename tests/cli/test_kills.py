"""Runs that are killed at random moments, and gone on with, end with the same bits."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

KILLS = Path(__file__).parents[1] / "support" / "kills.py"


@pytest.mark.nightly
def test_four_kills(tmp_path):
    """By a clock and in the midst of writing; `python tests/support/kills.py --kills 200` goes on
    for longer, and 20 of them are part of .ci/run."""
    found = subprocess.run(
        [sys.executable, str(KILLS), "--kills", "4", "--seed", "0"],
        capture_output=True, text=True, check=False, timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert found.stdout.strip() == "4 kills, 0 wrong", found.stdout + found.stderr[-2000:]
