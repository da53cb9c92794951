"""Analysis of encoders on a language with syntax and topics: which of the two a training learns first."""

from .. import topic_model as topic_model  # registers words and colours of settings that all encoders share
from ..pictures import LABELS

LABELS |= {"p_syntax": "P of syntax", "p_topic": "P of topics", "bias_gain": "bias gain κ", "order": "Θ"}
