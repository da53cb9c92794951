"""Analysis of deeper encoders on topic documents: scores of layers, figures, tables and their page."""

from .. import topic_model as topic_model  # registers the words and colours of all figures here
