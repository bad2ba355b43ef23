/* sc_closer.h - a thread that closes files which have lost their last name
 *
 * The last close of a file without a name gives its pages back, which takes a millisecond for every 15 MB, and no
 * caller needs its result. So the caller goes on, and a separate thread closes the file. This thread ends when no file is left.
 *
 *     update of 8 shards   copy, copy, ... rename, unlink | unlock all, return
 *     closer                                               | close, close, ...
 *
 * The result of close() is ignored: the file has no name, and its bytes were flushed before (sc_file_flush()). Until
 * then the file uses space. The next new file waits for the closer first, so a disk or quota never seems full because
 * of a removed file. A fork waits too: the child has no closer, and its copy of the descriptor would keep the file.
 * SPDX-License-Identifier: MIT */
#ifndef SC_CLOSER_H
#define SC_CLOSER_H

#include "base/sc_status.h"

/* Install the fork handlers. Once, at import. */
enum sc_status sc_closer_init(void);

/* Close a file: at once if that is quick or no thread can be started, else in the closer. nbytes: its size when it was looked at;
 * of a smaller one it is not asked whether it has lost its name. */
void sc_close_aside(int fd, uint64_t nbytes);

/* Wait until all files that were passed to sc_close_aside() are closed. */
void sc_closer_wait(void);

#endif
