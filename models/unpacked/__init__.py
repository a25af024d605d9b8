"""Modules of torch that keep several weights in one tensor, made of linear layers instead."""
