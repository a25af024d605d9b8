"""Rows on the scale of another set, against their original units."""

import dataclasses

import pytest
import torch
from pyroccam.data import Dataset
from pyroccam.inference.posterior.same_rows import on_scale_of, same_inputs, same_targets


def two(shape=(3,), task="regression"):
    """The same rows but for those kept for validation, and so on two scales."""
    generator = torch.Generator().manual_seed(0)
    x = 7.0 + 3.0 * torch.randn(50, *shape, generator=generator)
    y = -40.0 + 9.0 * x.flatten(1)[:, :2]
    y = (y[:, 0] > 20).long() if task == "classification" else y
    made = (
        Dataset.from_tensors(x[:40], y[:40], x[40:], y[40:], val_fraction=0.4, seed=s)
        for s in (0, 1)
    )
    return x[40:], y[40:], *made


@pytest.mark.parametrize("shape", [(3,), (2, 4, 4)])
def test_the_scale_of_another_set(shape):
    x, y, one, other = two(shape)
    assert not torch.allclose(one.x_mean, other.x_mean, rtol=1e-3)
    along = (-1, *[1] * (len(shape) - 1))
    expected = (x - other.x_mean.view(along)) / other.x_std.view(along)
    moved = one.standardised_as(other)
    torch.testing.assert_close(moved.x_test, expected, rtol=1e-4, atol=1e-5)
    targets = (y - other.y_mean) / other.y_std
    torch.testing.assert_close(moved.y_test, targets, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(on_scale_of(one.x_test, one, other), expected, rtol=1e-4, atol=1e-5)
    assert on_scale_of(one.x_test, one, one) is one.x_test


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_which_rows_are_the_same(task):
    _, _, one, other = two(task=task)
    assert same_inputs(one, other, "test")
    assert same_targets(one, other, "test")
    assert not same_inputs(one, other, "val")
    assert not same_inputs(one, two((4,), task)[2], "test")
    turned = dataclasses.replace(other, x_test=other.x_test.flip(0), y_test=other.y_test.flip(0))
    assert not same_inputs(one, turned, "test")
    assert torch.equal(turned.y_test, other.y_test) or not same_targets(one, turned, "test")
