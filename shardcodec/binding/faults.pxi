# faults.pxi - faults for tests: of calls that change a file system, and of allocations
# SPDX-License-Identifier: MIT

FAULTS = {"count": SC_FAULT_COUNT, "kill": SC_FAULT_KILL, "error": SC_FAULT_ERROR, "short": SC_FAULT_SHORT,
          "torn": SC_FAULT_TORN, "stop": SC_FAULT_STOP}


def set_fault(uint64_t n, str action, uint64_t value=0):
    """Set the fault at the n-th call that changes a file system, for tests (csrc/io/sc_fault.h)."""
    sc_fault_arm(n, <sc_fault_action><int>FAULTS[action], value)


def end_fault():
    """Remove the fault, for tests; return the names of the calls since `set_fault`."""
    cdef uint64_t n = sc_fault_disarm()
    cdef const char *call
    names = []
    for i in range(n):
        call = sc_fault_call(i)
        if call == NULL:
            break
        names.append(text(call))
    return names


def set_memory_fault(uint64_t n, bint and_all_after=False):
    """Fail the n-th allocation of C code, for tests; with `and_all_after`, also all later ones."""
    sc_worker_drop_free()
    sc_fault_arm_memory(n, and_all_after)


def end_memory_fault():
    """Remove the memory fault, for tests; return (allocations requested, allocations alive, bytes alive, most
    bytes alive at a time)."""
    sc_worker_drop_free()
    cdef sc_fault_memory seen = sc_fault_disarm_memory()
    return seen.n_asked, seen.n_live, seen.live_nbytes, seen.peak_nbytes
