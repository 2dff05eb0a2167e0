"""Why the kernel lets nobody, or not this user, look into a process: what may be the cause, and what to do."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

CAP_SYS_PTRACE = 19
YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
IN_CONTAINERS = (
    "where this is a container, start it with `--cap-add SYS_PTRACE` (Kubernetes: "
    "securityContext.capabilities.add: [SYS_PTRACE])"
)


def status_of(root: Path) -> dict[str, str]:
    try:
        lines = (line.partition(":") for line in (root / "status").read_text(errors="replace").splitlines())
        return {key: value.strip() for key, _, value in lines}
    except OSError:
        return {}


def user_name(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def yama_scope() -> int:
    try:
        return int(YAMA.read_text())
    except (OSError, ValueError):
        return 0


def why_refused(root: Path) -> str:
    """Of a process, by its folder in /proc: one line."""
    own, its = status_of(Path("/proc/self")), status_of(root)
    may_all = int(own.get("CapEff", "0"), 16) >> CAP_SYS_PTRACE & 1 == 1
    uids = {int(uid) for uid in its.get("Uid", "").split()[:3]}
    return reason(
        uids=uids,
        own_uid=os.geteuid(),
        may_all=may_all,
        scope=yama_scope(),
        filtered=own.get("Seccomp") == "2",
        readable=owner(root) in uids,
    )


def owner(root: Path) -> int:
    """Of the process's files: root's where the program does not let itself be read."""
    try:
        return root.stat().st_uid
    except OSError:
        return -1


def reason(*, uids: set[int], own_uid: int, may_all: bool, scope: int, filtered: bool, readable: bool) -> str:
    """`may_all`: this process has CAP_SYS_PTRACE; `filtered`: its system calls are, by seccomp."""
    if may_all:
        lets = " a seccomp filter is in force here:" if filtered else ""
        return (
            f"although this user may look into every process (CAP_SYS_PTRACE):{lets} a sandbox, a security module "
            "(SELinux, AppArmor), or a user namespace around this shell forbids it; run folio outside of it"
        )
    if uids and uids != {own_uid}:
        others = ", ".join(user_name(uid) for uid in sorted(uids - {own_uid}))
        root_here = own_uid == 0
        reported = "this root has no CAP_SYS_PTRACE" if root_here else f"you are {user_name(own_uid)}"
        do = IN_CONTAINERS if root_here else "use sudo, or be that user"
        return f"it runs as {others}, {reported}: {do}"
    if scope >= 3:
        return (
            "kernel.yama.ptrace_scope is 3: nobody may look into a process until the machine starts with another value"
        )
    if own_uid == 0:
        return f"this root has no CAP_SYS_PTRACE: {IN_CONTAINERS}"
    if not readable:
        return "it does not let itself be read (set-user-id, file capabilities or PR_SET_DUMPABLE): use sudo"
    if scope:
        ease = ", or `sudo sysctl kernel.yama.ptrace_scope=0` for all that you start" if scope == 1 else ""
        return f"kernel.yama.ptrace_scope is {scope}, so its owner alone may not: use sudo{ease}"
    cause = "a seccomp filter is in force here" if filtered else "it has capabilities that this shell lacks"
    return f"{cause}, or a sandbox or security module forbids it: use sudo; {IN_CONTAINERS}"
