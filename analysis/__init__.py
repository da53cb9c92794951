"""Answers from a run folder: pandas on parquet; of topicjax settings, theory and store, never jax."""
