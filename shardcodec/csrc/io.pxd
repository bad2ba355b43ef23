# io.pxd - the C interface of csrc/io: files, locks, staging, the undo journal, faults for tests
# SPDX-License-Identifier: MIT

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from shardcodec.csrc.base cimport c_bool, sc_status, sc_where


cdef extern from "io/sc_closer.h" nogil:
    sc_status sc_closer_init()


cdef extern from "io/sc_file.h" nogil:
    struct sc_file_id:
        uint64_t device
        uint64_t inode
        uint64_t nbytes
        int64_t mtime_ns
        int64_t ctime_ns
        uint64_t n_links

    uint64_t sc_file_number(const char *folder, const char *path)


cdef extern from "io/sc_guard.h" nogil:
    enum sc_guard_kind:
        pass

    struct sc_guard:
        int fd

    sc_status sc_guard_init()


cdef extern from "io/sc_lock.h" nogil:
    enum sc_lock_outcome:
        SC_LOCK_HELD
        SC_LOCK_NO_FILE
        SC_LOCK_BUSY
        SC_LOCK_UNSUPPORTED
        SC_LOCK_DENIED
        SC_LOCK_GUARDED

    struct sc_lock:
        int fd
        sc_guard guard
        sc_file_id id
        int refusal
        uint64_t mount_id

    sc_status sc_lock_init()
    sc_status sc_lock_try(sc_lock *lock, const char *path, const char *name, const char *folder, sc_guard_kind kind,
                          sc_lock_outcome *outcome, sc_where *where)
    void sc_lock_release(sc_lock *lock, bint keeps)
    c_bool sc_lock_looks_anew()
    int sc_lock_look_at_folder(const char *path)
    int sc_lock_look_at_known(const char *path, bint follows, sc_file_id *found, c_bool *is_link)
    sc_status sc_lock_remove(const char *path, bint sync, sc_where *where)
    unsigned sc_lock_count()


cdef extern from "io/sc_staging.h" nogil:
    sc_status sc_staging_init()
    void sc_staging_leave(const char *folder)


cdef extern from "io/sc_undo.h" nogil:
    sc_status sc_undo_roll_back_dead(const char *path, int fd, c_bool *found, sc_where *where)
    sc_status sc_undo_locate(const char *path, char **journal, sc_where *where)


cdef extern from "io/sc_file.h" nogil:
    struct sc_file_version:
        uint64_t inode
        uint64_t nbytes
        int64_t mtime_ns

    sc_status sc_file_open(const char *path, int *fd, uint64_t *nbytes, sc_where *where)
    sc_status sc_file_truncate(int fd, const char *path, uint64_t nbytes, sc_where *where)
    uint32_t sc_file_inode_number(int fd)
    sc_status sc_file_sync_path(const char *path, sc_where *where)
    sc_status sc_file_write(int fd, const char *path, const uint8_t *src, size_t n, uint64_t offset, sc_where *where)


cdef extern from "io/sc_newfile.h" nogil:
    struct sc_newfile:
        int fd
        int at
        char *path
        char *temp
        const char *staging
        bint staged
        unsigned n_made

    bint sc_newfile_was_unguarded()
    sc_status sc_newfile_begin(sc_newfile *file, const char *path, const char *staging, sc_where *where)
    sc_status sc_newfile_begin_shared(sc_newfile *file, const char *path, const char *staging, sc_where *where)
    sc_status sc_newfile_join(sc_newfile *file, const char *path, const char *temp, const char *staging, unsigned n_made,
                              sc_where *where)
    sc_status sc_newfile_leave(sc_newfile *file, bint sync, sc_where *where)
    void sc_newfile_disown(sc_newfile *file)
    sc_status sc_newfile_commit(sc_newfile *file, bint sync, c_bool *taken, sc_file_version *made, sc_where *where)
    void sc_newfile_abort(sc_newfile *file)


cdef extern from "io/sc_append.h" nogil:
    enum sc_append_way:
        SC_APPEND_NOT
        SC_APPEND_DIRECT
        SC_APPEND_LEAP
        SC_APPEND_INDEX

    bint sc_append_direct_works(const char *folder)


cdef extern from "io/sc_latency.h" nogil:
    enum:
        SC_LATENCY_MOUNTS

    struct sc_device_hint:
        pass

    void sc_latency_seed(uint64_t device, uint64_t ns)
    void sc_latency_raise(uint64_t device, uint64_t ns)
    size_t sc_latency_list(uint64_t *devices, uint64_t *ns)
    void sc_latency_reset()


cdef extern from "io/sc_mount.h" nogil:
    uint64_t sc_mount_magic(int fd)


cdef extern from "io/sc_fault.h" nogil:
    enum sc_fault_action:
        SC_FAULT_COUNT
        SC_FAULT_KILL
        SC_FAULT_ERROR
        SC_FAULT_SHORT
        SC_FAULT_TORN
        SC_FAULT_STOP

    sc_status sc_fault_init()
    void sc_fault_arm(uint64_t n, sc_fault_action action, uint64_t value)
    uint64_t sc_fault_disarm()
    const char *sc_fault_call(uint64_t n)

    struct sc_fault_memory:
        uint64_t n_asked
        uint64_t n_live
        uint64_t live_nbytes
        uint64_t peak_nbytes

    void sc_fault_arm_memory(uint64_t n, c_bool and_all_after)
    sc_fault_memory sc_fault_disarm_memory()
