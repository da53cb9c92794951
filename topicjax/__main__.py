"""`python -m topicjax` is the command `topicjax`."""

import sys

from topicjax.cli import main

sys.exit(main())
