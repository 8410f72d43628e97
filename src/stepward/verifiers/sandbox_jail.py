"""What a sandbox lets its interpreter see: bubblewrap's command line, and the folders under Landlock."""

import os
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from stepward.verifiers import (
    confinement,
    sandbox_cells,
    sandbox_exam,
    sandbox_job,
    sandbox_transfer,
    worker_main,
)
from stepward.verifiers.workers import Launch

_INSIDE = "/stepward"


def _site_packages(modules: Sequence[str]) -> list[str]:
    return [p for p in sys.path if p.endswith(("site-packages", "dist-packages"))] if modules else []


@cache
def readable(modules: tuple[str, ...]) -> tuple[str, ...]:
    """What a job may read under Landlock: the standard library, shared libraries, and named packages."""
    folders = {sysconfig.get_path("stdlib"), "/lib", "/lib64", "/usr/lib64", *_site_packages(modules)}
    triplet = sysconfig.get_config_var("MULTIARCH")
    if triplet:
        folders |= {f"/lib/{triplet}", f"/usr/lib/{triplet}"}
        folders -= {"/lib"}
    return tuple(sorted(os.path.realpath(f) for f in folders if os.path.isdir(f)))


def bubblewrap(modules: Sequence[str]) -> Launch:
    """The command line of the jail: an empty file system, then only what the interpreter needs.

    Raises:
        OSError: bubblewrap is not installed.
    """
    program = shutil.which("bwrap")
    if program is None:
        raise OSError("bwrap is not installed")
    python = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    command = [
        program, "--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts",
        "--unshare-cgroup-try", "--uid", "65534", "--gid", "65534", "--hostname", "sandbox",
        "--die-with-parent", "--cap-drop", "ALL", "--cap-add", "CAP_SYS_ADMIN",
    ]  # fmt: skip
    for folder in ("/lib", "/lib64", "/usr/lib", "/usr/lib64"):
        if os.path.islink(folder):
            command += ["--symlink", os.readlink(folder), folder]
        elif os.path.isdir(folder):
            command += ["--ro-bind", folder, folder]
    prefix = sys.base_prefix
    if prefix not in ("/usr", "/"):
        command += ["--ro-bind", f"{prefix}/lib", f"{prefix}/lib"]
    command += ["--ro-bind", python, python]
    stdlib = Path(sysconfig.get_path("stdlib"))
    for hidden in (stdlib / "site-packages", Path("/usr/lib/python3/dist-packages")):
        if hidden.is_dir():
            command += ["--tmpfs", str(hidden)]
    # At a place of their own: each job has an empty /tmp, which would hide an environment that lies there.
    packages: list[str] = []
    for number, folder in enumerate(_site_packages(modules)):
        packages.append(f"{_INSIDE}/packages/{number}")
        command += ["--ro-bind", folder, packages[-1]]
    for module in (worker_main, confinement, sandbox_job, sandbox_cells, sandbox_exam, sandbox_transfer):
        source = str(module.__file__)
        command += ["--ro-bind", source, f"{_INSIDE}/stepward/verifiers/{Path(source).name}"]
    command += [
        "--proc", "/proc", "--dir", "/tmp", "--dir", "/dev", "--dev-bind", "/dev/null", "/dev/null",
        "--remount-ro", "/", "--chdir", "/", "--",
        python, "-s", "-P", "-S", f"{_INSIDE}/stepward/verifiers/worker_main.py",
    ]  # fmt: skip
    paths = (_INSIDE, str(stdlib), str(stdlib / "lib-dynload"), *packages)
    return Launch(command=tuple(command), path=paths)
