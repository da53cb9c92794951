"""Analysis of encoders trained on text: shapes of norms, figures, tables and their page."""

from .. import topic_model as topic_model  # registers the words and colours of all figures here
