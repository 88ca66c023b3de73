/* compare.h - two timelines side by side, A and B: two jobs, or a prediction and a measurement.
 *
 * If both jobs have the same ranks, and every role runs the same ops in the same order (shapes and
 * dependencies may differ), ops are joined by rank and number.  A rank of a folded timeline is the
 * row that stands for it, so a prediction with few rows joins a measurement of all ranks.  An op
 * counts when both sides ran it.  Otherwise nothing is joined, and each side is summed separately.
 *
 * Sums are seconds of the mean rank, as in report.h; ops are counted on all ranks.  `wait` is the
 * time from when lane order and dependencies let an op start until it began: for a collective or a
 * transfer the wait for its peers (if the executor takes their arrival as the begin), for a kernel
 * the time that the executor lost.  Members of one group of transfers wait for each other's
 * dependencies. */
#pragma once
#include "core/report/report.h"

enum { WEFT_COMPARE_A, WEFT_COMPARE_B, WEFT_N_COMPARE };

struct weft_compare_side {
  const char *name; /* as the user typed it */
  const weft_plan *plan;
  const weft_timeline *timeline;
};

/* All ops of one kind and group, or the ones with one label ("qkv"; numbers at the end of a label
 * are cut off). */
struct weft_compare_sum {
  enum weft_op_kind kind;
  enum weft_group_kind group;
  const char *label; /* interned; NULL: all of the kind, and rows with labels follow it */
  uint64_t n[WEFT_N_COMPARE];
  double seconds[WEFT_N_COMPARE], wait[WEFT_N_COMPARE];
};

/* One op of a role and how long it took on the rank where A and B differ most. */
struct weft_compare_op {
  uint32_t rank;
  uint32_t role, op;
  double seconds[WEFT_N_COMPARE];
};

struct weft_compare_setting {
  const char *section, *name;
  char *text[WEFT_N_COMPARE];
};

typedef struct weft_compare {
  struct weft_compare_side side[WEFT_N_COMPARE]; /* borrowed */
  weft_report *report[WEFT_N_COMPARE];
  char *mismatch; /* the first difference between the programs; NULL: they are the same */
  uint32_t n_ranks[WEFT_N_COMPARE]; /* ranks behind the means: joined, or else observed */
  uint64_t n_joined;                /* ops of all ranks that both sides ran */
  uint64_t n_only[WEFT_N_COMPARE];  /* ops that only one side ran, on ranks that both observed */
  GArray *sum;     /* weft_compare_sum: kinds by their time, labels below their kind likewise */
  GArray *worst;   /* weft_compare_op: largest difference first */
  GArray *setting; /* weft_compare_setting: all that differ between the jobs */
} weft_compare;

/* Differences below this share of the longer step are rounding and are not listed. */
#define WEFT_COMPARE_ROUNDING 1e-9

/* `most_worst` is how many single ops are kept.  Both sides must outlive the comparison; caller
 * frees. */
weft_compare *weft_compare_new (const struct weft_compare_side *a,
                                const struct weft_compare_side *b, uint32_t most_worst);
void weft_compare_free (weft_compare *compare);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_compare, weft_compare_free)

/* The weft.compare/1 document; the same as text. */
void weft_compare_to_json (const weft_compare *compare, JsonBuilder *builder);
void weft_compare_print (const weft_compare *compare, GString *out);
