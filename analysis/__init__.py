"""Answers from a run folder: pandas and parquet only, neither jax nor the engine is imported."""
