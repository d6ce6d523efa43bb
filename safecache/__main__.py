"""``python -m safecache``."""

from __future__ import annotations

import sys

from safecache.cli.main import main

sys.exit(main())
