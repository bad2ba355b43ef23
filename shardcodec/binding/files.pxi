# files.pxi - locks of files, and new files before their commit
# SPDX-License-Identifier: MIT

LOCK_OUTCOMES = {SC_LOCK_HELD: "held", SC_LOCK_NO_FILE: "no file", SC_LOCK_BUSY: "busy",
                 SC_LOCK_UNSUPPORTED: "unsupported", SC_LOCK_DENIED: "denied", SC_LOCK_GUARDED: "guarded"}


cdef class FileLock:
    """The lock of one file against other processes (csrc/io/sc_lock.h); released with the object at the latest."""

    cdef sc_lock lock

    def __cinit__(self):
        self.lock.fd = self.lock.guard.fd = -1

    def __dealloc__(self):
        with nogil:
            sc_lock_release(&self.lock, False)

    def try_acquire(self, str path, str name=None, str folder=None, int kind=0):
        """Take the lock if it is free; return "held", "no file", "busy", "unsupported", "denied" or "guarded".

        name: another path of the file, by which the caller writes it. folder: that of the lock file (csrc/io/sc_guard.h), which
        holds the lock in place of the shard; after "no file", too. "guarded": other processes use the lock file; without
        `folder`, call again with it, otherwise this process may not open it. kind: what the lock lacks on its file system, a
        number of `sc_guard_kind`.
        """
        cdef bytes path_text = path_bytes(path)
        cdef bytes name_text = path_text if name is None else path_bytes(name)
        cdef bytes folder_text
        cdef const char *path_c = path_chars(path_text)
        cdef const char *name_c = path_chars(name_text)
        cdef const char *folder_c = NULL
        cdef sc_lock_outcome outcome
        cdef sc_status status
        cdef sc_where where
        if self.is_held:
            raise ValueError("expected a free FileLock, but it holds a lock already; release it first")
        if folder is not None:
            folder_text = path_bytes(folder)
            folder_c = path_chars(folder_text)
        with nogil:
            status = sc_lock_try(&self.lock, path_c, name_c, folder_c, <sc_guard_kind>kind, &outcome, &where)
        where.shard = 0
        raise_status(status, &where, [path_text])
        return LOCK_OUTCOMES[outcome]

    @property
    def is_held(self):
        """True if the lock is held."""
        return self.lock.fd >= 0 or self.lock.guard.fd >= 0

    @property
    def is_guarded(self):
        """True if a lock file holds the lock in place of the shard."""
        return self.lock.guard.fd >= 0

    def release(self, bint keeps=False):
        """Release the lock; do nothing if it is not held, or the parent process holds it. keeps: a lock file stays open."""
        with nogil:
            sc_lock_release(&self.lock, keeps)

    @property
    def fd(self):
        """File descriptor of the shard; -1 if it does not exist, or the lock is not held. With a lock file, a write closes it."""
        return self.lock.fd

    @property
    def seen(self):
        """The file at the last attempt that found one: (nbytes, mtime_ns, ctime_ns, device, inode, n_links)."""
        cdef sc_file_id *seen = &self.lock.id
        return seen.nbytes, seen.mtime_ns, seen.ctime_ns, seen.device, seen.inode, seen.n_links

    @property
    def mount(self):
        """(mount id, device) of the file of the last attempt that found one, as the kernel numbers them; id 0: unknown."""
        return self.lock.mount_id, self.lock.id.device

    @property
    def refusal(self):
        """The errno of the last call that did not lock the file; 0: none."""
        return self.lock.refusal


def looks_anew():
    """Return True if a look at a locked file is not answered from the cache of a network file system (csrc/io/sc_lock.h)."""
    return sc_lock_looks_anew()


def look_at_folder(str folder):
    """Ask the server of a network file system for the state of a folder, so that no cached name in it counts."""
    cdef bytes name = path_bytes(folder + "/")
    cdef const char *chars = path_chars(name)
    with nogil:
        sc_lock_look_at_folder(chars)


def shard_number(str folder, str path):
    """Return the number of a shard in the names in the folder of a lock file (csrc/io/sc_staging.h)."""
    cdef bytes folder_bytes = path_bytes(folder), name = path_bytes(path)
    return sc_file_number(path_chars(folder_bytes), path_chars(name))


def look_at_known(str path, bint follows=True):
    """Return device, inode and, for a link that is not followed, True; None if nothing is there.

    A client of a network file system that knows the path asks its server for nothing, unlike `os.stat`.
    """
    cdef bytes name = path_bytes(path)
    cdef const char *chars = path_chars(name)
    cdef sc_file_id found
    cdef c_bool is_link
    cdef int r
    with nogil:
        r = sc_lock_look_at_known(chars, follows, &found, &is_link)
    return None if r else (found.device, found.inode, is_link)


def seed_latency(uint64_t device, double seconds):
    """Set the estimate of the cost of a call for a file system that has none yet."""
    sc_latency_seed(device, <uint64_t>(1e9 * seconds))


def raise_latency(uint64_t device, double seconds):
    """Raise the estimate to a time that the caller has measured more than once."""
    sc_latency_raise(device, <uint64_t>(1e9 * seconds))


def latencies():
    """Return the estimated cost of a call in seconds, for each device number."""
    cdef uint64_t devices[SC_LATENCY_MOUNTS]
    cdef uint64_t ns[SC_LATENCY_MOUNTS]
    cdef size_t n = sc_latency_list(devices, ns), i
    return {devices[i]: ns[i] / 1e9 for i in range(n)}


def roll_back(str path, int fd):
    """Roll back the unfinished in-place update of a dead writer (csrc/io/sc_undo.h); return True if there was one.

    fd: file descriptor of the shard, locked by the caller.
    """
    cdef bytes name = path_bytes(path)
    cdef const char *chars = path_chars(name)
    cdef c_bool found = False
    cdef sc_where where
    cdef sc_status status
    sc_where_clear(&where)
    with nogil:
        status = sc_undo_roll_back_dead(chars, fd, &found, &where)
    where.shard = 0
    raise_status(status, &where, [name])
    return bool(found)


def pending_journal(str path):
    """Return the path of the undo journal of a file (csrc/io/sc_undo.h); None if there is none.

    The journal of a writer that still works is one too.
    """
    cdef bytes name = path_bytes(path)
    cdef const char *chars = path_chars(name)
    cdef char *journal = NULL
    cdef sc_where where
    cdef sc_status status
    sc_where_clear(&where)
    with nogil:
        status = sc_undo_locate(chars, &journal, &where)
    where.shard = 0
    raise_status(status, &where, [name])
    if journal == NULL:
        return None
    found = os.fsdecode(<bytes>journal)
    free(journal)
    return found


def open_file(str path):
    """Open a regular file for reading, without blocking on other kinds of files; return -1 for no file.

    ShardFileError for a folder, a link to nothing, a FIFO and the like.
    """
    cdef bytes name = path_bytes(path)
    cdef const char *chars = path_chars(name)
    cdef uint64_t nbytes
    cdef sc_where where
    cdef sc_status status
    cdef int fd
    sc_where_clear(&where)
    with nogil:
        status = sc_file_open(chars, &fd, &nbytes, &where)
    where.shard = 0
    raise_status(status, &where, [name])
    return fd


def inode_number(int fd):
    """Return the number that the file system gave to an inode when it made it; 0: unknown.

    Device, inode and this number name one file or folder for ever: the inode of a removed one is given again.
    """
    return sc_file_inode_number(fd)


def sync_path(str path):
    """Wait until a file, or the names in a folder, are on disk."""
    cdef bytes name = path_bytes(path)
    cdef const char *chars = path_chars(name)
    cdef sc_where where
    cdef sc_status status
    sc_where_clear(&where)
    with nogil:
        status = sc_file_sync_path(chars, &where)
    where.shard = 0
    raise_status(status, &where, [name])


def remove_file(str path, *, bint sync=False):
    """Remove a file, or a symbolic link to one, if it exists. sync: make the removal durable with an fsync of the folder."""
    cdef bytes name = path_bytes(path)
    cdef const char *chars = path_chars(name)
    cdef sc_where where
    cdef sc_status status
    sc_where_clear(&where)
    with nogil:
        status = sc_lock_remove(chars, sync, &where)
    where.shard = 0
    raise_status(status, &where, [name])


def was_unguarded():
    """Return True if a file got a name, since the last call, that nothing kept from another new file of the same name."""
    return bool(sc_newfile_was_unguarded())


def file_locks_held():
    """Return the number of files that this process has locked."""
    return sc_lock_count()


cdef class NewFile:
    """A new file that gets its name at the commit (csrc/io/sc_newfile.h); removed with the object, unless committed.

    Several threads may write at the same time; one thread commits or aborts after the other threads have finished.

    staging: folder for temporary names. shared: the file has a temporary name from the start, so that other processes can
    join it with its `place` (path, temp, staging or None, n_made). An object that joined does not remove the file.
    """

    cdef sc_newfile file
    cdef bytes path, temp, staging
    cdef bint joined, ending
    cdef int n_writing

    def __cinit__(self, str path, *, str staging=None, bint shared=False, str temp=None, unsigned n_made=0):
        cdef const char *chars
        cdef const char *temp_chars = NULL
        cdef const char *staging_chars = NULL
        cdef sc_where where
        cdef sc_status status
        self.file.fd = self.file.at = -1
        self.path = path_bytes(path)
        chars = path_chars(self.path)
        self.joined = temp is not None
        if staging is not None:
            self.staging = path_bytes(staging)
            staging_chars = path_chars(self.staging)
        if self.joined:
            self.temp = path_bytes(temp)
            temp_chars = path_chars(self.temp)
        sc_where_clear(&where)
        with nogil:
            if temp_chars != NULL:
                status = sc_newfile_join(&self.file, chars, temp_chars, staging_chars, n_made, &where)
            elif shared:
                status = sc_newfile_begin_shared(&self.file, chars, staging_chars, &where)
            else:
                status = sc_newfile_begin(&self.file, chars, staging_chars, &where)
        self.raise_for(status, &where)

    def __dealloc__(self):
        if self.file.fd < 0:
            return
        with nogil:
            if self.joined:
                sc_newfile_disown(&self.file)
            else:
                self.forget()

    cdef void forget(self) noexcept nogil:
        """Remove the file, and the staging folder if it is empty."""
        sc_newfile_abort(&self.file)
        if self.file.staged:
            sc_staging_leave(self.file.staging)

    @property
    def place(self):
        """(path, temp, staging or None, n_made): the arguments with which other processes join."""
        self.begin_write()
        try:
            return (os.fsdecode(self.file.path), None if self.file.temp == NULL else os.fsdecode(self.file.temp),
                    os.fsdecode(self.staging) if self.file.staged else None, self.file.n_made)
        finally:
            self.end_write()

    cdef int raise_for(self, sc_status status, sc_where *where) except -1:
        where.shard = 0
        return raise_status(status, where, [self.path])

    cdef int check_open(self) except -1:
        """Raise if the file is not open; in a critical section. While a thread ends the file, only that one may look at it."""
        if self.ending:
            raise ValueError("expected an open new file, but another thread is committing or aborting it")
        if self.file.fd < 0:
            raise ValueError("expected an open new file, but it has been committed or aborted")
        return 0

    cdef int begin_end(self) except -1:
        """Let other calls raise from here on; raise while a thread writes.

        Once the file descriptor is closed, it may be that of another file.
        """
        cdef bint is_idle
        with cython.critical_section(self):
            self.check_open()
            is_idle = self.n_writing == 0
            self.ending = is_idle
        if not is_idle:
            raise ValueError("expected a new file without active writers, but another thread is writing to it")
        return 0

    cdef int end_end(self) except -1:
        with cython.critical_section(self):
            self.ending = False
        return 0

    cdef int begin_write(self) except -1:
        """Keep the file open until `end_write`."""
        with cython.critical_section(self):
            self.check_open()
            self.n_writing += 1
        return 0

    cdef int end_write(self) except -1:
        with cython.critical_section(self):
            self.n_writing -= 1
        return 0

    def write(self, data, uint64_t offset):
        """Write bytes at an offset."""
        cdef View source = View(data)
        cdef sc_where where
        cdef sc_status status
        if offset > MAX_OBJECT_NBYTES - source.nbytes():
            raise ValueError(f"expected a file of at most {MAX_OBJECT_NBYTES} bytes, got {source.nbytes()} bytes at offset "
                             f"{offset}")
        sc_where_clear(&where)
        self.begin_write()
        with nogil:
            status = sc_file_write(self.file.fd, self.file.path, source.data(), source.nbytes(), offset, &where)
        self.end_write()
        self.raise_for(status, &where)

    def truncate(self, uint64_t nbytes):
        """Set the size of the file."""
        cdef sc_where where
        cdef sc_status status
        if nbytes > MAX_OBJECT_NBYTES:
            raise ValueError(f"expected a file of at most {MAX_OBJECT_NBYTES} bytes, got {nbytes}")
        sc_where_clear(&where)
        self.begin_write()
        with nogil:
            status = sc_file_truncate(self.file.fd, self.file.path, nbytes, &where)
        self.end_write()
        self.raise_for(status, &where)

    def commit(self, *, bint sync=False, bint only_new=False):
        """Give the file its name, replacing an older file, and close it; with `sync`, make it durable. Return True.

        only_new: do not replace anything; if the name exists, return False and leave the new file open.
        """
        cdef sc_where where
        cdef sc_status status
        cdef c_bool taken = False
        self.begin_end()
        sc_where_clear(&where)
        with nogil:
            status = sc_newfile_commit(&self.file, sync, &taken if only_new else NULL, NULL, &where)
            if not taken:
                self.forget()
        self.end_end()
        self.raise_for(status, &where)
        return not taken

    def leave(self, *, bint sync=False):
        """Close a shared file without committing it, for the other processes; with `sync`, make the writes durable.

        After an error it is still open; the caller aborts it or drops the object.
        """
        cdef sc_where where
        cdef sc_status status
        self.begin_end()
        sc_where_clear(&where)
        with nogil:
            status = sc_newfile_leave(&self.file, sync, &where)
        self.end_end()
        self.raise_for(status, &where)

    def abort(self):
        """Remove the file; do nothing after a commit."""
        cdef bint is_open
        with cython.critical_section(self):
            is_open = self.ending or self.file.fd >= 0
        if is_open:
            self.begin_end()
            with nogil:
                self.forget()
            self.end_end()
