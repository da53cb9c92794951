"""The shipped sweeps, one per file; this file makes the folder installable as topicjax.sweeps."""
