"""Is it up? `health.py server PORT`: something listens there. `health.py site PORT`: a connection to that port stands.

Looks at the machine's own table of connections, so that nothing is opened and no log of the engine fills. Exit code 0 or 1.
"""

import sys
from pathlib import Path

ESTABLISHED, LISTEN = "01", "0A"


def healthy(role: str, port: int, tables: tuple[str, ...] = ("/proc/net/tcp", "/proc/net/tcp6")) -> bool:
    """A row is `sl local remote state …`; an address ends in its port, in hexadecimal."""
    column, state = (1, LISTEN) if role == "server" else (2, ESTABLISHED)
    for table in tables:
        if not Path(table).exists():
            continue
        for row in Path(table).read_text(encoding="ascii").splitlines()[1:]:
            cells = row.split()
            if cells[3] == state and int(cells[column].rsplit(":", 1)[1], 16) == port:
                return True
    return False


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("server", "site") or not sys.argv[2].isdigit():
        sys.exit("usage: health.py server|site PORT")
    sys.exit(0 if healthy(sys.argv[1], int(sys.argv[2])) else 1)
