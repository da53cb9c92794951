"""Answers from a run folder: pandas on parquet; of topicjax only settings, theory and the store, never jax."""
