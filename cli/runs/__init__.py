"""One run of the command line: from its settings to its folder, and from the folder back."""
