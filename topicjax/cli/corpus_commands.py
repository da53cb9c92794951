"""The command that makes corpora of text."""

import argparse

from topicjax.cli.folder_commands import say
from topicjax.errors import UserError


def make_corpus(options: argparse.Namespace) -> int:
    """Make the corpora of a text, or of Wikipedia, unless they are there."""
    from topicjax.corpora import make
    from topicjax.corpora.corpus import data_folder, read_about

    folder = data_folder()
    if options.text is not None:
        text = make.file_text(options.text, options.name)
    elif options.name is not None:
        raise UserError("--name is given without --text; allowed: with it")
    else:
        text = make.wikipedia_text(folder, options.vocabulary, say)
    made, is_new = make.make_corpora(text, options.vocabulary, folder, say)
    print("Done:" if is_new else "All there already:")
    for path in made:
        about = read_about(path)
        sizes = f"{about['documents']:,} documents, {about['words']:,} words"
        print(f"  {path}   {sizes}, vocabulary {about['vocabulary']:,}, hash {about['hash']}")
    return 0
