"""Posteriors as ArviZ wants them: draws and densities in, an `InferenceData` out."""
