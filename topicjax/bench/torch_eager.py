"""Models of the benchmarks in eager PyTorch, one trial at a time, without an engine.

All are as fast as eager code allows: all documents of a batch at once, padded to the longest; weights are
looked up, not multiplied by one-hot vectors; documents are drawn and padded before timing starts.  Equation 7
has one-hot embeddings, no biases, and every position is a key.  The plain version has an output for every
position, as equation 7 does; in the tuned one only masked positions attend, since the others have no loss.
In the encoder every position goes through every layer, and only masked positions have outputs; in one layer
on syntax and topics only they attend.  Run as a program, this trains one trial in a process of its own.
Dimension letters: B documents, N positions, M attending positions of a document, V vocabulary, D width,
H heads, A size of a head, O offsets with a relative bias.
"""

import pickle
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch  # pyright: ignore[reportMissingImports]

from topicjax.experiments.shared.lda import Documents

lookup, cross_entropy = torch.nn.functional.embedding, torch.nn.functional.cross_entropy
layer_norm, linear, gelu = (getattr(torch.nn.functional, name) for name in ("layer_norm", "linear", "gelu"))
scaled_dot_product_attention = torch.nn.functional.scaled_dot_product_attention


class Batch(NamedTuple):
    """Documents as tensors for the model."""

    shown_BxN: Any
    is_key_BxN: Any
    place_BxM: Any  # the attending positions, counted through all documents
    query_BxM: Any  # what they show
    target_BxM: Any
    weight_BxM: Any  # the loss is the weighted sum; padding and unmasked positions have weight zero
    near_BxMxNxO: Any = None  # 1 where a key is at an offset from an attending position


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
        torch.tensor(order_BxM + length * np.arange(len(order_BxM))[:, None], dtype=torch.int64),
        torch.tensor(of_attending(shown_BxN), dtype=torch.int64),
        torch.tensor(of_attending(word_BxN), dtype=torch.int64),
        torch.tensor(weight_BxM, dtype=torch.float32),
    )


def only_targets(batch: Batch) -> Batch:
    """Keep as attending positions only those with a loss, of all documents in one row."""
    has_loss = batch.weight_BxM > 0
    return Batch(*batch[:2], *(part[has_loss][None] for part in batch[2:6]))


def with_offsets(batch: Batch, reach: int) -> Batch:
    """Mark the keys at each offset from -reach to reach, without 0, of every attending position."""
    place_N = torch.arange(batch.shown_BxN.shape[1])
    offset_O = torch.tensor([offset for offset in range(-reach, reach + 1) if offset])
    apart_BxMxN = place_N[None, None, :] - (batch.place_BxM % len(place_N))[:, :, None]
    return batch._replace(near_BxMxNxO=(apart_BxMxN[..., None] == offset_O).float())


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
    """The encoder of `experiments.shared`, without post-norms; outputs at the attending positions.

    A relative bias R is for one layer, in which only the attending positions have queries.
    """

    def __init__(
        self, weights: dict[str, Any], heads: int, layer_norm: str = "none", bias_gain: float = 0.0
    ) -> None:
        super().__init__()
        self.heads, self.is_pre, self.bias_gain = heads, layer_norm == "pre", bias_gain
        needed = [name for name in weights if self.is_pre or not name.startswith(("gain_", "bias_"))]
        self.weights = torch.nn.ParameterDict(
            {name: torch.nn.Parameter(torch.tensor(np.asarray(weights[name]))) for name in needed}
        )

    def forward(self, batch: Batch) -> Any:
        """Compute the outputs f_BxMxV of the attending positions."""
        own = self.weights
        X_BxNxD = lookup(batch.shown_BxN, own["W_E"].T)
        B, N, D = X_BxNxD.shape
        if "W_P" in own:
            X_BxNxD = X_BxNxD + own["W_P"].T[:N]
        if "R" in own:
            return self.outputs(self.attended_by_few(batch, X_BxNxD))
        is_key_Bx1x1xN = batch.is_key_BxN[:, None, None, :]
        for layer in range(len(own["W_K"])):
            inside = self.normed(X_BxNxD, "attention", layer)
            matrices = torch.cat([own[name][layer] for name in ("W_Q", "W_K", "W_V")])
            Q, K, V = map(self.in_heads, (inside @ matrices.T).chunk(3, 2))
            attended = scaled_dot_product_attention(Q, K, V, attn_mask=is_key_Bx1x1xN)
            attended = attended.transpose(1, 2).reshape(B, N, D)
            X_BxNxD = X_BxNxD + (attended @ own["W_O"][layer].T if "W_O" in own else attended)
            if "W_1" in own:
                inside = self.normed(X_BxNxD, "mlp", layer)
                hidden = gelu(linear(inside, own["W_1"][layer], own["b_1"][layer]), approximate="tanh")
                X_BxNxD = X_BxNxD + linear(hidden, own["W_2"][layer], own["b_2"][layer])
        return self.outputs(X_BxNxD.reshape(B * N, D)[batch.place_BxM])

    def outputs(self, X_BxMxD: Any) -> Any:
        """Compute outputs from last states."""
        own = self.weights
        if self.is_pre:
            X_BxMxD = layer_norm(X_BxMxD, X_BxMxD.shape[2:], own["gain_last"], own["bias_last"])
        output_BxMxV = X_BxMxD @ own["W_E"]
        return output_BxMxV + own["b_pred"] if "b_pred" in own else output_BxMxV

    def attended_by_few(self, batch: Batch, X_BxNxD: Any) -> Any:
        """Compute the states after one layer of attending positions, with a bias by offset."""
        own = self.weights
        X_BxMxD = X_BxNxD.flatten(0, 1)[batch.place_BxM]
        matrices = torch.cat([own["W_K"][0], own["W_V"][0]])
        K, V = map(self.in_heads, (X_BxNxD @ matrices.T).chunk(2, 2))
        bias_BxMxNxH = batch.near_BxMxNxO @ (self.bias_gain * own["R"][0].T)
        added = bias_BxMxNxH.permute(0, 3, 1, 2).masked_fill(~batch.is_key_BxN[:, None, None, :], -torch.inf)
        attended = scaled_dot_product_attention(
            self.in_heads(X_BxMxD @ own["W_Q"][0].T), K, V, attn_mask=added
        )
        return X_BxMxD + attended.transpose(1, 2).flatten(2)

    def in_heads(self, X_BxRxD: Any) -> Any:
        """Split off the axis of heads: B x H x R x A."""
        return X_BxRxD.unflatten(2, (self.heads, -1)).transpose(1, 2)

    def normed(self, X_BxNxD: Any, kind: str, layer: int) -> Any:
        """Apply a layer norm, if the model has any."""
        if not self.is_pre:
            return X_BxNxD
        gain, bias = (self.weights[f"{name}_{kind}"][layer] for name in ("gain", "bias"))
        return layer_norm(X_BxNxD, gain.shape, gain, bias)


def loss(model: Any, batch: Batch, objective: str) -> Any:
    """Compute eq. (1) with the loss (4) or (3): every document has the same weight."""
    output_RxV, target_R = model(batch).flatten(0, 1), batch.target_BxM.flatten()
    if objective == "cross_entropy":
        loss_R = cross_entropy(output_RxV, target_R, reduction="none")
    else:
        target_RxV = torch.nn.functional.one_hot(target_R, output_RxV.shape[1])
        loss_R = ((output_RxV - target_RxV) ** 2).sum(dim=1)
    return (loss_R * batch.weight_BxM.flatten()).sum()


class LinearAttention(torch.nn.Module):
    """The tiny model of `linear_attention`: its forward pass is the loss."""

    def __init__(self, weights: dict[str, Any]) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterDict(
            {name: torch.nn.Parameter(torch.tensor(np.asarray(weights[name]))) for name in weights}
        )

    def forward(self, prompts: Sequence[Any]) -> Any:
        """Compute the mean squared error of the predictions."""
        (pairs_BxNxD, query_BxD, label_B), own = prompts, self.weights
        key_BxNxD, value_BxNxD = linear(pairs_BxNxD, own["W_K"]), linear(pairs_BxNxD, own["W_V"])
        score_BxNx1 = torch.bmm(key_BxNxD, linear(query_BxD, own["W_Q"])[:, :, None])
        output_BxD = torch.bmm(score_BxNx1.transpose(1, 2), value_BxNxD)[:, 0] / pairs_BxNxD.shape[1]
        return torch.nn.functional.mse_loss(output_BxD[:, -1], label_B)


def cross_entropy_loss(model: Any, batch: Batch) -> Any:
    """Compute eq. (1) with the loss (4)."""
    return loss(model, batch, "cross_entropy")


class EagerTrial:
    """One trial of a model, trained by Adam."""

    def __init__(
        self,
        model: Any,
        batches: Sequence[Any],
        learning_rate: float,
        loss: Callable[[Any, Any], Any] = cross_entropy_loss,
    ) -> None:
        self.model, self.loss = model, loss
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=learning_rate)
        self.batches = batches

    def train(self, steps: int) -> None:
        """Take this many steps, one per batch, starting over after the last."""
        for number in range(steps):
            self.optimizer.zero_grad()
            self.loss(self.model, self.batches[number % len(self.batches)]).backward()
            self.optimizer.step()


def given_trial(given: dict[str, Any]) -> EagerTrial:
    """Make the trial that a process was given."""
    rate = given["learning_rate"]
    if given["model"] == "linear_attention":
        prompts = [tuple(map(torch.tensor, each)) for each in given["prompts"]]
        return EagerTrial(LinearAttention(given["weights"]), prompts, rate, lambda model, batch: model(batch))
    weights, documents = given["weights"], [Documents(*each) for each in given["documents"]]
    if given["model"] == "attention":
        return EagerTrial(
            Attention(**weights), [batch(each, given["only_masked"]) for each in documents], rate
        )
    if "R" in weights:  # one layer: only masked positions attend
        batches = [with_offsets(batch(each, True), weights["R"].shape[2] // 2) for each in documents]
    else:
        batches = [only_targets(batch(each)) for each in documents]
    model = Encoder(weights, given["heads"], given["layer_norm"], given["bias_gain"])
    return EagerTrial(model, batches, rate)


def serve(stdin: Any, stdout: Any) -> None:
    """Read a trial, train it for as many steps as the numbers that follow say, and answer each."""
    given = pickle.load(stdin)
    torch.set_num_threads(given["threads"])
    trial = given_trial(given)
    while True:
        try:
            steps = pickle.load(stdin)
        except EOFError:
            return
        trial.train(steps)
        pickle.dump(steps, stdout)
        stdout.flush()


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
