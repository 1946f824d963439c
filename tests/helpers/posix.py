"""Names of the standard library that not every system has, and where Python code uses them."""

import ast
from collections.abc import Iterator
from typing import NamedTuple

MODULES = frozenset({"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"})
"""Modules that only POSIX has."""

OS = """
    chown chroot copy_file_range eventfd fchdir fchmod fchown fork forkpty fstatvfs getegid geteuid getgid getgroups
    getloadavg getpgid getpgrp getpriority getsid getuid killpg lchown lockf memfd_create mkfifo mknod nice openpty
    pathconf pidfd_open pipe2 posix_fadvise posix_fallocate posix_spawn posix_spawnp pread preadv pwrite pwritev readv
    sched_getaffinity sched_setaffinity sched_yield sendfile setegid seteuid setgid setgroups setpgid setpgrp
    setpriority setsid setuid splice statvfs sync sysconf ttyname uname wait wait3 wait4 waitid writev
    O_ASYNC O_CLOEXEC O_DIRECT O_DIRECTORY O_DSYNC O_NOATIME O_NOCTTY O_NOFOLLOW O_NONBLOCK O_PATH O_SYNC O_TMPFILE
"""

SIGNAL = """
    SIGALRM SIGBUS SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGQUIT SIGSTOP SIGTSTP SIGUSR1 SIGUSR2 SIGWINCH
    SIG_BLOCK SIG_SETMASK SIG_UNBLOCK alarm getitimer pause pthread_kill pthread_sigmask setitimer siginterrupt
    sigpending sigtimedwait sigwait sigwaitinfo
"""

POSIX = {"os": frozenset(OS.split()), "signal": frozenset(SIGNAL.split())}
"""Names by module that only POSIX or only Linux has."""

UNLIKE = {
    "os": frozenset({"getppid", "kill", "name", "supports_dir_fd"}),
    "platform": frozenset({"system"}),
    "socket": frozenset({"AF_UNIX", "SCM_RIGHTS", "socketpair"}),
    "sys": frozenset({"getwindowsversion", "platform"}),
}
"""Names by module that differ between systems, or tell which system it is; `os.kill(pid, 0)` ends it on Windows."""

ARGUMENTS = frozenset({"dir_fd", "dst_dir_fd", "pass_fds", "preexec_fn", "src_dir_fd", "start_new_session"})
"""Keyword arguments that only POSIX has."""

FOLDERS = ("/dev/", "/proc", "/sys/", "/tmp")
"""Folders that only POSIX or only Linux has."""


class Use(NamedTuple):
    """A line that uses a name."""

    line: int
    name: str


def system_calls(tree: ast.Module) -> Iterator[Use]:
    """Yield where a module uses something that not every system has, or asks which system it is."""
    docstrings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                names = [alias.name for alias in node.names if alias.name in MODULES]
            case ast.ImportFrom(module=str(module)):
                names = [f"{module}.{alias.name}" for alias in node.names if _differs(module, alias.name)]
            case ast.Attribute(value=ast.Name(id=module)):
                names = [f"{module}.{node.attr}"] if _differs(module, node.attr) else []
            case ast.keyword(arg=name) if name in ARGUMENTS:
                names = [f"{name}="]
            case ast.Constant(value=str(text)) if node not in docstrings and text.startswith(FOLDERS):
                names = [text]
            case _:
                continue
        yield from (Use(node.lineno, name) for name in names)


def _differs(module: str, name: str) -> bool:
    return module in MODULES or name in POSIX.get(module, ()) or name in UNLIKE.get(module, ())
