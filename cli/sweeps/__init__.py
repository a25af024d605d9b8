"""Many runs: every combination of settings, each a process in a folder of its own."""
