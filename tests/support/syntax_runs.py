"""Synthetic runs on syntax and topics with given progress of both."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from support.layer_runs import Model, named
from support.layer_runs import folder_of as folder_of_models
from support.synthetic_runs import STEP, make_run, ramp

from topicjax.experiments.syntax.settings import DEFAULTS
from topicjax.store.reader import Run

LINES = dict(
    held_out_unigram=4.0, held_out_topics=3.4, held_out_syntax=3.0, held_out_both=2.4,
    held_out_within_1=3.06, held_out_within_2=3.02,
    held_out_class_unigram=1.4, held_out_class_best=0.4,
    held_out_class_within_1=0.46, held_out_class_within_2=0.42,
    held_out_topic_unigram=1.0, held_out_topic_best=0.4,
    unigram=4.1, topics=3.5, syntax=3.1, both=2.5, within_1=3.16, within_2=3.12,
)  # fmt: skip
WORST = 0.4  # of the class part, above the unigram line, at step 0
KINDS = ("uniform", "positional", "content", "shuffled", "redrawn")
Head = dict[str, Any]


def trial(
    syntax: Any,
    topic: Any,
    heads: Sequence[Head] = ({},),
    step: np.ndarray = STEP,
    status: str = "ok",
    **settings: Any,
) -> Model:
    """Make the row, records and details of a trial; a head has columns that differ from their defaults.

    By default V and the scores that use it rise together with progress.
    """
    syntax, topic = (np.broadcast_to(np.asarray(part, float), step.shape) for part in (syntax, topic))
    word_class = 1.4 - syntax + WORST * (step == 0)
    found = dict(eval_class=word_class, eval_topic=1.0 - 0.6 * topic, eval_word=1.6 + 0 * step)
    found["eval_loss"] = sum(found.values())
    found |= dict(loss=found["eval_loss"], eval_loss_se=0.01, norm_e=5.0)
    found |= {
        f"eval_{part}_{kind}": {"class": 1.9, "topic": 0.7}[part]
        for part in ("class", "topic")
        for kind in KINDS
    }
    details = []
    for number, own in enumerate(heads, start=1):
        columns = dict(norm_v=1 + syntax, norm_k=1 + topic, norm_q=1 + topic, norm_bias=3 * syntax)
        columns |= dict(v_class=syntax, v_topic=topic, content_score=topic)
        columns |= dict.fromkeys(("bias_left_1", "bias_right_1"), 3 * syntax)
        columns |= dict.fromkeys(("bias_left_2", "bias_right_2"), 0 * step)
        details.append(pd.DataFrame(dict(step=step, layer=1, attention_head=number) | columns | own))
    row = dict(status=status, diverged_step=None) | DEFAULTS | dict(record_every=10, rare_every=1) | settings
    return row, pd.DataFrame(dict(step=step) | found), pd.concat(details, ignore_index=True)


def run_of(*trials: Model, lines: dict[str, float] | None = LINES) -> Run:
    """Make a run without a folder; its reference losses hold for all trials."""
    rows, records, details = named(trials)
    entries = [dict(settings={}, values=lines)] if lines else []
    return make_run(rows, records, details=details).replace(manifest=dict(references=entries))


def folder_of(folder: Path, *trials: Model, **manifest: Any) -> Path:
    """Write a run folder of these trials."""
    known = dict(experiment="syntax", sweep="order", references=[dict(settings={}, values=LINES)])
    return folder_of_models(folder, *trials, **known | manifest)


EARLY, LATE, NEVER = ramp(0, 200), ramp(400, 800), 0.4 * ramp(0, 800)  # half way at 100, at 600, and never
