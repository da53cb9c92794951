"""Parts of a page that cannot take it down: what fails is a sentence, and a defect is logged."""

import html
import logging
from collections.abc import Callable

from topicjax.errors import UserError
from topicjax.store.files import StoreError

logger = logging.getLogger(__name__)


def reason(name: str, error: Exception) -> str:
    """Return why something is not on the page; a defect of topicjax is logged with its traceback."""
    if isinstance(error, UserError | StoreError):
        return str(error)
    logger.error("%s could not be made", name, exc_info=error)
    return f"this is a defect of topicjax, please report it: {type(error).__name__}: {error}"


def absent(what: str, name: str, error: Exception) -> str:
    """Return a paragraph that says what is not there, and why."""
    return f"<p>{what} ({html.escape(name)}): {html.escape(reason(name, error))}.</p>\n"


def part(name: str, make: Callable[..., str], *arguments: object) -> str:
    """Return a part of the page, or a paragraph with the reason why there is none."""
    try:
        return make(*arguments)
    except Exception as error:
        return absent("Not shown", name, error)
