"""Claims of a run: those its sweep is about, judged on the run, with unknown names in one sentence."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from topicjax.errors import UserError
from topicjax.store.manifest import last_run
from topicjax.store.reader import Run

from .contract import Claim, Page, Scores, Verdict, entries_of
from .lookup import Found

Explain = Callable[
    [str, BaseException], str
]  # (name of a function, its exception) -> why there is no verdict


class Judged(NamedTuple):
    """A claim and what a run says about it."""

    claim: Claim
    verdict: Verdict


def asked_claims(run: Run, found: Found) -> list[Claim]:
    """Select the claims that the run's sweep is about; raise a UserError if its page lacks one of them.

    A user's file defines the experiment together with its sweep, so without CLAIMS it is about all of them.
    """
    names = last_run(run.manifest).get("claims", [])
    return (
        claims_named(names, found.page, run.experiment) if names or not found.file else [*found.page.claims]
    )


def claims_named(names: Sequence[str], page: Page, experiment: str) -> list[Claim]:
    """Select claims of a page by name, in this order; raise a UserError if it lacks one of them."""
    known = {claim.name: claim for claim in page.claims}
    for name in names:
        if name not in known:
            allowed = ", ".join(map(repr, known)) or "none, its page has no claims"
            raise UserError(f"CLAIMS names {name!r}, which {experiment} does not have; allowed: {allowed}")
    return [known[name] for name in names]


def judge(claim: Claim, run: Run, scores: Scores, explain: Explain) -> Judged:
    """Check a claim on a run; where its check fails, the verdict is undecided and says why."""
    try:
        verdict = claim.check(run, scores)
        if not isinstance(verdict, Verdict):
            raise UserError(f"its check returns {type(verdict).__name__}; allowed: a Verdict")
        return Judged(claim, verdict)
    except (Exception, SystemExit) as error:
        name = getattr(claim.check, "__name__", "check")
        return Judged(claim, Verdict("undecided", f"Not judged: {explain(name, error)}."))


def evidence(claim: Claim, page: Page) -> tuple[str, str]:
    """Find what shows a claim: ("figure" or "table", its name); two empty texts if nothing does."""
    figures = [*page.lead, *(entry for own in entries_of(page.figures, "").values() for entry in own)]
    tables = [entry for own in entries_of(page.tables, "").values() for entry in own]
    for kind, entries in (("figure", figures), ("table", tables)):
        if claim.shown_by and claim.shown_by in {entry.name for entry in entries}:
            return kind, claim.shown_by
    return "", ""
