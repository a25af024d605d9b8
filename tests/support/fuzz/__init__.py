"""A fuzzer of everything that a stranger can hand over: files, folders of runs, command lines."""
