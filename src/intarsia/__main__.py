import sys

from intarsia.cli import main

sys.exit(main())
