"""A file system that several machines mount, each of which sees late, and in another order, what
the others do: a new file, a replaced one, one that is gone. Its own changes it sees at once.

python3 latefs.py LEAST MOST SKEW MOUNT...

A change is seen after LEAST to MOST seconds, drawn for each change and machine. The clock of the
file server is SKEW seconds ahead. All is in memory, and ends with the last mount. Needs root, and
Debian's python3-fusepy. Not a test.
"""

from __future__ import annotations

import errno
import random
import stat
import sys
import threading
import time
from typing import Any, NamedTuple

import fusepy


class Node:
    """A file or a folder."""

    def __init__(self, mode: int) -> None:
        self.mode, self.content, self.modified = mode, bytearray(), time.time() + SKEW


class Change(NamedTuple):
    node: Node | None  # what the path names from now on
    seen: list[float]  # by each machine, from when on


LEAST, MOST, SKEW = map(float, sys.argv[1:4])
MOUNTS = sys.argv[4:]
CHANGES: dict[str, list[Change]] = {"/": [Change(Node(stat.S_IFDIR | 0o755), [0.0] * len(MOUNTS))]}
LOCK = threading.Lock()


class Machine(fusepy.Operations):
    """The view of one machine."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.open_files: dict[int, Node] = {}

    def __call__(self, operation: str, *arguments: Any) -> Any:
        with LOCK:
            return super().__call__(operation, *arguments)

    def _find(self, path: str) -> Node | None:
        now = time.monotonic()
        changes = reversed(CHANGES.get(path, ()))
        return next((each.node for each in changes if each.seen[self.number] <= now), None)

    def _node(self, path: str) -> Node:
        node = self._find(path)
        if node is None:
            raise fusepy.FuseOSError(errno.ENOENT)
        return node

    def _change(self, path: str, node: Node | None) -> None:
        now = time.monotonic()
        seen = [now + random.uniform(LEAST, MOST) for _ in MOUNTS]
        seen[self.number] = now
        CHANGES.setdefault(path, []).append(Change(node, seen))

    def _names(self, path: str) -> list[str]:
        below = path.rstrip("/") + "/"
        names = [other[len(below) :] for other in CHANGES if other.startswith(below)]
        return [name for name in names if name and "/" not in name and self._find(below + name)]

    def _opened(self, node: Node) -> int:
        handle = max(self.open_files, default=0) + 1
        self.open_files[handle] = node
        return handle

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        node = self.open_files[fh] if fh in self.open_files else self._node(path)
        size, when = len(node.content), node.modified
        times = {"st_mtime": when, "st_ctime": when, "st_atime": when}
        return {"st_mode": node.mode, "st_nlink": 1, "st_size": size, **times}

    def readdir(self, path: str, fh: int) -> list[str]:
        names = self._names(path)
        random.shuffle(names)
        return [".", "..", *names]

    def mkdir(self, path: str, mode: int) -> None:
        self._change(path, Node(stat.S_IFDIR | mode))

    def rmdir(self, path: str) -> None:
        if self._names(path):
            raise fusepy.FuseOSError(errno.ENOTEMPTY)
        self._change(path, None)

    def create(self, path: str, mode: int, fi: object = None) -> int:
        node = Node(stat.S_IFREG | mode)
        self._change(path, node)
        return self._opened(node)

    def open(self, path: str, flags: int) -> int:
        return self._opened(self._node(path))

    def release(self, path: str, fh: int) -> None:
        del self.open_files[fh]

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return bytes(self.open_files[fh].content[offset : offset + size])

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        node = self.open_files[fh]
        node.content[offset : offset + len(data)] = data
        node.modified = time.time() + SKEW
        return len(data)

    def rename(self, old: str, new: str) -> None:
        self._change(new, self._node(old))
        self._change(old, None)

    def unlink(self, path: str) -> None:
        self._node(path)
        self._change(path, None)

    def statfs(self, path: str) -> dict[str, int]:
        return {"f_bsize": 4096, "f_frsize": 4096, "f_blocks": 2**24, "f_bavail": 2**23}


def mount(number: int) -> None:
    timeouts = {"attr_timeout": 0, "entry_timeout": 0, "negative_timeout": 0}
    options = {"foreground": True, "nothreads": True, "big_writes": True, **timeouts}
    fusepy.FUSE(Machine(number), MOUNTS[number], **options)


if __name__ == "__main__":
    for number in range(len(MOUNTS)):
        threading.Thread(target=mount, args=[number]).start()
