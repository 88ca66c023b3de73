/* fit.h - adjusts constants of topologies and stacks to published measurements, within the
 * simulator.
 *
 * The unknowns are logarithms of the constants (constants.h). The residuals are ln (predicted /
 * measured) of the step time of each row, and of its memory where it was measured, of tiers A and
 * B, without the rows that stand apart. A row counts with weight 1 / WEFT_FIT_NOISE^2; the rows of
 * a source count as at most WEFT_FIT_ROWS rows together, so that no source decides alone. The
 * robust loss and the prior of least_squares.h apply. Each round predicts every row once for each
 * constant that it uses, changed by WEFT_FIT_CHANGE, and then searches along the Gauss-Newton step
 * for a smaller loss. The result depends on the table, the rules and the file of constants only,
 * not on the values that topologies and stacks have now.
 *
 * For a source that was left out, the constants are those of the linear model at the fit without
 * its rows; its rows are then predicted anew. */
#pragma once
#include "core/exec/exec.h"
#include "planner/constants.h"

#define WEFT_FIT_NOISE 0.05
#define WEFT_FIT_ROWS 20.0
#define WEFT_FIT_CHANGE 0.03

struct weft_fit_options {
  const struct weft_exec_ops *executor;
  uint32_t jobs;         /* number of processes; 0: one for each processor */
  uint32_t most_rounds;
  const char *source;    /* pattern of the sources whose rows are used; NULL: all */
  /* function that reports progress; may be NULL */
  void (*progress) (void *user, const char *what, uint32_t done, uint32_t of);
  gboolean thin; /* of runs that differ only in the number of GPUs and a global batch in proportion,
                  * only the one with the fewest GPUs counts, unless its memory was measured */
  void *user;
};

/* Mean absolute errors and mean errors (biases) of predicted / measured - 1; NaN without rows. */
struct weft_fit_error {
  uint32_t n;
  double mean, bias;
};

/* X(name, doc): the variants of the constants for which the errors of a source are predicted. */
#define WEFT_FIT_STATE_LIST(X)                                                                     \
  X (WEFT_FIT_PRIOR, "prior", "before the fit")                                                    \
  X (WEFT_FIT_FITTED, "fitted", "after the fit")                                                   \
  X (WEFT_FIT_LEFT_OUT, "left_out", "fitted without the rows of the source")
enum weft_fit_state { WEFT_FIT_STATE_LIST (WEFT_WORD_ID) WEFT_N_FIT_STATE };
extern const char *const weft_fit_state_names[];

struct weft_fit_source {
  char *name;
  struct weft_fit_error time[WEFT_N_FIT_STATE], memory[WEFT_N_FIT_STATE];
};

struct weft_fitted {
  double value;
  /* standard deviation of the logarithm of the value; infinite if no row depends on the constant */
  double standard_error;
  double sensitivity;     /* mean of |d ln t / d ln constant| over the rows that use the constant */
  uint32_t n_time, n_memory; /* numbers of rows that depend on the constant */
  /* mean errors by source, with the constant at its prior value and the other constants fitted, in
   * the linear model */
  double time_without, memory_without;
  gboolean on_bound;
};

typedef struct weft_fit {
  uint32_t n_constant, n_source, n_refused, n_round;
  struct weft_fitted *constant; /* constants in the order of struct weft_constants */
  struct weft_fit_source *source; /* sources in the order of their first rows */
  /* means over sources of the mean of each source */
  double time[WEFT_N_FIT_STATE], memory[WEFT_N_FIT_STATE];
} weft_fit;

/* Fits the constants. Returns NULL with an error if no measurement can be used, or no process can
 * be started. The caller frees the result. */
weft_fit *weft_fit_new (const weft_published *table, const weft_assumptions *assumptions,
                        const weft_constants *constants, const struct weft_fit_options *options,
                        GError **error);
void weft_fit_free (weft_fit *fit);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_fit, weft_fit_free)
