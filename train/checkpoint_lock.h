/* checkpoint_lock.h - one writer at a time in a directory of checkpoints.
 *
 * The lock is flock() on the file DIR/.lock, which holds the process and the host of the writer for
 * the error message of a second writer. The lock ends with the process, even if the process is
 * killed; the file may stay then, and the next writer locks it again. On file systems without locks
 * there is no protection. */
#pragma once
#include <glib.h>

typedef struct weft_checkpoint_lock weft_checkpoint_lock;
struct weft_rendezvous; /* launch/rendezvous.h */

/* Creates the directory if it does not exist, and locks it. An error names the process that has the
 * lock. In a job of several processes (`peers`; NULL: one process), only the process of rank 0
 * creates and locks the directory. */
weft_checkpoint_lock *weft_checkpoint_lock_new (const char *dir, struct weft_rendezvous *peers,
                                                GError **error);

/* Unlocks the directory, and deletes it if weft_checkpoint_lock_new() created it and it is empty.
 * Accepts NULL. */
void weft_checkpoint_lock_free (weft_checkpoint_lock *lock);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_checkpoint_lock, weft_checkpoint_lock_free)

/* The directory. */
const char *weft_checkpoint_lock_dir (const weft_checkpoint_lock *lock);

/* Whether this process has the lock. If so, unfinished saves of other processes in the directory
 * were left by processes that have ended. */
gboolean weft_checkpoint_lock_held (const weft_checkpoint_lock *lock);
