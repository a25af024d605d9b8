"""Trials of how much network there should be: from a data set to a row for each contender."""
