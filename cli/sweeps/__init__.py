"""Many runs: from lists of settings to run folders, by workers that may be killed."""
