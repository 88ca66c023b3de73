/* constants.h - the constants that `weft fit` adjusts: fields of topologies and stacks, by an .ini
 * file (by default validation/fit.ini).
 *
 *   [stack megatron-core]
 *   attention_forward_share = 0.7 in 0.3..1
 *
 * A section names the kind of the file and the file; several files, separated by bars, share one
 * value. A key is a field of core/cluster.def or core/stack.def that each of these files gives
 * itself. The value is the prior value, from which the fit begins, and the range that it must not
 * leave; all three are positive. An optional fourth number, "0.7 in 0.3..1 within 0.1", is the
 * standard deviation of the logarithm that the prior value allows [WEFT_CONSTANT_SPREAD]. */
#pragma once
#include "core/base/sheet.h"
#include "planner/assumptions.h"

#define WEFT_CONSTANT_SPREAD 0.2

struct weft_constant {
  const struct weft_sheet *sheet;
  unsigned row;     /* row of the field in the sheet's table */
  char *files;      /* names of the files as the section gives them: "dgx-h100|hgx-h200" */
  GPtrArray *sheets; /* the files of the section, weft_sheet_file * */
  unsigned line;
  double prior, low, high, spread;
};

typedef struct weft_constants {
  weft_conf *conf;
  uint32_t n;
  struct weft_constant *constant;
} weft_constants;

/* Loads the constants; `path` NULL: from the bundled file. The caller frees them. */
weft_constants *weft_constants_load (const char *path, GError **error);
void weft_constants_free (weft_constants *constants);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_constants, weft_constants_free)

/* Sets applies[n] for each constant: whether the job of a row uses the value of the constant. The
 * job does not use it if its topology or stack has the field from another file, or if the row's
 * assumptions replace the value. */
void weft_constants_of (const weft_constants *constants, const weft_row_job *row,
                        gboolean *applies);

/* Sets, in a job, the fields of all constants that apply to the job to values[n]. */
void weft_constants_set (const weft_constants *constants, const gboolean *applies,
                         const double *values, union weft_cluster_fields *cluster,
                         union weft_stack *stack);

/* The name of a constant as text: "bf16_sustained of topology dgx-h100". The caller frees the
 * text. */
char *weft_constant_name (const struct weft_constant *constant);

/* Replaces the value of a constant in all files that contain it, and the comment on its line by
 * "fitted: " and `how`. Returns FALSE with an error if a file cannot be read or written; other
 * files may have been written before. */
gboolean weft_constant_write (const struct weft_constant *constant, double value, const char *how,
                              GError **error);
