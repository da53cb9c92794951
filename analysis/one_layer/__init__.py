"""Analysis of the paper's one-layer model: scores, figures, tables and its page."""

from .. import topic_model as topic_model  # registers the words and colours of all figures here
