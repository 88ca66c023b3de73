/* nccl.h - predicts measured collectives, row by row, with the formula of a collective in a step
 * (core/program/coll.h), and summarises the errors by fabric and by size.
 *
 * The table has the columns of nccl.def. Rules in an .ini file (by default validation/nccl.ini) say
 * which topology a row was measured on. Sections are conditions (conditions.h), applied in the
 * order of the file; a later key replaces an earlier one. Keys:
 *
 *   topology        the bundled topology whose GPUs and links the row has
 *   cluster.FIELD   a field of core/cluster.def that differs there
 *   stack.FIELD     a field of core/stack.def that differs there
 *   nodes           nodes of that topology that the ranks are in, if the table counts others
 *   fabric          group of the row in the report; default: the topology, and "network" if the
 *                   ranks are in several nodes
 *   host_per_rank   seconds that the one process of the benchmark needs for the launch on each GPU:
 *                   launches of the next collective hide behind this one, so the time is at least
 *                   the GPUs of a node times this
 *   host_before     seconds of the host that the benchmark counts before the collective begins
 *   refuse          the reason why the row is not predicted
 *   context         the reason why the row is predicted, but not counted
 *   why             the reason for the other keys, for readers */
#pragma once
#include "core/cluster/cluster.h"
#include "core/job/stack.h"
#include "planner/validate.h"

enum weft_nccl_column {
#define COLUMN(name, ...) WEFT_NCCL_##name,
#include "planner/nccl.def"
  WEFT_N_NCCL_COLUMN
};

/* X(ID, "name", bytes): classes of sizes, which are decades from 64 KiB on; `bytes` is the end of a
 * class. */
#define WEFT_NCCL_SIZE_LIST(X)                                                                     \
  X (WEFT_NCCL_BELOW_64KIB, "< 64 KiB", 65536.)                                                    \
  X (WEFT_NCCL_64KIB, "64 KiB", 655360.)                                                           \
  X (WEFT_NCCL_640KIB, "640 KiB", 6553600.)                                                        \
  X (WEFT_NCCL_6MIB, "6.25 MiB", 65536000.)                                                        \
  X (WEFT_NCCL_62MIB, "62.5 MiB", 655360000.)                                                      \
  X (WEFT_NCCL_625MIB, "625 MiB", 6553600000.)                                                     \
  X (WEFT_NCCL_6GIB, "6.1 GiB", G_MAXDOUBLE)
enum weft_nccl_size { WEFT_NCCL_SIZE_LIST (WEFT_WORD_ID) WEFT_N_NCCL_SIZE };
extern const char *const weft_nccl_size_names[];

/* One row. A row that cannot be predicted has only `line` and `why`. */
struct weft_nccl_row {
  unsigned line;             /* line of the file */
  char *why;                 /* why the row is not predicted; NULL: it is predicted */
  const char *context;       /* why the row is not counted; NULL: it is counted */
  char *fabric;
  struct weft_cluster cluster;
  union weft_stack stack;
  int kind;                  /* enum weft_op_kind */
  uint32_t ranks, nodes;
  enum weft_nccl_size size;
  double bytes, measured_s, host_per_rank, host_before;
  double predicted_s, error; /* set by weft_nccl_predict() */
  const char *algorithm;     /* set by weft_nccl_predict() */
};

typedef struct weft_nccl {
  uint32_t n_row;
  struct weft_nccl_row *row;
} weft_nccl;

/* Loads a table and the rules; a path that is NULL stands for the bundled file. The caller frees
 * it. */
weft_nccl *weft_nccl_load (const char *table, const char *rules, GError **error);
void weft_nccl_free (weft_nccl *nccl);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_nccl, weft_nccl_free)

/* Changes constants of a row's topology and stack before the row is predicted, for fits. */
typedef void (*weft_nccl_change) (void *user, struct weft_cluster *cluster,
                                  union weft_stack *stack);

/* Predicts all rows of the table. `change` may be NULL. */
void weft_nccl_predict (weft_nccl *nccl, weft_nccl_change change, void *user);

/* Writes to error[n_row] the errors of all measured collectives that are part of totals, with
 * constants that `change` sets; NaN for the other collectives. The predictions stored in `nccl` do
 * not change. */
void weft_nccl_errors (const weft_nccl *nccl, weft_nccl_change change, void *user, double *error);

/* Errors of the predicted collectives that are part of totals. `fabric` NULL: of all fabrics;
 * `size` WEFT_N_NCCL_SIZE: of all sizes. */
struct weft_validate_errors weft_nccl_sum (const weft_nccl *nccl, const char *fabric,
                                           enum weft_nccl_size size);

/* Names of the fabrics, sorted, NULL-terminated; the caller frees the array with g_free(). */
const char **weft_nccl_fabrics (const weft_nccl *nccl);
