"""The one-layer model (equation 7) and the encoder in eager PyTorch, one trial at a time, without an engine.

Both are as fast as eager code allows: all documents of a batch at once, padded to the longest; weights are
looked up, not multiplied by one-hot vectors; documents are drawn and padded before timing starts.  Equation 7
has one-hot embeddings, no biases, and every position is a key.  The plain version has an output for every
position, as equation 7 does; in the tuned one only masked positions attend, since the others have no loss.
The encoder has heads, residual connections and a tied head, without layer norms, MLP or positions; every
position goes through every layer.  Dimension letters: B documents, N positions, M attending positions of a
document, V vocabulary, D width, H heads, A size of a head.
"""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch  # pyright: ignore[reportMissingImports]

from topicjax.experiments.shared.lda import Documents

lookup, cross_entropy = torch.nn.functional.embedding, torch.nn.functional.cross_entropy


class Batch(NamedTuple):
    """Documents as tensors for the model."""

    shown_BxN: Any
    is_key_BxN: Any
    query_BxM: Any  # what the attending positions show
    target_BxM: Any
    weight_BxM: Any  # the loss is the weighted sum; padding and unmasked positions have weight zero


def batch(documents: Documents, only_masked: bool = False) -> Batch:
    """Pad documents to the longest of them; all positions attend, or only the masked ones."""
    word_BxN, shown_BxN, masked_BxN, present_BxN = map(np.asarray, documents)
    length, masked_B = present_BxN.sum(axis=1).max(), masked_BxN.sum(axis=1)
    attending = max(masked_B.max(), 1) if only_masked else length
    order_BxM = np.argsort(~(masked_BxN if only_masked else present_BxN), axis=1, kind="stable")[
        :, :attending
    ]

    def of_attending(values_BxN: np.ndarray) -> np.ndarray:
        return np.take_along_axis(values_BxN, order_BxM, axis=1)

    weight_B = 1 / (np.maximum(masked_B, 1) * max(np.count_nonzero(masked_B), 1))
    weight_BxM = of_attending(masked_BxN) * weight_B[:, None]
    return Batch(
        torch.tensor(shown_BxN[:, :length], dtype=torch.int64),
        torch.tensor(present_BxN[:, :length]),
        torch.tensor(of_attending(shown_BxN), dtype=torch.int64),
        torch.tensor(of_attending(word_BxN), dtype=torch.int64),
        torch.tensor(weight_BxM, dtype=torch.float32),
    )


class Attention(torch.nn.Module):
    """f = W_V X A with A the attention of eq. (5); weights are stored transposed, one row per token."""

    def __init__(self, W_K: Any, W_Q: Any, W_V: Any) -> None:
        super().__init__()
        self.W_K, self.W_Q, self.W_V = (
            torch.nn.Parameter(torch.tensor(np.ascontiguousarray(np.asarray(matrix).T)))
            for matrix in (W_K, W_Q, W_V)
        )

    def forward(self, batch: Batch) -> Any:
        """Compute the outputs f_BxMxV of the attending positions."""
        K_BxNxA = lookup(batch.shown_BxN, self.W_K)
        Q_BxMxA = lookup(batch.query_BxM, self.W_Q)
        score_BxMxN = torch.bmm(Q_BxMxA, K_BxNxA.transpose(1, 2)) / K_BxNxA.shape[2] ** 0.5
        score_BxMxN = score_BxMxN.masked_fill(~batch.is_key_BxN[:, None, :], -torch.inf)
        return torch.bmm(torch.softmax(score_BxMxN, dim=2), lookup(batch.shown_BxN, self.W_V))


class Encoder(torch.nn.Module):
    """X = W_E tokens; in each layer X = X + attention; outputs X W_E."""

    def __init__(self, weights: dict[str, Any], heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.W_E, self.W_K, self.W_Q, self.W_V = (
            torch.nn.Parameter(torch.tensor(np.asarray(weights[name])))
            for name in ("W_E", "W_K", "W_Q", "W_V")
        )

    def forward(self, batch: Batch) -> Any:
        """Compute the outputs f_BxNxV of all positions."""
        X_BxNxD = lookup(batch.shown_BxN, self.W_E.T)
        B, N, D = X_BxNxD.shape
        is_key_Bx1x1xN = batch.is_key_BxN[:, None, None, :]
        for matrices in zip(self.W_Q, self.W_K, self.W_V, strict=True):
            Q, K, V = (
                (X_BxNxD @ matrix.T).view(B, N, self.heads, -1).transpose(1, 2) for matrix in matrices
            )  # B x H x N x A
            attended = torch.nn.functional.scaled_dot_product_attention(Q, K, V, attn_mask=is_key_Bx1x1xN)
            X_BxNxD = X_BxNxD + attended.transpose(1, 2).reshape(B, N, D)
        return X_BxNxD @ self.W_E


def loss(model: Any, batch: Batch, objective: str) -> Any:
    """Compute eq. (1) with the loss (4) or (3): every document has the same weight."""
    output_RxV, target_R = model(batch).flatten(0, 1), batch.target_BxM.flatten()
    if objective == "cross_entropy":
        loss_R = cross_entropy(output_RxV, target_R, reduction="none")
    else:
        target_RxV = torch.nn.functional.one_hot(target_R, output_RxV.shape[1])
        loss_R = ((output_RxV - target_RxV) ** 2).sum(dim=1)
    return (loss_R * batch.weight_BxM.flatten()).sum()


class EagerTrial:
    """One trial of a model, trained by Adam."""

    def __init__(self, model: Any, batches: Sequence[Batch], learning_rate: float) -> None:
        self.model = model
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=learning_rate)
        self.batches = batches

    def train(self, steps: int) -> None:
        """Take this many steps, one per batch, starting over after the last."""
        for number in range(steps):
            self.optimizer.zero_grad()
            loss(self.model, self.batches[number % len(self.batches)], "cross_entropy").backward()
            self.optimizer.step()

    def use_best_threads(self, choices: Sequence[int], tries: int = 3, steps: int = 5) -> int:
        """Find and set the fastest number of threads, and return it."""
        seconds = dict.fromkeys(choices, float("inf"))
        for threads in list(seconds) * tries:
            torch.set_num_threads(threads)
            self.train(1)
            start = time.monotonic()
            self.train(steps)
            seconds[threads] = min(seconds[threads], time.monotonic() - start)
        best = min(seconds, key=lambda threads: seconds[threads])
        torch.set_num_threads(best)
        return best
