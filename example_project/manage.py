#!/usr/bin/env python
"""Django's command line for the example shop."""

import os
import sys
from pathlib import Path


def main() -> None:
    """Run a command, even from a checkout in which gnlqueue is not installed."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop_site.settings")
    sys.path.append(str(Path(__file__).resolve().parent.parent))
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
