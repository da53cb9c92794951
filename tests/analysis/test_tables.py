"""Tables as files: cells of Markdown show what they hold, cells of a CSV file are no formulas."""

import pandas as pd
import pytest

from topicjax.analysis.tables import markdown_cell, to_csv, to_markdown

CELLS = {
    "a|b": r"a\|b",
    "two\nlines\r\n of  text": "two lines of text",
    "left_out": "left_out",
    "_x_": r"\_x\_",
    "__init__": r"\_\_init\_\_",
    "*x* `y` [z](u)": r"\*x\* \`y\` \[z\](u)",
    "<b>&amp;</b>": r"\<b>\&amp;\</b>",
    "1.5 ± <0.1": "1.5 ± <0.1",
    "back\\slash": r"back\\slash",
    "\x1b[2J": r"\\x1b\[2J",
}


@pytest.mark.parametrize("text", CELLS)
def test_a_cell_of_markdown_shows_its_text(text):
    assert markdown_cell(text) == CELLS[text]


def test_tables_have_as_many_cells_as_columns_whatever_is_in_them(tmp_path):
    table = pd.DataFrame({"a|b": ["x|y\nz", "=1+1"], "n": [-0.5, 2.0]})
    lines = to_markdown(table, {}).splitlines()
    assert lines == [r"| a\|b | n |", "| --- | --- |", r"| x\|y z | -0.5 |", "| =1+1 | 2 |"]
    path = to_csv(table, tmp_path / "t.csv")
    assert path.read_text() == 'a|b,n\n"x|y\nz",-0.5\n\'=1+1,2.0\n'
