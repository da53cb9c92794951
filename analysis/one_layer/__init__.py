"""The one-layer model of the paper: scores, figures, tables and its page."""

from .. import topic_model as topic_model  # its words and colours are those of every figure here
