# lock_table.pxi - locks by key, that a signal handler cannot tear
# SPDX-License-Identifier: MIT
#
# A signal handler that raises ends Python code between any two steps, even at the first step of `__exit__`, so a lock that
# is taken or given back by Python code can stay locked for ever. Native code is left only through a call that raises.
#
# The interpreter lock is kept all through a method, except while a thread waits: to other threads as well it is one step.

from _thread import allocate_lock
from contextvars import ContextVar

cdef enum:
    N_COUNTERS = 1024        # of locks that were taken; keys share them
    MAX_INTERRUPTS = 1000    # of one grant

# Keys held by this thread or task, or by the one that started it and waits for it.
cdef object held_here = ContextVar("shardcodec.locks", default=frozenset())


cdef tuple _call_to_its_end(call):
    """Call until a signal handler lets it return; what it returned, and what a handler raised."""
    interrupt = None
    for _ in range(MAX_INTERRUPTS):
        try:
            return call(), interrupt
        except BaseException as error:
            interrupt = error
    return None, interrupt


cdef class LockTable:
    """Locks by key, a string. A lock exists only while it is held or waited for; it passes to the first that asked.

    What waits is a `grant`: called when the lock is handed over, by the thread that releases it. It returns False where
    nothing waits any more. It is called again when a signal handler raised in it.
    """

    cdef dict queues  # of each lock that is held
    cdef uint64_t[N_COUNTERS] n_taken_of

    def __init__(self):
        self.queues = {}

    def __len__(self):
        return len(self.queues)

    def n_waiting(self, str key):
        """Count those that wait for a lock."""
        return len(self.queues.get(key, ()))

    def calm(self, str key):
        """Return a number that stays the same until the lock is taken; None while it is held.

        So a reader who asks twice can tell whether there was a writer meanwhile. Other keys may change the number too.
        """
        return None if key in self.queues else self.n_taken_of[<uint64_t>hash(key) % N_COUNTERS]

    def n_taken(self, str key):
        """What `calm` will say when the caller has released the lock and before it is taken again."""
        return self.n_taken_of[<uint64_t>hash(key) % N_COUNTERS]

    @staticmethod
    def holds(key):
        """Tell whether the caller, or its own caller, has the lock."""
        return key in held_here.get()

    def enter(self, str key, grant):
        """Take the lock and return True; else queue up with `grant`, unless it is None."""
        cdef list mine = []
        cdef list queue = self.queues.setdefault(key, mine)
        if queue is mine:
            self.n_taken_of[<uint64_t>hash(key) % N_COUNTERS] += 1
            return True
        if grant is not None:
            queue.append(grant)
        return False

    def withdraw(self, str key, grant):
        """Leave the queue; False when the lock has been granted already."""
        cdef list queue = self.queues.get(key)
        if queue is None or grant not in queue:
            return False
        queue.remove(grant)
        return True

    def release(self, str key):
        """Pass the lock on."""
        cdef list queue = self.queues.get(key)
        if queue is None:  # a forked child has a new table: the parent's lock is the parent's
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
        """Wait for the lock. Not for a thread that runs an event loop."""
        if self.enter(key, None):
            return
        waiter = allocate_lock()
        waiter.acquire()
        grant = waiter.release
        if self.enter(key, grant):
            return
        try:
            waiter.acquire()
        except BaseException:  # nothing else would release what is granted later
            if not self.withdraw(key, grant):
                self.release(key)
            raise


cdef class Hold:
    """A block in which locks are held: all of them, or none after an exception, wherever that came from."""

    cdef LockTable table
    cdef object keys
    cdef list taken
    cdef object token

    def __init__(self, LockTable table, keys):
        self.table = table
        self.keys = keys
        self.taken = []

    def missing(self):
        """Return what is to be taken, in ascending order: two blocks cannot wait for each other."""
        return sorted(set(self.keys) - held_here.get())

    def take(self, str key):
        """Wait for a lock, and take it."""
        self.table.acquire(key)
        self.taken.append(key)

    def try_take(self, str key):
        """Take a lock that is free; tell whether it was."""
        if not self.table.enter(key, None):
            return False
        self.taken.append(key)
        return True

    def took(self, str key):
        """Note a lock that was granted."""
        self.taken.append(key)

    def begin(self):
        """Let the block hold what has been taken."""
        self.token = held_here.set(held_here.get().union(self.taken))

    def give_back(self):
        """Release what has been taken, the last first."""
        interrupt = None
        while self.taken:
            try:
                self.table.release(self.taken.pop())
            except BaseException as error:
                interrupt = error
        if interrupt is not None:
            raise interrupt

    def __enter__(self):
        try:
            for key in self.missing():
                self.take(key)
            self.begin()
        except BaseException:
            self.give_back()
            raise

    def __exit__(self, *exception):
        try:
            held_here.reset(self.token)
        finally:
            self.give_back()
