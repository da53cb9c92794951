"""Entry point of `python -m topicjax`: the same as the command `topicjax`."""

import sys

from topicjax.cli import main

sys.exit(main())
