/* floor_keys.c - the time that Python needs to hold a list of keys, by whichever program it was made
 *
 * One bytes object for each key of a grid of two axes, 32 bits an axis, and the list of them: no index, no file. Any
 * library that returns such a list does at least this. Half of it is the kernel's: the first touch of 48 bytes a key.
 *
 * SPDX-License-Identifier: MIT */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>
#include <stdint.h>

static void
store_be32(char *to, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        to[i] = (char)(value >> (24 - 8 * i));
}

/* The keys of edge x edge entries, ascending. */
__attribute__((visibility("default"))) PyObject *
floor_keys(unsigned edge)
{
    PyObject *keys = PyList_New((Py_ssize_t)edge * edge);
    char key[8];
    Py_ssize_t at = 0;

    for (uint32_t i = 0; keys != NULL && i < edge; i++) {
        store_be32(key, i);
        for (uint32_t j = 0; j < edge; j++) {
            PyObject *one;

            store_be32(key + 4, j);
            one = PyBytes_FromStringAndSize(key, 8);
            if (one == NULL || PyList_SetItem(keys, at++, one) != 0) {
                Py_DECREF(keys);
                return NULL;
            }
        }
    }
    return keys;
}
