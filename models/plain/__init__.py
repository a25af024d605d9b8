"""Plain networks in words: read, described, rebuilt, and made smaller."""
