"""Encoders of text: shapes of norms, figures, tables and their page."""

from .. import topic_model as topic_model  # its words and colours are those of every figure here
