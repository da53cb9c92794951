"""Configuration of the documentation site: `make docs` builds it offline into build/docs/html.

Notebooks are executed in one folder of build/docs, whose runs they share; their outputs are kept beside it,
and other code has another folder.  The reference is made from the code as pages are read (generated.py).
"""

import hashlib
import os
import sys
from pathlib import Path

from topicjax.version import __version__

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
CODE = [
    path for folder in ("topicjax", "analysis", "sweeps") for path in sorted((ROOT / folder).rglob("*.py"))
]
BUILD = (
    ROOT / "build" / "docs" / hashlib.sha256(b"".join(path.read_bytes() for path in CODE)).hexdigest()[:12]
)
sys.path.insert(0, str(HERE))

project, author = "topicjax", "The topicjax developers"
copyright = f"{author}, Apache-2.0"
version = release = __version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "generated"]
exclude_patterns = ["diffs"]
suppress_warnings = ["mystnb.unknown_mime_type"]

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 3

nb_execution_mode = "cache"
nb_execution_cache_path = str(BUILD / "cache")
nb_execution_timeout = 1800  # seconds for a cell, on a busy machine
nb_execution_raise_on_error = True
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # signatures stay readable: docstrings say what is taken
viewcode_line_numbers = True

html_theme = "sphinx_book_theme"
html_title = "topicjax"
html_theme_options = {"show_toc_level": 2, "use_download_button": False, "use_fullscreen_button": False}
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False


def prepare_notebooks() -> None:
    """Start every notebook in one folder outside the sources, with this environment's topicjax."""
    work, startup = BUILD / "work", BUILD / "ipython" / "profile_default" / "startup"
    work.mkdir(parents=True, exist_ok=True)
    startup.mkdir(parents=True, exist_ok=True)
    if not (work / "sweeps").exists():
        (work / "sweeps").symlink_to(ROOT / "sweeps")  # so that the tour takes this folder for its checkout
    (startup / "work.py").write_text(f"import os\n\nos.chdir({str(work)!r})\n")
    os.environ["IPYTHONDIR"] = str(BUILD / "ipython")
    os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))


prepare_notebooks()
