"""What the kernel is asked for before untrusted code runs: namespaces, Landlock, seccomp, capabilities.

Standard library only and Linux only; runs inside the sandbox, through ctypes, in a process that is about to
execute a job. Every function raises OSError with the name of the step that failed: a job whose confinement is
not complete does not run.

The seccomp filter is a list of what may be done; all else fails with EPERM (a foreign architecture ends the
process). Creating processes or threads, executing files, sockets, signals to others, namespaces, mounts,
tracing, keys, BPF, io_uring, shared memory and file handles are not on the list.
"""

import ctypes
import os
import platform
import resource
import struct
from collections.abc import Sequence
from functools import cache

CLONE_NEWNS, CLONE_NEWPID = 0x00020000, 0x20000000

_libc = ctypes.CDLL(None, use_errno=True)
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_MS_REC, _MS_PRIVATE = 0x4000, 1 << 18
_MNT_DETACH = 2
_PR_SET_NO_NEW_PRIVS, _PR_SET_DUMPABLE = 38, 4
_CAPABILITY_VERSION_3 = 0x20080522

_X86_64: dict[str, int] = {
    "read": 0, "write": 1, "open": 2, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "poll": 7, "lseek": 8,
    "mmap": 9, "mprotect": 10, "munmap": 11, "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14,
    "rt_sigreturn": 15, "ioctl": 16, "pread64": 17, "pwrite64": 18, "readv": 19, "writev": 20, "access": 21,
    "select": 23, "sched_yield": 24, "mremap": 25, "madvise": 28, "dup": 32, "dup2": 33, "nanosleep": 35,
    "getpid": 39, "exit": 60, "kill": 62, "uname": 63, "fcntl": 72, "fsync": 74, "fdatasync": 75,
    "truncate": 76, "ftruncate": 77, "getcwd": 79, "chdir": 80, "rename": 82, "mkdir": 83, "rmdir": 84,
    "unlink": 87, "readlink": 89, "chmod": 90, "umask": 95, "gettimeofday": 96, "getrlimit": 97,
    "getrusage": 98, "sysinfo": 99, "times": 100, "getuid": 102, "getgid": 104, "geteuid": 107,
    "getegid": 108, "getppid": 110, "getpgrp": 111, "getgroups": 115, "getresuid": 118, "getresgid": 120,
    "getpgid": 121, "getsid": 124, "sigaltstack": 131, "statfs": 137, "fstatfs": 138, "gettid": 186,
    "tkill": 200, "time": 201, "futex": 202, "sched_getaffinity": 204, "getdents64": 217,
    "restart_syscall": 219, "fadvise64": 221, "clock_gettime": 228, "clock_getres": 229,
    "clock_nanosleep": 230, "exit_group": 231, "tgkill": 234, "openat": 257, "mkdirat": 258,
    "newfstatat": 262, "unlinkat": 263, "renameat": 264, "readlinkat": 267, "fchmodat": 268, "faccessat": 269,
    "pselect6": 270, "ppoll": 271, "set_robust_list": 273, "utimensat": 280, "dup3": 292, "prlimit64": 302,
    "renameat2": 316, "getrandom": 318, "membarrier": 324, "statx": 332, "rseq": 334, "close_range": 436,
    "faccessat2": 439,
}  # fmt: skip

_AARCH64: dict[str, int] = {
    "getcwd": 17, "dup": 23, "dup3": 24, "fcntl": 25, "ioctl": 29, "mkdirat": 34, "unlinkat": 35,
    "renameat": 38, "statfs": 43, "fstatfs": 44, "truncate": 45, "ftruncate": 46, "faccessat": 48, "chdir": 49,
    "fchmodat": 53, "openat": 56, "close": 57, "getdents64": 61, "lseek": 62, "read": 63, "write": 64,
    "readv": 65, "writev": 66, "pread64": 67, "pwrite64": 68, "pselect6": 72, "ppoll": 73, "readlinkat": 78,
    "newfstatat": 79, "fstat": 80, "fsync": 82, "fdatasync": 83, "utimensat": 88, "exit": 93,
    "exit_group": 94, "futex": 98, "set_robust_list": 99, "nanosleep": 101, "clock_gettime": 113,
    "clock_getres": 114, "clock_nanosleep": 115, "sched_getaffinity": 123, "sched_yield": 124,
    "restart_syscall": 128, "kill": 129, "tkill": 130, "tgkill": 131, "sigaltstack": 132,
    "rt_sigaction": 134, "rt_sigprocmask": 135, "rt_sigreturn": 139, "getresuid": 148, "getresgid": 150,
    "times": 153, "getpgid": 155, "getsid": 156, "getgroups": 158, "uname": 160, "getrlimit": 163,
    "getrusage": 165, "umask": 166, "gettimeofday": 169, "getpid": 172, "getppid": 173, "getuid": 174,
    "geteuid": 175, "getgid": 176, "getegid": 177, "gettid": 178, "sysinfo": 179, "brk": 214, "munmap": 215,
    "mremap": 216, "mmap": 222, "fadvise64": 223, "mprotect": 226, "madvise": 233, "prlimit64": 261,
    "renameat2": 276, "getrandom": 278, "membarrier": 283, "statx": 291, "rseq": 293, "close_range": 436,
    "faccessat2": 439,
}  # fmt: skip

_ARCHITECTURES = {"x86_64": (0xC000003E, _X86_64, 317), "aarch64": (0xC00000B7, _AARCH64, 277)}
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446

# Only with these arguments: (argument number, accepted values), or "self" for the process's own id.
_ARGUMENTS: dict[str, tuple[int, tuple[int, ...] | str]] = {
    "ioctl": (1, (0x5401, 0x5413, 0x5421, 0x5450, 0x5451)),  # TCGETS, TIOCGWINSZ, FIONBIO, FIO(N)CLEX
    "fcntl": (1, (0, 1, 2, 3, 4, 1030)),  # DUPFD, GETFD, SETFD, GETFL, SETFL, DUPFD_CLOEXEC
    "prlimit64": (2, (0,)),  # reading a limit, not setting one
    "kill": (0, "self"),
    "tkill": (0, "self"),
    "tgkill": (0, "self"),
}

MACHINE = platform.machine()
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _KILL, _EPERM = 0x7FFF0000, 0x80000000, 0x00050001


_ANY_PID = 0x7FFFFFF0  # above the kernel's largest process id; stands for a job's own until it has one


def seccomp_filter(machine: str, own_pid: int) -> bytes:
    """The filter program as the kernel reads it: ``struct sock_filter`` after ``struct sock_filter``.

    Args:
        machine: ``x86_64`` or ``aarch64``.
        own_pid: The process that may signal itself.

    Raises:
        OSError: The architecture has no list.
    """
    return _assembled(machine).replace(struct.pack("<I", _ANY_PID), struct.pack("<I", own_pid))


@cache
def _assembled(machine: str) -> bytes:
    """The program with a placeholder for the process id: assembled once, in the worker."""
    if machine not in _ARCHITECTURES:
        raise OSError(
            f"seccomp: no list of system calls for {machine}; there are {', '.join(_ARCHITECTURES)}"
        )
    audit, numbers, _ = _ARCHITECTURES[machine]
    code: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, 4),
        (_EQUAL, 1, 0, audit),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, 0),
    ]
    if machine == "x86_64":  # the x32 calls share the architecture and have the bit 30 set
        code += [(_AT_LEAST, 0, 1, 0x40000000), (_RETURN, 0, 0, _KILL)]
    for name, number in numbers.items():
        if name not in _ARGUMENTS:
            code += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ALLOW)]
            continue
        argument, accepted = _ARGUMENTS[name]
        values = (_ANY_PID,) if isinstance(accepted, str) else accepted
        body: list[tuple[int, int, int, int]] = []
        if name == "prlimit64":  # a pointer: its upper half must be zero as well
            body += [(_LOAD, 0, 0, 20 + 8 * argument), (_EQUAL, 1, 0, 0), (_RETURN, 0, 0, _EPERM)]
        body.append((_LOAD, 0, 0, 16 + 8 * argument))
        for value in values:
            body += [(_EQUAL, 0, 1, value), (_RETURN, 0, 0, _ALLOW)]
        body.append((_RETURN, 0, 0, _EPERM))
        code += [(_EQUAL, 0, len(body), number), *body]
    code.append((_RETURN, 0, 0, _EPERM))
    return b"".join(struct.pack("<HBBI", *line) for line in code)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def install_seccomp() -> None:
    """Give up new privileges and load the filter into this process. There is no way back."""
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    program = seccomp_filter(MACHINE, os.getpid())
    buffer = ctypes.create_string_buffer(program, len(program))

    prog = _Program(len(program) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    _check(_libc.syscall(_ARCHITECTURES[MACHINE][2], 1, 0, ctypes.byref(prog)), "seccomp")


def new_namespaces(flags: int) -> None:
    """unshare(2): for processes forked from now on (pid) or for this one (mount)."""
    _check(_libc.unshare(flags), "unshare")


def return_to(namespace: int, kind: int) -> None:
    """setns(2) back to a namespace given as a descriptor."""
    _check(_libc.setns(namespace, kind), "setns")


def private_mounts(scratch: str, scratch_bytes: int) -> None:
    """In a mount namespace of one's own: no ``/proc``, and an empty ``scratch`` of limited size."""
    _check(_libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None), "private mounts")
    if os.path.exists("/proc/self"):
        _check(_libc.umount2(b"/proc", _MNT_DETACH), "umount /proc")
    options = f"size={scratch_bytes},nr_inodes=1024,mode=0700".encode()
    flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    _check(_libc.mount(b"tmpfs", scratch.encode(), b"tmpfs", flags, options), f"mount {scratch}")


def drop_capabilities() -> None:
    """Give up every capability of this process."""
    header = struct.pack("<Ii", _CAPABILITY_VERSION_3, 0)
    _check(_libc.capset(header, bytes(24)), "capset")
    _check(_libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0), "dumpable")


def landlock_abi() -> int:
    """Version of Landlock that the kernel has, 0 for none."""
    return max(0, _libc.syscall(_LANDLOCK_CREATE, None, 0, 1))


def landlock_ruleset(readable: Sequence[str]) -> int:
    """A ruleset under which only ``readable`` folders can be read and nothing written. Returns its descriptor."""
    abi = landlock_abi()
    if abi < 1:
        raise OSError("Landlock is not available in this kernel")
    files = (1 << 13) - 1  # version 1 knows 13 kinds of access
    files |= (1 << 13) * (abi >= 2) | (1 << 14) * (abi >= 3) | (1 << 15) * (abi >= 5)
    network, scopes = 3 * (abi >= 4), 3 * (abi >= 6)  # bind and connect; abstract sockets and signals
    attributes = struct.pack("<QQQ", files, network, scopes)[: 24 if abi >= 6 else 16 if abi >= 4 else 8]
    ruleset = _libc.syscall(_LANDLOCK_CREATE, attributes, len(attributes), 0)
    _check(ruleset, "landlock_create_ruleset")
    for folder in readable:
        try:
            target = os.open(folder, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        read_file, read_dir = 1 << 2, 1 << 3
        access = read_file | read_dir if os.path.isdir(folder) else read_file
        rule = struct.pack("<Qi", access, target)
        try:
            _check(_libc.syscall(_LANDLOCK_ADD, ruleset, 1, rule, 0), f"landlock rule for {folder}")
        finally:
            os.close(target)
    return ruleset


def restrict_to(ruleset: int) -> None:
    """Put this process under a Landlock ruleset. There is no way back."""
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    _check(_libc.syscall(_LANDLOCK_RESTRICT, ruleset, 0), "landlock_restrict_self")


def set_limits(*, memory_bytes: int, cpu_s: int, file_bytes: int) -> None:
    """Resource limits of a job, soft and hard."""
    for kind, limit in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_NPROC, 1),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        _, hard = resource.getrlimit(kind)
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (limit, limit))


def _check(result: int, step: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{step}: {os.strerror(number)}")
