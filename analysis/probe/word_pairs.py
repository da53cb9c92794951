"""Draw Figure 3 and the numbers of Tables 1 and 2: similarity of words, attention between words."""

import itertools

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from topicjax.errors import counted

from ..frames import Frame
from ..pictures import SMALL, WIDTH, Picture, style

COLOURS = {"one": "#0072B2", "several": "#D55E00"}
LABELS = {"one": "one topic per word", "several": "one or several topics per word"}
GROUP = 3  # words of a topic in Figure 3
COLUMNS = 2  # of panels


def models_of(frame: Frame) -> list[str]:
    """List the models of a frame, in its order."""
    return list(dict.fromkeys(frame["model"]))


def panels(count: int, height: float, sharey: bool = False) -> tuple[Figure, list[Axes]]:
    """Make a figure with `count` panels in rows of two."""
    columns = min(COLUMNS, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(WIDTH * (1 if columns > 1 else 0.75), rows * height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharey=sharey).ravel()
    for ax in axes[count:]:
        ax.set_axis_off()
    return figure, list(axes[:count])


def legend_below(figure: Figure, ax: Axes) -> None:
    """Put one legend for all panels below them."""
    handles, labels = ax.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", fontsize=SMALL)


def nine_words(nine: Frame) -> Picture:
    """Draw the cosine of each pair of Figure 3's words, a panel per model."""
    names = models_of(nine)
    with style():
        figure, axes = panels(len(names), 2.75)
        image = None
        for ax, name in zip(axes, names, strict=True):
            own = nine[nine["model"] == name]
            words = list(dict.fromkeys(own["word"]))
            cosine = own["cosine"].to_numpy(float).reshape(len(words), len(words))
            image = ax.imshow(
                np.where(np.eye(len(words)) == 1, np.nan, cosine), cmap="viridis", vmin=-0.1, vmax=0.8
            )
            write_cells(ax, cosine)
            ax.set_xticks(range(len(words)), words, rotation=90)
            ax.set_yticks(range(len(words)), words)
            for place in range(GROUP, len(words), GROUP):
                ax.axhline(place - 0.5, color="white", linewidth=2)
                ax.axvline(place - 0.5, color="white", linewidth=2)
            ax.set_title(name)
        if image is not None:
            figure.colorbar(
                image, ax=axes, label="cosine of the embeddings", shrink=0.6, location="bottom", aspect=40
            )
    caption = (
        "Animals, composers, mathematics: cosine of the word embeddings (the first matrix of the model, no "
        "context). A word of several pieces has the mean of their embeddings. Numbers are in hundredths; the "
        "diagonal is left out."
    )
    alt = f"Nine by nine heat maps of cosines for {', '.join(names)}."
    return Picture(figure, "Nine words of three topics (Figure 3 of the paper)", caption, alt)


def write_cells(ax: Axes, cosine: np.ndarray) -> None:
    """Write the numbers of a heat map in hundredths, except its diagonal."""
    for row, column in np.ndindex(cosine.shape):
        if row != column and np.isfinite(cosine[row, column]):
            colour = "black" if cosine[row, column] > 0.4 else "white"
            text = f"{100 * cosine[row, column]:.0f}".replace("-0", "0")
            ax.text(column, row, text, ha="center", va="center", fontsize=6, color=colour)


def embedding_differences(embeddings: Frame) -> Picture:
    """Draw how much more similar same-topic words are, against the threshold, a panel per model."""
    names = models_of(embeddings)
    with style():
        figure, axes = panels(len(names), 2.1, sharey=True)
        for place, (ax, name) in enumerate(zip(axes, names, strict=True)):
            for shift, (pairing, colour) in zip((-0.08, 0.08), COLOURS.items(), strict=True):
                own = embeddings[(embeddings["model"] == name) & (embeddings["pairing"] == pairing)]
                x = np.arange(len(own))
                mean, error = own["cosine_difference"], 2 * own["cosine_difference_se"]
                label = LABELS[pairing]
                ax.errorbar(
                    x + shift, mean, error, fmt="o", color=colour, label=label, capsize=2, markersize=4
                )
                ax.set_xticks(x, [f"{t:g}" for t in own["threshold"]])
                ax.set_xlim(-0.5, len(own) - 0.5)
            ax.axhline(0, color="0.7", linewidth=0.7)
            ax.set_title(name)
            ax.set_xlabel("ambiguity threshold")
            if place % COLUMNS == 0:
                ax.set_ylabel("difference in cosine")
        legend_below(figure, axes[0])
    caption = (
        "Average cosine of the embeddings of two different words of the same topic, minus that of words of "
        f"different topics; mean over {counted(int(embeddings['fits'].max()), 'topic fit')}, bars are two "
        "standard errors, which include the spread over fits. The threshold is the number of words kept per "
        "topic, divided by the vocabulary."
    )
    alt = f"Difference of the average cosines within and between topics for {', '.join(names)}."
    return Picture(figure, "Embeddings of same-topic and different-topic words (Table 1)", caption, alt)


def attention_layers(attention: Frame, threshold: float) -> Picture:
    """Draw how much more attention same-topic words get in each layer, a panel per model."""
    chosen = attention["pairing"].isin(COLOURS) & (attention["threshold"] == threshold)
    rows = attention[chosen & (attention["layer"] > 0)]
    names = models_of(rows)
    with style():
        figure, axes = panels(len(names), 2.2, sharey=True)
        for place, (ax, name) in enumerate(zip(axes, names, strict=True)):
            for (pairing, colour), kind in itertools.product(COLOURS.items(), ("", "matched_")):
                own = rows[(rows["model"] == name) & (rows["pairing"] == pairing)]
                mean, error = (own[f"{kind}difference{end}"].to_numpy(float) for end in ("", "_se"))
                label = LABELS[pairing] + (", at equal distance" if kind else "")
                dash = ":" if kind else "-"
                ax.plot(own["layer"], mean, dash, color=colour, marker="o", markersize=3, label=label)
                ax.fill_between(
                    own["layer"], mean - 2 * error, mean + 2 * error, color=colour, alpha=0.15, linewidth=0
                )
                ax.set_xticks(own["layer"])
            ax.axhline(0, color="0.6", linewidth=0.7)
            ax.set_xlabel("layer")
            ax.set_title(name)
            if place % COLUMNS == 0:
                ax.set_ylabel("difference in attention")
        legend_below(figure, axes[0])
    caption = (
        "Average attention between two different words of a window, over heads, times the number of keys (1 "
        "is uniform attention): that of words of the same topic minus that of words of different topics. "
        f"Threshold {threshold:g}; bands are two standard errors, over windows and topic fits. Dotted: "
        "different topics at the distances of the same-topic pairs, so that distance explains nothing."
    )
    alt = f"Difference in attention of same-topic and different-topic pairs by layer for {', '.join(names)}."
    return Picture(figure, "Attention between same-topic and different-topic words, by layer", caption, alt)
