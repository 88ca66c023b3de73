/* variants.h - one job with lists of values for some of its settings: predicts every combination,
 * in parallel processes, and keeps the results in a file, from which a later run resumes.
 *
 * The file is CSV: column `job` (a hash of all settings outside the lists, of the executor and of
 * the version), one column for each list, `fate`, the numbers of a summary, and `reason`. A
 * row is written when its batch is done, and the file always appears whole. Rows of other values of
 * the same lists stay in the file. */
#pragma once
#include "planner/summary.h"

/* Most combinations of one run. */
enum { WEFT_VARIANTS_MOST = 100000 };

struct weft_variants_list {
  char *name; /* setting as typed: "tp" */
  char **value;
  unsigned n;
};

typedef struct weft_variants {
  weft_settings *base; /* borrowed: the settings of the job */
  const struct weft_exec_ops *executor;
  const char *version; /* borrowed: predictions of other versions may differ */
  GPtrArray *list;     /* struct weft_variants_list */
  uint32_t n;          /* number of combinations; the last list varies fastest */
  struct weft_summary *cell; /* predictions, by combination */
  uint32_t known;      /* number of combinations that the file had */
  GPtrArray *others;   /* lines of the file for combinations that are not in the lists */
} weft_variants;

/* Makes the combinations of lists "KNOB=a,b,c". Refuses an unknown setting, a setting that is named
 * twice, and an empty list. */
weft_variants *weft_variants_new (weft_settings *base, const char *const *lists,
                                const struct weft_exec_ops *executor, const char *version,
                                GError **error);
void weft_variants_free (weft_variants *variants);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_variants, weft_variants_free)

/* Text of the value that a combination has in a list. */
const char *weft_variants_value (const weft_variants *variants, uint32_t cell, unsigned list);

/* Reads the combinations that a file has. A file that does not exist has none. Refuses the file of
 * another job, and a file that is no such table; neither is changed. */
gboolean weft_variants_load (weft_variants *variants, const char *path, GError **error);

/* Forgets the predictions that the file had, so that a run predicts all combinations again. */
void weft_variants_forget (weft_variants *variants);

struct weft_variants_run {
  const char *csv; /* file to which results are written after each batch; NULL: none */
  uint32_t n_workers; /* number of processes, as in struct weft_workers (workers.h) */
  gboolean (*stop) (void *user);
  void (*progress) (void *user, uint32_t done, uint32_t of);
  /* sees the report of each combination, in the process that predicts it, which has no other way to
   * return something than a file; NULL: nobody does */
  void (*see) (void *user, uint32_t cell, const weft_report *report);
  void *user;
};

/* Predicts all combinations that are open. Returns when all are done or `stop` returns TRUE. */
gboolean weft_variants_run (weft_variants *variants, const struct weft_variants_run *run,
                           GError **error);
