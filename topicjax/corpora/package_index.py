"""Find a file in the package indexes that pip is configured for; never runs code of a package."""

import base64
import functools
import http.client
import os
import ssl
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Any

from topicjax.errors import UserError

PRINT_DEFAULT = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"  # pip's own index
SECONDS = 60  # timeout
NETWORK_ERRORS = (OSError, http.client.HTTPException, ValueError)


class Links(HTMLParser):
    """The links of an index page, by the name of the file they point to."""

    def __init__(self, page: str) -> None:
        """Store the address of the page, which links may be relative to."""
        super().__init__()
        self.page, self.found = page, {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Store the target of a link."""
        target = dict(attrs).get("href")
        if tag == "a" and target:
            address = urllib.parse.urldefrag(urllib.parse.urljoin(self.page, target)).url
            self.found[urllib.parse.unquote(address.rpartition("/")[2])] = address


def find_file(project: str, filename: str) -> str:
    """Find the address of a project's file, or raise a UserError that says why there is none."""
    options = pip_options()
    refusals = []
    first = options.get("index-url") or ask_python("-c", PRINT_DEFAULT)
    for index in (first, *options.get("extra-index-url", "").split()):
        page = f"{index.rstrip('/')}/{project}/"
        try:
            with open_address(page) as response:
                links = Links(page)
                links.feed(response.read().decode(errors="replace"))
        except NETWORK_ERRORS as error:
            refusals.append(why(error))
            continue
        if filename in links.found:
            return links.found[filename]
    if refusals:
        raise UserError(
            f"the package index does not give {project}: {refusals[0]}; allowed: a network connection, or an "
            "index-url in pip's configuration that has it"
        )
    raise UserError(f"the package index has no {filename} of {project}; allowed: an index that has it")


def open_address(address: str, headers: Mapping[str, str] | None = None) -> Any:
    """Open an address; a folder on this machine answers with its index.html."""
    parts = urllib.parse.urlsplit(address)
    if parts.scheme == "file" and parts.path.endswith("/"):
        parts = parts._replace(path=f"{parts.path}index.html")
    sent = {"Accept": "text/html, */*;q=0.1", "Accept-Encoding": "identity", **(headers or {})}
    user, _, host = parts.netloc.rpartition("@")
    if user:
        sent["Authorization"] = "Basic " + base64.b64encode(urllib.parse.unquote(user).encode()).decode()
    request = urllib.request.Request(urllib.parse.urlunsplit(parts._replace(netloc=host)), headers=sent)
    return urllib.request.urlopen(request, timeout=SECONDS, context=trusted())


@functools.cache
def trusted() -> ssl.SSLContext:
    """Load the certificates to trust: those that pip is configured with, else the system's."""
    return ssl.create_default_context(cafile=pip_options().get("cert"))


@functools.cache
def pip_options() -> dict[str, str]:
    """Read pip's global options by name; those of the environment take precedence."""
    listed = ask_python("-m", "pip", "config", "list").splitlines()
    pairs = [line.partition("=")[::2] for line in listed if line.startswith("global.")]
    found = {name.removeprefix("global."): value.strip("'\"") for name, value in pairs}
    prefix = "PIP_"
    given = {name: value for name, value in os.environ.items() if name.startswith(prefix) and value}
    from_environment = {
        name.removeprefix(prefix).lower().replace("_", "-"): value for name, value in given.items()
    }
    return found | from_environment


def ask_python(*arguments: str) -> str:
    """Run this Python with these arguments and return what it prints; empty if it fails."""
    asked = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    return asked.stdout.strip()


def why(error: Exception) -> str:
    """Explain briefly why an address gave nothing, without naming it."""
    if isinstance(error, urllib.error.HTTPError):
        return f"it answers {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        error = error.reason if isinstance(error.reason, Exception) else error
    words = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    return words.splitlines()[0]
