"""Claims about encoders on text: the shape of the paper's Figure 5, and whether context is used.

A cell (trials that differ only in the seed) counts by the most frequent shape of its trials; the loss of a
cell is the mean over its seeds, and its error that over held-out windows.
"""

from topicjax.errors import counted
from topicjax.stages import HALF
from topicjax.store.reader import Run

from ..encoder.findings import count_of
from ..frames import Frame
from ..page.contract import Claim, Verdict
from .findings import ERRORS
from .scores import FIGURE5, LEADS, LITTLE, STILL, text_cells


def figure5(run: Run, scores: Frame) -> Verdict:
    """Check that norms of V rise before those of K and Q in every layer, from near zero."""
    layers = text_cells(run, scores)
    layers = layers.loc[~layers["shape"].isin(["diverged", STILL])]
    if layers.empty:
        why = "In no cell do the norms grow: the order of their rises means nothing."
        return Verdict("undecided", why, "a start near zero")
    shown, ahead = (count_of(layers["shape"] == kind) for kind in (FIGURE5, LEADS))
    hits = (layers["shape"] == FIGURE5).groupby(layers["cell"]).mean()
    value, attention = (layers[name].median() for name in ("onset_v", "onset_a"))
    text = (
        f"V first in {shown} of {counted(len(layers), 'layer')} whose norms grow, in every layer of "
        f"{count_of(hits == 1)} of {counted(len(hits), 'cell')}; in {ahead} more layers V is "
        "ahead of K and Q, "
        f"but these have begun by then. V is half way at step {value:.0f}, K and Q at {attention:.0f} "
        f"(medians). The seeds agree in {count_of(layers['agreement'] == 1)} layers."
    )
    verdict = "holds" if shown == len(layers) else "partly" if shown + ahead else "fails"
    change = (
        f"the definition: V first means that K and Q have made less than {LITTLE:.0%} of their "
        "rise when V has "
        f"made {HALF:.0%} of its own."
    )
    return Verdict(verdict, text, change, layers=len(layers), first=shown, ahead=ahead)


def context(run: Run, scores: Frame) -> Verdict:
    """Check that the loss passes the unigram line by more than its error."""
    cells = text_cells(run, scores)
    cells = cells.loc[cells["shape"] != "diverged"].groupby("cell").first()
    if cells.empty:
        return Verdict("undecided", "All models diverged.", "a smaller learning rate")
    surely = cells["below"] > ERRORS * cells["below_se"]
    short = cells["below"] < -ERRORS * cells["below_se"]
    text = (
        f"The final loss is below the unigram line by more than {ERRORS:g} standard errors in "
        f"{count_of(surely)} of {counted(len(cells), 'cell')}, above it by as much in {count_of(short)} "
        f"(difference {-cells['below'].max():+.3f} to {-cells['below'].min():+.3f} nats, standard error over "
        f"held-out windows {cells['below_se'].median():.3f})."
    )
    passing = cells.loc[cells["seeds_passed"] > 0, "passed"]
    if len(passing):
        text += f" It first passes the line at step {passing.min():.0f} to {passing.max():.0f}."
    verdict = "holds" if surely.all() else "partly" if surely.any() else "undecided"
    change = "more steps: a model above the line does not use context yet, whatever its norms do."
    return Verdict(verdict, text, change, cells=len(cells), below=count_of(surely), above=count_of(short))


CLAIMS = (
    Claim(
        "Figure 5",
        "Near a zero start the norms of W^V rise first in all layers; those of W^K and W^Q "
        "follow much later.",
        figure5,
        "section 8.1",
        "figure5",
    ),
    Claim(
        "Context",
        "The stages of Figure 5 are stages of learning from context.",
        context,
        "a reading of section 8.1",
        "text_losses",
    ),
)
