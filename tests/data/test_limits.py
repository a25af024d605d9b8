"""Errors that say what to do, and the limit on memory."""

import pytest
from pyroccam.data.errors import PyroccamError, TooLarge
from pyroccam.data.limits import VARIABLE, allowed_bytes, allowing, ask


@pytest.mark.parametrize(
    ("text", "size"), [("1000", 1000), ("8GB", 2**33), ("3 mib", 3 * 2**20), ("1k", 1024)]
)
def test_the_environment_and_a_context_raise_the_limit(monkeypatch, text, size):
    monkeypatch.setenv(VARIABLE, text)
    assert allowed_bytes() == size
    with allowing(5):
        assert allowed_bytes() == 5
        with pytest.raises(TooLarge):
            ask(6, "it")
    assert allowed_bytes() == size


@pytest.mark.parametrize("text", ["0", "-1", "a lot", "1e9", "GB", "9" * 40])
def test_what_is_no_size_is_refused(monkeypatch, text):
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(PyroccamError):
        allowed_bytes()
