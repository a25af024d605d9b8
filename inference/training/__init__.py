"""The training loop: pairs, data and settings in, trained pairs and their history out."""
