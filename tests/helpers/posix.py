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
    """The number of a line, and a name that it uses."""

    line: int
    name: str


def system_calls(tree: ast.Module) -> Iterator[Use]:
    """Yield where a module uses something that not every system has, or asks which system it is."""
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.Expr)]
    docstrings = {node.value for node in statements if isinstance(node.value, ast.Constant)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.stmt | ast.expr | ast.keyword):  # other nodes have no line
            continue
        if node in docstrings:
            continue
        for name in _system_names(node):
            yield Use(node.lineno, name)


def _system_names(node: ast.AST) -> list[str]:
    """Return the names, keywords and folders in a node, without its children, that not every system has."""
    match node:
        case ast.Import():
            return [alias.name for alias in node.names if alias.name in MODULES]
        case ast.ImportFrom(module=str(module)):
            return [f"{module}.{alias.name}" for alias in node.names if _differs(module, alias.name)]
        case ast.Attribute(value=ast.Name(id=module)) if _differs(module, node.attr):
            return [f"{module}.{node.attr}"]
        case ast.keyword(arg=name) if name in ARGUMENTS:
            return [f"{name}="]
        case ast.Constant(value=str(text)) if text.startswith(FOLDERS):
            return [text]
        case _:
            return []


def _differs(module: str, name: str) -> bool:
    """Return whether a name of a module does not exist everywhere, or is not the same everywhere."""
    return module in MODULES or name in POSIX.get(module, ()) or name in UNLIKE.get(module, ())
