"""Worker processes that apply a function to parts of the data.

Each worker has a socket of its own and shares no lock, queue or file in /dev/shm with others. A worker that dies, for
example because memory ran out, therefore never blocks the parent, which knows the part that the worker was processing.
"""

import contextlib
import io
import itertools
import mmap
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import connection, reduction, util
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from probmcl.errors import WorkerError, listed
from probmcl.runtime.machine import held_signals, leave_signals_to_parent

if TYPE_CHECKING:
    if sys.platform == "win32":
        Socket = connection.PipeConnection[Any, Any]
    else:
        Socket = connection.Connection[Any, Any]

Part = TypeVar("Part")
Result = TypeVar("Result")

MapParts = Callable[[Iterable[Part]], Iterator[Result]]

POLL_SECONDS = 1.0  # how often a worker checks that its parent still exists

SMALL_MESSAGE = 2**14
"""Bytes that are sent through the socket, whose buffer is larger, so that sending does not wait for the receiver."""

ALIGNMENT = 64

_STARTING = threading.Lock()
"""Held while a worker starts: a fork in another thread would copy its end of the socket, which then never closes."""


def start_method() -> str:
    """Return the start method of workers: the user's choice, otherwise fork on Linux and spawn elsewhere.

    A choice that equals Python's default is ignored, because creating a lock in a library also sets it.
    """
    default = multiprocessing.get_all_start_methods()[0]
    chosen = multiprocessing.get_start_method(allow_none=True)
    if chosen not in (None, default):
        return chosen
    if sys.platform == "linux" and hasattr(os, "fork"):
        return "fork"
    return "spawn"


def map_in_order(
    work: Callable[[Part], Result],
    parts: Iterable[Part],
    workers: int,
    *,
    files: Callable[[Part], Iterable[object]] = lambda part: (),
) -> Generator[Result, None, None]:
    """Yield `work(part)` for each part in order, computed by `workers` processes, or in this process if `workers` is 0.

    Wrap it in `contextlib.closing`, which kills the workers if the caller stops early, for example on Ctrl-C. `files`
    returns the files of a part, which are listed if a worker dies.

    >>> list(map_in_order(len, ["a", "bc"], workers=0))
    [1, 2]
    """
    with worker_pool(work, workers, files=files, ahead=8) as map_parts:
        yield from map_parts(parts)


@contextmanager
def worker_pool(
    work: Callable[[Part], Result],
    workers: int,
    *,
    files: Callable[[Part], Iterable[object]] = lambda part: (),
    ahead: int = 2,
    start: str | None = None,
) -> Iterator[MapParts[Part, Result]]:
    """Start workers, yield a function like `map_in_order`, and kill the workers at the end.

    At most `ahead` results per worker are computed before they are needed. `start` is the start method of the workers
    (default: `start_method`). `files` returns the files that a part is read from. They are listed in the error message
    if a worker dies while it processes the part; by default, none are listed.
    """
    if workers == 0:
        yield lambda parts: map(work, parts)
        return
    pool = _Pool(work, files, ahead)
    try:
        pool.start(workers, start or start_method())
        yield pool.map_in_order
    finally:
        pool.kill()


class _Worker(Generic[Part]):
    """A worker process and the numbered parts that it has not returned yet; it processes the first of them."""

    def __init__(self, process: BaseProcess, socket: "Socket") -> None:
        self.process, self.socket = process, socket
        self.parts: deque[tuple[int, Part]] = deque()


class _Pool(Generic[Part, Result]):
    def __init__(self, work: Callable[[Part], Result], files: Callable[[Part], Iterable[object]], ahead: int) -> None:
        self.work, self.files, self.ahead = work, files, ahead
        self.workers: list[_Worker[Part]] = []
        self.shares_files = _can_share_files()
        # A worker has a second part to continue with while the parent is busy. If results go through the socket,
        # both sides could then wait for the other to receive, so the parent sends only to an idle worker.
        self.depth = 2 if self.shares_files else 1
        # At exit, Python sends SIGTERM to daemon processes and joins them. Workers ignore it, so they are killed first.
        self.kill = util.Finalize(None, _kill, args=(self.workers,), exitpriority=0)

    def start(self, workers: int, method: str) -> None:
        context = multiprocessing.get_context(method)
        parent = os.getpid() if method == "fork" else None
        for _ in range(workers):
            with _STARTING, held_signals():
                ours, theirs = context.Pipe()
                arguments = (self.work, theirs, self.shares_files, parent)
                process = context.Process(target=_serve, args=arguments, daemon=True)  # type: ignore[attr-defined]
                try:
                    process.start()
                except OSError as error:
                    ours.close()
                    raise WorkerError(f"cannot start a worker process ({error}); use fewer `workers`") from error
                finally:
                    theirs.close()  # so that receiving fails when the worker has died
                self.workers.append(_Worker(process, ours))

    def map_in_order(self, parts: Iterable[Part]) -> Iterator[Result]:
        remaining, assigned = iter(parts), 0
        outcomes: dict[int, tuple[Result, Exception | None]] = {}
        for turn in itertools.count():
            while True:
                for part in itertools.islice(remaining, self._free(turn + self.ahead * len(self.workers) - assigned)):
                    self._send(min(self.workers, key=lambda worker: len(worker.parts)), assigned, part)
                    assigned += 1
                if turn in outcomes or turn == assigned:
                    break
                for worker in self._ready():
                    number = worker.parts[0][0]
                    outcomes[number] = self._receive(worker)
            if turn == assigned:
                return
            result, error = outcomes.pop(turn)
            if error is not None:
                raise error
            yield result

    def _free(self, most: int) -> int:
        """Return how many parts can be assigned now."""
        return min(most, sum(self.depth - len(worker.parts) for worker in self.workers))

    def _ready(self) -> list[_Worker[Part]]:
        """Wait until workers have results, or have died, and return them."""
        busy = [worker for worker in self.workers if worker.parts]
        sockets: list[Any] = [worker.socket for worker in busy]
        ends = [worker.process.sentinel for worker in busy]
        ready = connection.wait([*sockets, *ends])
        for worker in busy:
            if worker.process.sentinel not in ready:
                continue
            with self._explained_death(worker):
                # On Windows, this process has a copy of the worker's end of the socket until the worker has opened it.
                # If the worker dies before that, receiving would wait forever.
                if not worker.socket.poll():
                    raise EOFError
        return [worker for worker in busy if worker.socket in ready]

    def _send(self, worker: _Worker[Part], number: int, part: Part) -> None:
        worker.parts.append((number, part))
        with self._explained_death(worker):
            _send(worker.socket, part, self.shares_files)

    def _receive(self, worker: _Worker[Part]) -> tuple[Result, Exception | None]:
        with self._explained_death(worker):
            outcome: tuple[Result, Exception | None] = _receive(worker.socket)
        worker.parts.popleft()
        return outcome

    @contextmanager
    def _explained_death(self, worker: _Worker[Part]) -> Iterator[None]:
        try:
            yield
        except (EOFError, OSError) as error:
            end = time.monotonic() + POLL_SECONDS
            while (code := worker.process.exitcode) is None and time.monotonic() < end:
                time.sleep(0.01)  # unlike `join`, this also works if another thread has just waited for the process
            if code is None:
                raise
            raise WorkerError(_death_message(code, self.files(worker.parts[0][1]))) from error


def _death_message(code: int, files: Iterable[object]) -> str:
    cause = f"ended with exit code {code}"
    if code < 0:
        name = signal.Signals(-code).name
        cause = f"was killed by {name}"
        cause += ", probably because memory ran out" if name == "SIGKILL" else ""
    names = listed([str(file) for file in files])
    remedy = "use fewer `workers`, or `workers=0` to read images in the main process"
    return "\n".join([f"a worker process {cause}; {remedy}", *(["it was reading:", *names] if names else [])])


def _kill(workers: Sequence[_Worker[Any]]) -> None:
    for worker in workers:
        worker.process.kill()
    for worker in workers:
        worker.process.join()
        worker.socket.close()


# In the worker process.


def _serve(
    work: Callable[[Part], Result],
    socket: "Socket",
    shares_files: bool,
    parent: int | None,
) -> None:
    """Apply a function to the parts that the parent sends, until the parent kills this process or ends itself.

    This is the main function of a worker process. Each part comes through the socket, and its result is sent back
    before the next part is received.

    Args:
        work: function that is applied to each part.
        socket: connection to the parent.
        shares_files: whether a large result is sent as an anonymous file in memory instead of through the socket.
        parent: process id of the parent if this process is a fork of it; None after another start, with which Python
            itself can wait for the end of the parent.
    """
    leave_signals_to_parent()
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(1)  # the cores are used by the other workers
    # If the parent is killed during a long part, this thread ends the process at once.
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    with contextlib.suppress(EOFError, ConnectionError):  # raised when the parent has closed its end of the socket
        while True:
            _send(socket, _outcome(work, _receive(socket)), shares_files)


def _end_with(parent: int | None) -> None:
    """End this process when its parent has been killed, even in the middle of a part.

    After a fork, other workers also have the pipe with which Python recognizes the end of the parent. Otherwise, Python
    is asked: on Windows, the process id of the parent does not change.
    """
    python_parent = multiprocessing.parent_process()
    if parent is None and python_parent is not None:
        python_parent.join()
    while parent is not None and os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    os._exit(1)


def _outcome(work: Callable[[Part], Result], part: Part) -> tuple[Result | None, Exception | None]:
    try:
        return work(part), None
    except Exception as error:
        error.add_note(f"in a worker process:\n{traceback.format_exc()}")
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # an exception of a library, whose __init__ has other arguments
            return None, RuntimeError(f"{type(error).__name__}: {error}")
        return None, error


# Messages. Large content is in an anonymous file in memory, which the receiver maps without copying it.


class _Pickler(pickle.Pickler):
    """Pickles tensors as NumPy arrays, whose content need not be copied."""

    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(value, torch.Tensor):
            return NotImplemented
        return torch.from_numpy, (value.numpy(),)


def _can_share_files() -> bool:
    """Return whether anonymous files can be created, of any size."""
    if sys.platform != "linux":
        return False
    try:
        import resource
    except ImportError:
        return False
    try:
        os.close(os.memfd_create("probmcl"))
    except OSError:  # forbidden by a sandbox
        return False
    return resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def _send(socket: "Socket", value: object, shares_files: bool) -> None:
    """Send a value to the process at the other end of a socket; `_receive` reads it there.

    The value is pickled into blocks of bytes: the pickle, and the buffer of each array. A message says how the blocks
    are sent and how large they are. The blocks follow through the socket or, if they are large and `shares_files`, in
    an anonymous file in memory. Only the descriptor of this file is sent, and the receiver maps it without copying.
    `_places` are the positions of the blocks in the file.

    Files are shared only on Linux, where `shares_files` can be True. The second check of the platform tells mypy that
    `memfd_create` exists there; elsewhere, this branch is never reached. `send_handle` ignores its last argument, a
    process id, except on Windows.
    """
    buffers: list[pickle.PickleBuffer] = []
    content = io.BytesIO()
    _Pickler(content, protocol=5, buffer_callback=buffers.append).dump(value)
    blocks = [content.getbuffer(), *(buffer.raw() for buffer in buffers)]
    sizes = [block.nbytes for block in blocks]
    in_file = shares_files and sum(sizes) > SMALL_MESSAGE
    socket.send((in_file, sizes))
    if not in_file:
        for block in blocks:
            socket.send_bytes(block)
    elif sys.platform == "linux":
        with os.fdopen(os.memfd_create("probmcl"), "wb") as file:
            for block, place in zip(blocks, _places(sizes), strict=True):
                file.seek(place.start)
                file.write(block)
            file.flush()
            reduction.send_handle(socket, file.fileno(), 0)


def _receive(socket: "Socket") -> Any:
    in_file, sizes = socket.recv()
    blocks: list[Any]
    if in_file and sys.platform == "linux":
        descriptor = reduction.recv_handle(socket)
        try:
            mapped = memoryview(mmap.mmap(descriptor, 0))
        finally:
            os.close(descriptor)
        blocks = [mapped[place] for place in _places(sizes)]
    else:
        blocks = [bytearray(socket.recv_bytes()) for _ in sizes]
    return pickle.loads(blocks[0], buffers=blocks[1:])


def _places(sizes: Sequence[int]) -> list[slice]:
    """Return the places of blocks in a file; they are aligned because NumPy and torch require it.

    >>> _places([5, 100])
    [slice(0, 5, None), slice(64, 164, None)]
    """
    padded = (-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)
    starts = itertools.accumulate(padded, initial=0)
    return [slice(start, start + size) for start, size in zip(starts, sizes, strict=False)]
