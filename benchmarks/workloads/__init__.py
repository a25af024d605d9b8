"""Workloads to time: a step of each kind, with everyone who takes it."""
