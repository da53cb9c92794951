"""Measure how language models see topics: Figure 3, Tables 1 and 2 of the paper."""

from importlib import import_module
from typing import Any

from topicjax.advice import install_command
from topicjax.errors import UserError


def import_extra(name: str) -> Any:
    """Import a package of the extra `text`, or raise a UserError that says how to install it."""
    try:
        return import_module(name)
    except ImportError as error:
        raise UserError(
            f"the probe needs {name}, which is not installed: {install_command('text')}"
        ) from error
