"""Which parts a trial trains: V, attention, both."""

import numpy as np
import pandas as pd


def trains_value(trials: pd.DataFrame) -> np.ndarray:
    """Return True where W^V or the embeddings around it are trained."""
    return ((trials["value"] == "trained") | (trials["embedding"] == "trained")).to_numpy()


def trains_attention(trials: pd.DataFrame) -> np.ndarray:
    """Return True where W^K and W^Q are trained."""
    return (trials["attention"] == "trained").to_numpy()


def trains_both(trials: pd.DataFrame) -> np.ndarray:
    """Return True where V and attention are both trained: only these trials can be two-stage."""
    return trains_value(trials) & trains_attention(trials)
