"""The page of runs on text: the paper's Figure 5 with the losses below it."""

from ..page.contract import Chart, Entry, Page, Staged
from .claims import CLAIMS
from .figures import text_layers
from .findings import WORDS, findings
from .scores import FIGURE5, NO_CONTEXT, SCORES_FILE, STILL, UNIFORM_FIRST, UNIFORM_ONLY, score_text
from .tables import context_stages, layer_shapes, text_losses

PAGE = Page(
    score=score_text,
    of_trials=lambda scores: scores.filter(["trial_id"]).drop_duplicates().reset_index(drop=True),
    staged=(
        Staged(
            *("single layers, norms", (FIGURE5,), (STILL,), "shape"),
            words="the norms of W^V and of W^K and W^Q of each layer",
            rows=lambda scores: scores,
            unit="layer",
        ),
        Staged(
            *("context", (UNIFORM_FIRST,), (UNIFORM_ONLY, NO_CONTEXT), "class_context", "theta_context"),
            by="loss",
            words="what uniform attention has below the unigram line, and what trained attention adds there",
            rows=lambda scores: scores.drop_duplicates("trial_id"),
        ),
    ),
    charts=(
        Chart("Held-out loss", {"eval_loss": "loss", "eval_loss_unigram": "unigram line"}, references=True),
    ),
    claims=CLAIMS,
    findings=findings,
    figures={"Figure 5 on text": (Entry("figure5", text_layers),)},
    tables={
        "Tables": (
            Entry(
                "text_losses",
                text_losses,
                title="Final held-out losses with attention as trained, forced uniform and silenced in all "
                "layers, mean and standard error over seeds; the unigram line, and how far below it the "
                "loss is, with the standard error over held-out windows, which are the same for all seeds",
            ),
            Entry(
                "context_stages",
                context_stages,
                title="Cells that come to use context: the step from which they significantly do, norms of "
                "each layer around it, and how far the loss is below the unigram line, then and at the end; "
                "medians over seeds",
            ),
            Entry(
                "layer_shapes",
                layer_shapes,
                title="Layers: most frequent shape of the norms, and medians over seeds of the steps at "
                "which V, and K and Q, have made half of their rise",
            ),
        )
    },
    words=WORDS,
    replaces=("details",),
    file=SCORES_FILE,
    file_holds="one row per trial and layer: shape and onsets of norms, step at the unigram line",
)
