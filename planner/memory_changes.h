/* memory_changes.h - changes of a job that save memory (memory_changes.def).
 *
 * A change leaves model, cluster and global batch as they are. The result may break a rule, and may
 * need more memory than before. */
#pragma once
#include "core/job/job.h"

enum weft_change {
#define CHANGE(name, ...) WEFT_CHANGE_##name,
#include "planner/memory_changes.def"
  WEFT_N_CHANGE
};

struct weft_change_row {
  const char *name, *doc;
  /* effect of the change on the result of the training; NULL: it changes only the order of sums */
  const char *numerics;
  gboolean experts_only; /* TRUE: `numerics` holds for models with experts only */
  gboolean advised;      /* TRUE: the short advice of `weft memory` tries the change */
  gboolean (*make) (struct weft_job *job, unsigned variant);
};
extern const struct weft_change_row weft_changes[WEFT_N_CHANGE];

/* Applies a variant of a change to a job, and marks the settings that differ as set by the user.
 * Variants are numbered from 0; FALSE if there are no more. */
gboolean weft_change_make (enum weft_change change, unsigned variant, struct weft_job *job);

/* The effect of a change on the result of the training of this job; NULL: it changes only the order
 * of sums. */
const char *weft_change_numerics (enum weft_change change, const struct weft_job *job);

/* The flags, as char *, that turn the job `from` into the job `to`, which a change made: with them
 * appended to the command line of `from`, `weft` reads `to`. If the user named no global batch, the
 * flags fix that of `from`. The caller frees the array, which owns the texts. */
GPtrArray *weft_change_flags (const struct weft_job *from, const struct weft_job *to);
