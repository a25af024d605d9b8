"""The application: command line, table of methods, runs in folders and their pages."""
