/* compare.h - two timelines side by side, A and B: two jobs, or a prediction and a measurement.
 *
 * If both jobs have the same ranks, and every role runs the same ops in the same order (shapes and
 * dependencies may differ), ops are joined by rank and number. A row of a folded timeline
 * represents several ranks, so a prediction with few rows can be joined with a measurement of all
 * ranks. The sums count a joined op only if both sides ran the op. Jobs with different programs are
 * not joined: each side is summed separately.
 *
 * Sums are seconds of the mean rank, as in report.h; ops are counted on all ranks.  `wait` is the
 * time from when lane order and dependencies allow an op to start until it begins.  For a
 * collective or a transfer this is the wait for its peers, if the executor lets the op begin when
 * the last peer is ready; for a kernel it is time that the executor lost.  Members of one group of
 * transfers wait for each other's dependencies. */
#pragma once
#include "core/report/report.h"

enum { WEFT_COMPARE_A, WEFT_COMPARE_B, WEFT_N_COMPARE };

struct weft_compare_side {
  const char *name; /* the job or file as the user typed it */
  const weft_plan *plan;
  const weft_timeline *timeline;
};

/* Sum over all ops of one kind and group, or only over the ops with one label ("qkv"). A number at
 * the end of a label is cut off. */
struct weft_compare_sum {
  enum weft_op_kind kind;
  enum weft_group_kind group;
  /* name of the label; not owned. NULL: all ops of the kind; the sums over the labels of this kind
   * follow in the array */
  const char *label;
  uint64_t n[WEFT_N_COMPARE];
  double seconds[WEFT_N_COMPARE], wait[WEFT_N_COMPARE];
};

/* An op of a role, with its seconds in A and B on the rank where the two differ most. */
struct weft_compare_op {
  uint32_t rank;
  uint32_t role, op;
  double seconds[WEFT_N_COMPARE];
};

struct weft_compare_setting {
  const char *section, *name, *unit; /* unit of a number, "B/s"; "": none */
  char *text[WEFT_N_COMPARE];
};

typedef struct weft_compare {
  struct weft_compare_side side[WEFT_N_COMPARE]; /* borrowed */
  weft_report *report[WEFT_N_COMPARE];
  /* text about the first difference between the programs; NULL: the programs are the same */
  char *mismatch;
  /* number of ranks over which `sum` averages: the ranks that both sides observed, or, if
   * `mismatch` is set, all ranks that a side observed */
  uint32_t n_ranks[WEFT_N_COMPARE];
  uint64_t n_joined;                /* number of ops that both sides ran, on all ranks */
  /* number of ops that only this side ran, on ranks that both sides observed */
  uint64_t n_only[WEFT_N_COMPARE];
  /* array of weft_compare_sum: the op kinds, largest time first, and after each kind its labels,
   * largest time first */
  GArray *sum;
  GArray *worst;   /* array of weft_compare_op, largest difference first */
  GArray *setting; /* array of weft_compare_setting: the settings that differ between the jobs */
} weft_compare;

/* Differences that are below this fraction of the longer step are rounding errors and are not
 * listed. */
#define WEFT_COMPARE_ROUNDING 1e-9

/* Compares two sides (plans with timelines), which must outlive the comparison. `most_worst` is the
 * largest number of ops in `worst`. The caller frees the comparison. */
weft_compare *weft_compare_new (const struct weft_compare_side *a,
                                const struct weft_compare_side *b, uint32_t most_worst);
void weft_compare_free (weft_compare *compare);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_compare, weft_compare_free)

/* A number of the step of both sides. */
struct weft_compare_line {
  const char *word, *unit; /* unit "s", "B", or "%": the values are fractions */
  double value[WEFT_N_COMPARE];
};

/* The numbers of the step: times, shares, memory. The caller frees the array of struct
 * weft_compare_line. */
GArray *weft_compare_lines (const weft_compare *compare);

/* Whether a table lists sum number i. A sum without seconds and waits is not listed. Neither is the
 * sum over a label that is the only label of its kind, because the line of the kind contains the
 * same numbers. */
gboolean weft_compare_lists (const weft_compare *compare, unsigned i);

/* The name of a sum: "all_gather, dp", or its label. The caller frees the text. */
char *weft_compare_sum_name (const struct weft_compare_sum *sum);

/* The value of a setting on one side for a reader: "46 GB/s"; with all digits if both sides would
 * else look the same. The caller frees the text. */
char *weft_compare_setting_text (const struct weft_compare_setting *setting, int side);

/* The ratio B / A as text; a dash if A is 0. The caller frees the text. */
char *weft_compare_ratio (double a, double b);

/* Adds the comparison to a JSON builder as a document weft.compare/1. */
void weft_compare_to_json (const weft_compare *compare, JsonBuilder *builder);

/* Appends the comparison as text. Its tables fit `columns` characters, but are at least 70
 * characters wide. */
void weft_compare_print (const weft_compare *compare, int columns, GString *out);
