"""The child that touches the machine, so that a call which never returns blocks only itself.

Runs as a script with nothing but the standard library: `python -I -S worker.py ROOT MARK`. It
reads one JSON line a request, {"asks": [...]}, and answers the asks in their order, in JSON lines
that hold a list of answers each. Contents, names and paths are Latin-1, so that any byte passes:
    {"op": "read", "path": …, "limit": n}  -> {"ok": content} | {"errno": NAME, "note": …}
    {"op": "list" | "link" | "device" | "open", "path": …}
    {"op": "space", "path": …}             -> {"ok": {"size": bytes, "free": bytes}}
    {"op": "lock", "size": bytes}          -> {"ok": "" or the errno of the refusal}
    {"op": "run", "command": […], "seconds": n}
    {"op": "kernel log"}                   -> {"ok": the ring buffer's text}
In the file open as descriptor MARK stands the number of the ask that it is at, in 4 bytes: so the
parent knows which one hangs, although answers go out several at a time.
Below another root, and below /proc/PID/root, which tenants fill, paths are resolved with
openat2 inside that root: absolute links stay inside, magic links are refused, and only regular
files are read, without waiting.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import sys

_TENANT = re.compile(r"^(/proc/[0-9]+/root)(/.*)$")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_OPENAT2 = 437
_IN_ROOT, _NO_MAGIC_LINKS = 0x10, 0x02
_MOST_OUTPUT = 8 << 20
_MOST_NAMES = 1 << 16
_PIECE = 1 << 15
"""Answers of about so many bytes go out in one line: each write wakes the one who reads."""
_PAGE = 1 << 12
"""What a file of sysfs has at most; room for more would cost more than most reads do."""
_OVERHEAD = 16
"""Bytes of an answer beside its content."""
_ON_FAULT = 1
_MAP_FAILED = (1 << 64) - 1
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_SYSLOG_READ_ALL, _SYSLOG_SIZE = 3, 10


class OpenAt2:
    """The system call, made ready once: a reading makes thousands of it."""

    def __init__(self) -> None:
        import ctypes  # imported late: only other roots need it

        self._ctypes = ctypes
        self._syscall = ctypes.CDLL(None, use_errno=True).syscall
        self._how = (ctypes.c_uint64 * 3)()  # struct open_how: flags, mode, resolve
        self._how[2] = _IN_ROOT | _NO_MAGIC_LINKS

    def __call__(self, directory: int, path: str, flags: int) -> int:
        """Open a path inside a directory as if that were the root; OSError as os.open."""
        ctypes = self._ctypes
        self._how[0] = flags | os.O_CLOEXEC
        size = ctypes.sizeof(self._how)
        found = self._syscall(_OPENAT2, directory, os.fsencode(path), self._how, size)
        if found < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), path)
        return int(found)


class Tree:
    """Opens paths of the host whose root is mounted at `root`."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._openat2: OpenAt2 | None = None
        self._top: int | None = None

    def open(self, path: str, flags: int) -> int:
        """Open a path for the given flags, never following links out of a foreign root."""
        tenant = _TENANT.match(path)
        if tenant is not None:
            inside = os.open(self._root + tenant[1], os.O_PATH | os.O_DIRECTORY)
            try:
                return self._open_inside(inside, tenant[2], flags)
            finally:
                os.close(inside)
        if not self._root:
            return os.open(path, flags)
        if self._top is None:
            self._top = os.open(self._root, os.O_PATH | os.O_DIRECTORY)
        return self._open_inside(self._top, path, flags)

    def _open_inside(self, directory: int, path: str, flags: int) -> int:
        self._openat2 = self._openat2 or OpenAt2()
        return self._openat2(directory, path, flags)

    def read(self, path: str, limit: int) -> str:
        """Read a regular file, at most `limit` bytes."""
        descriptor = self.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(mode):
                raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, "not a file")
            parts: list[bytes] = []
            left, most = limit, _PAGE
            while left > 0 and (part := os.read(descriptor, min(left, most))):
                parts.append(part)
                left -= len(part)
                most = _PIECE
            return b"".join(parts).decode("latin-1")
        finally:
            os.close(descriptor)

    def names(self, path: str) -> list[str]:
        """List a directory."""
        descriptor = self.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK)
        try:
            return list(map(_any_bytes, sorted(os.listdir(descriptor))[:_MOST_NAMES]))
        finally:
            os.close(descriptor)

    def link(self, path: str) -> str:
        """Read a symbolic link."""
        parent, _, name = path.rpartition("/")
        descriptor = self.open(parent or "/", os.O_PATH | os.O_DIRECTORY)
        try:
            return _any_bytes(os.readlink(name, dir_fd=descriptor))
        finally:
            os.close(descriptor)

    def device(self, path: str) -> dict[str, object]:
        """Describe a character device without opening it."""
        descriptor = self.open(path, os.O_PATH)
        try:
            found = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        if not stat.S_ISCHR(found.st_mode):
            raise OSError(errno.ENODEV, "not a character device")
        return {
            "char": [os.major(found.st_rdev), os.minor(found.st_rdev)],
            "mode": f"{stat.S_IMODE(found.st_mode):04o}",
            "uid": found.st_uid,
            "gid": found.st_gid,
        }

    def try_open(self, path: str) -> str:
        """Open a device read-write and close it again, as the workload would."""
        os.close(self.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY))
        return ""

    def space(self, path: str) -> dict[str, int]:
        """Return the size of the file system that a directory is on, and what is free of it."""
        descriptor = self.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK)
        try:
            found = os.fstatvfs(descriptor)
        finally:
            os.close(descriptor)
        return {"size": found.f_blocks * found.f_frsize, "free": found.f_bavail * found.f_frsize}


def _any_bytes(name: str) -> str:
    """Return a file's name with its bytes as characters."""
    return os.fsencode(name).decode("latin-1")


def try_lock(size: int) -> str:
    """Lock so many bytes and let them go; return the errno of a refusal, "" for success.

    The kernel charges the limit at once. MLOCK_ONFAULT on a mapping that nobody touches makes
    it bring in no page, so that a try of any size costs no memory and no container its life.
    """
    import ctypes  # imported late: asked once
    import mmap

    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    whole = ctypes.c_int
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, whole, whole, whole, ctypes.c_long)
    size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    address = ctypes.c_void_p(libc.mmap(None, size, mmap.PROT_READ, flags, -1, 0))
    if address.value == _MAP_FAILED:
        raise OSError(ctypes.get_errno(), "no address space for the try")
    try:
        if libc.mlock2(address, ctypes.c_size_t(size), _ON_FAULT) == 0:
            return ""
        number = ctypes.get_errno()
    except AttributeError:
        raise OSError(errno.ENOSYS, "this C library has no mlock2") from None
    finally:
        libc.munmap(address, ctypes.c_size_t(size))
    if number not in (errno.ENOMEM, errno.EPERM, errno.EAGAIN):
        raise OSError(number, "mlock2")
    return errno.errorcode[number]


def kernel_log(tree: Tree) -> str:
    """Return the kernel's ring buffer by syslog(2), as `dmesg -r` prints it.

    The call needs neither a program nor /dev/kmsg, which a container's device cgroup refuses; it
    needs CAP_SYSLOG where dmesg_restrict is set. It tells of the kernel that we run on: of a tree
    of another machine nothing is known.
    """
    import ctypes  # imported late: asked once

    with open(_BOOT_ID, encoding="ascii") as own:
        if tree.read(_BOOT_ID, 64) != own.read():
            raise OSError(errno.ENOSYS, "the tree is of another machine")
    libc = ctypes.CDLL(None, use_errno=True)
    size = libc.klogctl(_SYSLOG_SIZE, None, 0)
    buffer = ctypes.create_string_buffer(max(size, 1))
    length = libc.klogctl(_SYSLOG_READ_ALL, buffer, len(buffer)) if size >= 0 else size
    if length < 0:
        raise OSError(ctypes.get_errno(), "syslog")
    return buffer.raw[: min(length, _MOST_OUTPUT)].decode("latin-1")


def run(command: list[str], seconds: float) -> dict[str, object]:
    """Run a command in its own session, with a fixed search path and next to no environment."""
    import signal  # imported late: most readings start no program
    import subprocess

    process = subprocess.Popen(  # noqa: S603 - an argument list, never a shell
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"PATH": _PATH, "LC_ALL": "C"},
        cwd="/",
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return {"errno": "ETIMEDOUT", "note": f"{command[0]} took more than {seconds:g} s"}
    if process.returncode:
        last = err.decode("utf-8", "replace").strip().splitlines()[-1:] or [""]
        return {"errno": "EXIT", "note": f"status {process.returncode}: {last[0][:200]}"}
    return {"ok": out[:_MOST_OUTPUT].decode("latin-1")}


def answer(tree: Tree, request: dict[str, object]) -> dict[str, object]:
    """Carry out one request; errors of the machine are answers too."""
    path = os.fsdecode(str(request.get("path", "")).encode("latin-1"))
    try:
        match request["op"]:
            case "read":
                return {"ok": tree.read(path, int(str(request["limit"])))}
            case "list":
                return {"ok": tree.names(path)}
            case "link":
                return {"ok": tree.link(path)}
            case "device":
                return {"ok": tree.device(path)}
            case "open":
                return {"ok": tree.try_open(path)}
            case "space":
                return {"ok": tree.space(path)}
            case "lock":
                return {"ok": try_lock(int(str(request["size"])))}
            case "kernel log":
                return {"ok": kernel_log(tree)}
            case "run":
                words = request["command"]
                assert isinstance(words, list)
                return run([str(word) for word in words], float(str(request["seconds"])))
            case other:
                return {"errno": "ENOSYS", "note": f"no operation {other}"}
    except OSError as error:
        return {"errno": errno.errorcode.get(error.errno or 0, "EIO")}


def main() -> None:
    """Answer requests until standard input ends."""
    tree, mark = Tree(sys.argv[1].rstrip("/")), int(sys.argv[2])
    for line in sys.stdin:
        answers: list[dict[str, object]] = []
        size = 0
        for number, ask in enumerate(json.loads(line)["asks"]):
            os.pwrite(mark, number.to_bytes(4, "little"), 0)
            answers.append(answer(tree, ask))
            size += _size(answers[-1])
            if size > _PIECE:
                _send(answers)
                answers, size = [], 0
        if answers:
            _send(answers)


def _size(answered: dict[str, object]) -> int:
    found = answered.get("ok")
    return _OVERHEAD + (len(found) if isinstance(found, str) else 0)


def _send(answers: list[dict[str, object]]) -> None:
    sys.stdout.write(json.dumps(answers) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
