"""The shipped sweeps, one per file; this file lets the folder be installed as topicjax.sweeps."""
