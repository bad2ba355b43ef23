# lock_table.pxi - locks by key that stay consistent when a signal handler raises
# SPDX-License-Identifier: MIT
#
# A signal handler that raises interrupts Python code between any two steps, even at the first step of `__exit__`, so a
# lock that Python code takes or releases can stay locked forever. Native code ends only through a call that raises.
#
# A method keeps the GIL, except while a thread waits, so it is atomic for other threads as well. A free-threaded Python has
# no GIL: there a critical section of the table takes its place, with the same property.

from _thread import allocate_lock, get_ident
from contextvars import ContextVar

cdef extern from "Python.h":
    unsigned long PyThread_get_thread_ident()

cdef enum:
    N_COUNTERS = 1024        # counters of acquisitions; several keys share one
    MAX_INTERRUPTS = 1000    # attempts of one grant

# The taken keys of each `Hold` of this thread or task, and of the thread or task that started it and waits for it. A task, and a
# thread of a free-threaded Python, keeps this context after the block has ended. Keys count only while the `Hold` has them.
cdef object held_here = ContextVar("shardcodec.locks", default=())


cdef tuple _call_to_its_end(call):
    """Repeat a call until no signal handler interrupts it; return its result and the exception of a handler, or None."""
    interrupt = None
    for _ in range(MAX_INTERRUPTS):
        try:
            return call(), interrupt
        except BaseException as error:
            interrupt = error
    return None, interrupt


def call_to_its_end(call):
    """Repeat a call until no signal handler interrupts it; then return its result, or raise the exception of a handler.

    call: it raises nothing itself, and may be called again after an interrupt at any point.
    """
    result, interrupt = _call_to_its_end(call)
    if interrupt is not None:
        raise interrupt
    return result


def call_or_undo(call, undo):
    """Return the result of a call; if it raises, call `undo` until no signal handler interrupts it, and raise the last exception.

    undo: it takes the last exception, and True if the one before came out of `undo`; it may be called again after an interrupt at any
    point.
    """
    try:
        return call()
    except BaseException as error:
        last = error
        for i in range(MAX_INTERRUPTS):
            try:
                undo(last, i > 0)
                break
            except BaseException as later:
                last = later
        raise last


cdef class LockTable:
    """Locks by key, a string. A lock exists only while it is held or has waiters; the first waiter gets it next.

    A waiter is a callback, its `grant`. The thread that releases the lock calls it to hand the lock over. It returns
    False if its waiter has gone. It is called again if a signal handler raised in it.
    """

    cdef dict queues  # of the waiters, for each lock that is held
    cdef set waiting  # thread and key of each call of `acquire` that waits, and of each block of `FreeHold`
    cdef uint64_t[N_COUNTERS] n_taken_of

    def __init__(self):
        self.queues = {}
        self.waiting = set()

    @cython.critical_section
    def __len__(self):
        return len(self.queues)

    @cython.critical_section
    def n_waiting(self, str key):
        """Return the number of waiters for a lock."""
        return len(self.queues.get(key, ()))

    @cython.critical_section
    def calm(self, str key):
        """Return a number that does not change until the lock is taken; None while it is held.

        A reader compares two such numbers to detect a writer in between. Other keys may change the number too.
        """
        return None if key in self.queues else self.n_taken_of[<uint64_t>hash(key) % N_COUNTERS]

    @cython.critical_section
    def n_taken(self, str key):
        """Return the number that `calm` returns after the caller has released the lock, until it is taken again."""
        return self.n_taken_of[<uint64_t>hash(key) % N_COUNTERS]

    @staticmethod
    def holds(key):
        """Return True if the caller, or its own caller, has the lock."""
        for taken in held_here.get():
            if key in <dict>taken:
                return True
        return False

    @cython.critical_section
    def enter(self, str key, grant):
        """Take the lock and return True; if it is held, append `grant` (unless None) to the queue and return False."""
        cdef list mine = []
        cdef list queue = self.queues.setdefault(key, mine)
        if queue is mine:
            self.n_taken_of[<uint64_t>hash(key) % N_COUNTERS] += 1
            return True
        if grant is not None:
            queue.append(grant)
        return False

    def wanted_by(self, ident):
        """Return the keys whose locks a thread waits for, or holds in blocks of `FreeHold`: a signal handler in it must not wait for them."""
        return [key for thread, key in tuple(self.waiting) if thread == ident]

    @cython.critical_section
    def withdraw(self, str key, grant):
        """Remove `grant` from the queue; return False if the lock has been granted already."""
        cdef list queue = self.queues.get(key)
        if queue is None or grant not in queue:
            return False
        queue.remove(grant)
        return True

    @cython.critical_section
    def release(self, str key):
        """Release the lock, or hand it to the first waiter."""
        cdef list queue = self.queues.get(key)
        if queue is None:  # in a forked child, which has a new table; the parent holds this lock
            return
        interrupt = None
        while queue:
            granted, error = _call_to_its_end(queue.pop(0))
            interrupt = error or interrupt
            if granted is not False:
                break
        else:
            del self.queues[key]
        if interrupt is not None:
            raise interrupt

    def acquire(self, str key):
        """Wait for the lock and take it. Threads that run an event loop must not call this.

        LockError, at once: a signal handler has interrupted this thread in a wait for the lock, which would get it first, or in a
        block of `FreeHold`.
        """
        if self.enter(key, None):
            return
        cdef tuple mine = (get_ident(), key)
        if mine in self.waiting:
            raise LockError(
                f"shard {key!r}: expected no write into it from a signal handler, because the write that the handler has interrupted needs "
                "its lock; nothing was written. Let the handler set a flag, and write when the interrupted statement has ended",
                shard=key,
            )
        waiter = allocate_lock()
        waiter.acquire()
        grant = waiter.release
        if self.enter(key, grant):
            return
        self.waiting.add(mine)
        try:
            waiter.acquire()
        except BaseException:  # otherwise the lock, granted later, would never be released
            if not self.withdraw(key, grant):
                self.release(key)
            raise
        finally:
            self.waiting.discard(mine)


cdef int give_back(LockTable table, dict taken) except -1:
    """Release locks in reverse order, all of them also after an interrupt; then raise it."""
    interrupt = None
    while taken:
        try:
            table.release(taken.popitem()[0])
        except BaseException as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt
    return 0


# `__dealloc__` needs the fields and what is in them. The garbage collector would empty the dict of a `Hold` in a cycle, so it must
# not know of a `Hold`. No field leads back to it.
@cython.no_gc
cdef class Hold:
    """A context manager that holds locks: all of them, or none after an exception at any point."""

    cdef LockTable table
    cdef object keys
    cdef dict taken  # the keys, in the order in which they were taken
    cdef object token

    def __init__(self, LockTable table, keys):
        self.table = table
        self.keys = keys
        self.taken = {}

    def missing(self):
        """Return the keys to take, in ascending order, so that two blocks cannot wait for each other."""
        return sorted(key for key in set(self.keys) if not LockTable.holds(key))

    def take(self, str key):
        """Wait for a lock and take it."""
        self.table.acquire(key)
        self.taken[key] = True

    def try_take(self, str key):
        """Take a lock if it is free; return True on success."""
        if not self.table.enter(key, None):
            return False
        self.taken[key] = True
        return True

    def took(self, str key):
        """Record a lock that was granted."""
        self.taken[key] = True

    def begin(self):
        """Begin the block: the taken locks now belong to this thread or task."""
        self.token = held_here.set((*held_here.get(), self.taken))

    def give_back(self):
        """Release the taken locks in reverse order."""
        give_back(self.table, self.taken)

    def __dealloc__(self):
        # Since Python 3.14 a signal handler may raise after `__enter__` and before the block: `__exit__` is not called then.
        if self.taken:
            give_back(self.table, self.taken)

    def __enter__(self):
        missing = self.missing()
        self.begin()  # first: a signal handler that comes while a later lock is waited for finds those that are taken
        try:
            for key in missing:
                self.take(key)
        except BaseException:
            held_here.reset(self.token)
            self.give_back()
            raise

    def __exit__(self, *exception):
        try:
            held_here.reset(self.token)
        finally:
            self.give_back()


@cython.no_gc
cdef class FreeHold:
    """A context manager that holds one lock if it is free, and yields True if so. The lock is not one of the caller's: see `holds`."""

    cdef LockTable table
    cdef str key
    cdef tuple mine  # the entry of `waiting`: a signal handler must not wait for the lock
    cdef bint is_held

    def __init__(self, LockTable table, str key):
        self.table = table
        self.key = key

    def __enter__(self):
        self.is_held = self.table.enter(self.key, None)
        if self.is_held:
            self.mine = (get_ident(), self.key)
            self.table.waiting.add(self.mine)
        return self.is_held

    def __exit__(self, *exception):
        self.end()

    cdef int end(self) except -1:
        if self.is_held:
            self.is_held = False
            self.table.waiting.discard(self.mine)
            self.table.release(self.key)
        return 0

    def __dealloc__(self):
        self.end()  # as in `Hold`


cdef class Mutex:
    """A lock over data that threads share; callers whom signal handlers may interrupt change the data in steps, which are not torn.

    A thread in which no handler runs holds the mutex for a block. A caller decides without it, and then makes all changes in one
    `step`. It is refused if the data have changed since the caller read `version`.
    """

    cdef object lock
    cdef unsigned long owner  # the thread that holds the lock; 0: none
    cdef uint64_t n_turns     # of the lock: taken and released; odd while a thread holds it

    def __init__(self):
        self.lock = allocate_lock()

    cdef int wait(self) except -1:
        if self.owner == PyThread_get_thread_ident():
            raise RuntimeError(
                "expected no call from a signal handler that has interrupted another one at this point; let the handler set a flag, and "
                "make the call when the interrupted one has returned"
            )
        self.lock.acquire()
        return 0

    cdef int take(self) except -1:
        self.wait()
        self.owner = PyThread_get_thread_ident()
        self.n_turns += 1
        return 0

    cdef int leave(self) except -1:
        self.n_turns += 1
        self.owner = 0
        self.lock.release()
        return 0

    @property
    def version(self):
        """A number that stays the same until the data change. No thread holds the mutex when it is returned."""
        cdef uint64_t version = self.n_turns
        while version & 1:
            self.wait()  # no turn: it would make the steps of other callers be refused
            self.lock.release()
            version = self.n_turns
        return version

    def step(self, uint64_t version, changes):
        """Make changes, and return True; return False, and make none, if the data have another version by now.

        changes: tuples of a function and its arguments. Functions of C cannot be interrupted; one of Python could be.
        """
        self.take()
        try:
            if version + 1 != self.n_turns:
                return False
            for change in changes:
                change[0](*change[1:])
            return True
        finally:
            self.leave()

    def change(self, prepare):
        """Make the changes that `prepare` returns behind its result, and return this. `prepare` runs under the mutex, and changes nothing."""
        self.take()
        try:
            result, changes = prepare()
            for change in changes:
                change[0](*change[1:])
            return result
        finally:
            self.leave()

    def __enter__(self):
        self.take()

    def __exit__(self, *exception):
        self.leave()
