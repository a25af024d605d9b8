"""A network as a draw of a posterior that is trained for the size of its file."""
