/* sc_newfile_impl.h - the names of a new file; for sc_newfile.c and sc_newfile_name.c only
 * SPDX-License-Identifier: MIT */
#ifndef SC_NEWFILE_IMPL_H
#define SC_NEWFILE_IMPL_H

#include "io/sc_newfile.h"

/* Choose a temporary name in a folder: file->temp. False: no memory. */
bool sc_newfile_name_temp(struct sc_newfile *file, const char *folder);

/* Give a finished file its final name. taken: as of sc_newfile_commit(). */
enum sc_status sc_newfile_give_name(struct sc_newfile *file, bool *taken, struct sc_where *where);

#endif
