"""Check the output of `--json` against its documented fields, and write docs/json.md again from the code."""

from pathlib import Path
from typing import Any

from topicjax.cli import json_output
from topicjax.cli.json_output import FIELDS

DOCS = Path(__file__).resolve().parents[2] / "docs" / "json.md"
BEGIN, END = "<!-- fields -->\n", "<!-- end of fields -->"
TYPES: dict[str, Any] = {
    "string": str,
    "number": (int, float),
    "boolean": bool,
    "object": dict,
    "null": type(None),
    "any": object,
}


def redrawn(text: str) -> str:
    """Return the page with the tables as the code has them."""
    head, rest = text.split(BEGIN)
    return f"{head}{BEGIN}\n{json_output.tables()}\n\n{END}{rest.split(END)[1]}"


def check_fields(form: str, content: Any, empty: tuple[str, ...] = ()) -> None:
    """Check that the output of a command has the documented fields, except those of arrays that are empty."""
    seen: set[str] = set()
    check(content, "", FIELDS[form], seen)
    missing = [name for name in FIELDS[form].keys() - seen if not (empty and name.startswith(empty))]
    assert not missing, missing


def check(value: Any, path: str, fields: json_output.Fields, seen: set[str]) -> None:
    """Check a value and all below it, and note the fields that were seen."""
    if path in fields:
        seen.add(path)
        assert is_of_type(value, fields[path][0]), (path, value)
    elif isinstance(value, dict):
        for name, each in value.items():
            check(each, f"{path}.{name}" if path else name, fields, seen)
    else:
        assert isinstance(value, list) and any(name.startswith(f"{path}[]") for name in fields), path
        for each in value:
            check(each, f"{path}[]", fields, seen)


def is_of_type(value: Any, kind: str) -> bool:
    """Whether a value is of a documented type."""
    if kind == "array of strings":
        return isinstance(value, list) and all(isinstance(each, str) for each in value)
    if isinstance(value, bool) and kind != "any":
        return kind == "boolean"
    return any(isinstance(value, TYPES[name]) for name in kind.split(" or "))


if __name__ == "__main__":
    DOCS.write_text(redrawn(DOCS.read_text()))
