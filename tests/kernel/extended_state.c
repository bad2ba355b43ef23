/* extended_state.c - a preloaded library with which User Mode Linux sets the registers of its processes on machines with AMX
 *
 * The kernel reserves a fixed number of bytes for the extended state of a process (XSAVE). ptrace() refuses a state that is shorter
 * than that of the processor, so the kernel cannot start a process there. The missing rest is read from the process first, and
 * its components are marked as unused.
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include <elf.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef NT_X86_XSTATE
#define NT_X86_XSTATE 0x202
#endif

#define MAX_STATE 32768
#define USED_COMPONENTS 64 /* place of the word with one bit for each component, in units of 8 bytes */
#define KNOWN_COMPONENTS 0x2ff /* up to AVX-512 and PKRU */

static long
set_registers(pid_t pid, const struct iovec *given)
{
    static __thread uint64_t state[MAX_STATE / sizeof(uint64_t)];
    struct iovec whole = { state, sizeof state };

    if (syscall(SYS_ptrace, PTRACE_GETREGSET, pid, (void *)NT_X86_XSTATE, &whole) || whole.iov_len <= given->iov_len)
        return syscall(SYS_ptrace, PTRACE_SETREGSET, pid, (void *)NT_X86_XSTATE, given);
    memcpy(state, given->iov_base, given->iov_len);
    memset((char *)state + given->iov_len, 0, whole.iov_len - given->iov_len);
    state[USED_COMPONENTS] &= KNOWN_COMPONENTS;
    return syscall(SYS_ptrace, PTRACE_SETREGSET, pid, (void *)NT_X86_XSTATE, &whole);
}

long
ptrace(enum __ptrace_request request, ...)
{
    va_list rest;
    pid_t pid;
    void *address, *data;
    long word = 0, r;

    va_start(rest, request);
    pid = va_arg(rest, pid_t);
    address = va_arg(rest, void *);
    data = va_arg(rest, void *);
    va_end(rest);
    if (request == PTRACE_SETREGSET && (long)address == NT_X86_XSTATE)
        return set_registers(pid, data);
    if (request != PTRACE_PEEKTEXT && request != PTRACE_PEEKDATA && request != PTRACE_PEEKUSER)
        return syscall(SYS_ptrace, request, pid, address, data);
    r = syscall(SYS_ptrace, request, pid, address, &word); /* the bare call stores the word, the library returns it */
    return r < 0 ? r : word;
}
