"""Where these tests run: ``--device cpu`` checks what can be checked without a GPU."""

import warnings

import pytest

with warnings.catch_warnings():  # what other libraries say of each other there
    warnings.simplefilter("ignore")
    import torch
    from pyroccam import inference  # noqa: F401


@pytest.fixture(scope="session")
def device(request):
    chosen = torch.device(request.config.getoption("--device"))
    if chosen.type == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs CUDA, or --device cpu")
    return chosen


@pytest.fixture(autouse=True)
def _whole_single_precision(monkeypatch):
    """Convolutions keep to float32, which they are compared in."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
