"""Parts of pages: what is escaped, what is folded, what is laid out as a list."""

import numpy as np
import pandas as pd
from markupsafe import Markup

from topicjax.analysis.page import html
from topicjax.analysis.page.contract import Claim, Verdict

HOSTILE = "<script>alert('&')</script>\x1b\x00"
ESCAPED = r"&lt;script&gt;alert(&#39;&amp;&#39;)&lt;/script&gt;\x1b\x00"


def test_a_table_of_more_than_a_dozen_rows_is_folded():
    tables = [
        html.table(pd.DataFrame(dict(x=np.arange(rows))), "Numbers.", "<a>csv</a>") for rows in (12, 13)
    ]
    assert "<details>" not in tables[0] and "<caption>Numbers. <a>csv</a></caption>" in tables[0]
    assert "<summary>Numbers. <a>csv</a> <b>13 rows</b></summary>" in tables[1]
    assert tables[1].count("<tr>") == 14 and "<caption>" not in tables[1]


def test_a_long_caption_is_folded_outside_and_inside_a_table():
    caption = "One. Two. Three."
    short, long = (html.table(pd.DataFrame(dict(x=np.arange(rows))), caption) for rows in (3, 13))
    assert (
        '<caption>One. Two. <details class="more"><summary>more</summary> Three.</details> </caption>'
        in short
    )
    assert "<summary>One. Two.  <b>13 rows</b></summary>" in long and '<p class="sub">Three.</p>' in long


def test_words_are_left_numbers_right_and_nothing_a_dash():
    text = html.table(pd.DataFrame(dict(word=["a", "b"], number=[1.23456, np.nan])), "T.")
    assert '<td class="text">a</td><td>1.235</td>' in text and '<td class="text">b</td><td>-</td>' in text


def test_what_is_given_as_text_is_escaped():
    claim = Claim(HOSTILE, HOSTILE, lambda run, scores: Verdict("holds", HOSTILE), HOSTILE)
    parts = [
        html.paragraph(HOSTILE),
        html.preformatted(HOSTILE),
        html.items([HOSTILE]),
        html.Words({HOSTILE: HOSTILE}).glossary(),
        html.Words([HOSTILE]).glossary(),
        html.Words({HOSTILE: HOSTILE, "b": "B"}).folded(f"a. {HOSTILE} b" * 40),
        html.claims([(claim, claim.check(None, None), HOSTILE)]),
        html.table(pd.DataFrame({HOSTILE: [HOSTILE]}), HOSTILE),
    ]
    for part in parts:
        assert isinstance(part, Markup) and HOSTILE not in part and ESCAPED in part
    page = html.page(HOSTILE, HOSTILE, parts[0], [(HOSTILE, parts[1])])
    assert HOSTILE not in page and page.count(ESCAPED) == 2 + 1 + 2 + 2


def test_words_are_linked_where_they_are_first_used():
    words = html.Words(
        {"V": ("the value matrix", "V|W\\^V"), "V-only": "no attention", "cell": ("seeds", "cells?")}
    )
    text = words.linked("V-only cells: V < W^V, cells")
    link = '<a class="term" href="#word-{0}" aria-describedby="word-{0}">{1}</a>'.format
    expected = f"{link('v-only', 'V-only')} {link('cell', 'cells')}: {link('v', 'V')} &lt; W^V, cells"
    assert text == expected
    assert words.anchor("V-only") == "word-V-only".lower() and words.anchor("cells only") == ""
    assert '<dd id="word-cell">seeds</dd>' in words.glossary()


def test_a_text_is_folded_after_two_sentences():
    assert html.split("One. Two. Three. Four.") == ("One. Two.", "Three. Four.")
    assert html.split("Of 1.5 e.g. this, cells (as in eq. 5) hold.") == (
        "Of 1.5 e.g. this, cells (as in eq. 5) hold.",
        "",
    )
    long = "It holds in 26 of 96 cells, which are these: " + ", ".join(["cell"] * 60) + ". And so on."
    assert html.split(long) == (long[:44], long[45:])
    assert "<details" in html.NO_WORDS.folded(long) and "<details" not in html.NO_WORDS.folded("Short. Text.")


def test_a_page_that_is_not_live_does_not_load_itself_again():
    assert "reload" not in html.page("t", "", "", [])
    assert "location.reload()" in html.page("t", "", "", [], 7) and "7 * 1000" in html.page(
        "t", "", "", [], 7
    )
