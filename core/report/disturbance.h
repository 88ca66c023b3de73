/* disturbance.h - what a disturbance of a step costs (core/plan/disturb.h), and which ranks wait
 * for which. */
#pragma once
#include "core/exec/timeline.h"
#include "core/report/report.h"

/* Ranks whose communication on one lane waits longer than in the undisturbed step, mostly for the
 * same ranks. */
struct weft_waiting {
  enum weft_lane lane;
  uint32_t ranks;         /* number of ranks that wait */
  uint32_t behind;        /* rank that is waited for; of several ranks of a stage, the first */
  uint32_t behind_ranks;  /* number of ranks that are waited for */
  double seconds;         /* longest additional wait of one rank in a step */
};

/* Step times of several runs with jitter, which differ in their seeds. */
struct weft_spread {
  uint32_t runs; /* 0: no jitter */
  double mean, least, p5, p50, p95, most;
};

typedef struct weft_disturbance {
  const char *straggler, *link; /* as typed; NULL or "": none. Borrowed */
  double jitter;
  double undisturbed_s, step_s; /* seconds of both steps; with jitter the mean of all runs */
  /* difference of ranks that were simulated as one class (weft_timeline.misfit), and whether it is
   * only rounding */
  double misfit_s;
  gboolean exact;
  uint32_t rows, ranks;         /* number of simulated classes of ranks; number of ranks */
  GArray *waiting;              /* struct weft_waiting, longest waits first */
  struct weft_spread spread;
} weft_disturbance;

/* Compares two simulations of a plan with the option waits. */
weft_disturbance *weft_disturbance_new (const weft_timeline *undisturbed,
                                        const weft_timeline *disturbed,
                                        const struct weft_mesh *mesh);
void weft_disturbance_free (weft_disturbance *disturbance);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_disturbance, weft_disturbance_free)

/* Sets the spread, and the step time to its mean, from the step times of n runs. */
void weft_disturbance_set_runs (weft_disturbance *disturbance, const double *seconds, uint32_t n);

/* Prints by how much the disturbance lengthens the step. */
void weft_disturbance_print (const weft_disturbance *disturbance, GString *out);

/* Adds the member "disturbance" to the open JSON object. */
void weft_disturbance_to_json (const weft_disturbance *disturbance, JsonBuilder *builder);
