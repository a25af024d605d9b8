"""Small networks in files: packed, as a draw, or for other programs."""
