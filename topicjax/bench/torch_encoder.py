"""The encoder in plain eager PyTorch, one trial at a time: what one would write without an engine.

Heads, residual connections and a tied head, without layer norms, MLP or positions.  All documents of a batch
go at once, padded to the longest, every position through every layer.
Dimension letters: B documents, N positions, V vocabulary, D width, H heads, A size of a head.
"""

from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]

from topicjax.bench.torch_eager import Batch, lookup


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
        """Return the outputs f_BxNxV of all positions."""
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
