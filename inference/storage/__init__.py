"""Runs and plain networks on disk, written and read again, each file whole or not there."""
