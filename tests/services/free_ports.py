"""Prints the first of six free loopback ports in a row.

The first five are SeaweedFS's, which also takes each of them plus 10000; the
sixth is PostgreSQL's. All are below 32768, where Linux begins to hand out
ports for outgoing connections.
"""

import random
import socket


def is_free(port: int) -> bool:
    with socket.socket() as listener:
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


for _ in range(100):
    first = random.randrange(10240, 22000, 10)
    if all(map(is_free, [*range(first, first + 6), *range(first + 10000, first + 10005)])):
        print(first)
        break
else:
    raise SystemExit("no free ports between 10240 and 32000")
