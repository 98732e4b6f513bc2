"""`python -m ropewalk.cli` is `ropewalk`."""

import sys

from ropewalk.cli.main import main

sys.exit(main())
