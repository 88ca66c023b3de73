/* assumptions.h - makes a job from a row of published measurements, by rules in an .ini file (by
 * default validation/assumptions.ini).
 *
 * Each section is a rule. Its name lists the conditions that a row must meet:
 *
 *   [id = zb-* and recompute = blank]
 *
 * conditions.h has the grammar of conditions; the columns are those of published.def. Rules are
 * applied in the order of the file. A rule has these keys:
 *
 *   column.NAME       the value of that column, whose cell must be blank (condition NAME = blank)
 *   SECTION.KEY       a setting of the job, as in a job file; the last setting of a key counts
 *   measured.memory   the memory that the source reports: `device`, everything that the driver
 *                     counts; `reserved`, what PyTorch's allocator has obtained; or `allocator`,
 *                     the blocks of it that are in use
 *   measured.peak     `first_step`: the source read this memory after the first step of the run,
 *                     during which software with late_moments (core/stack.def) allocates the state
 *                     of its optimizer; `steps`: later
 *   measured.gigabyte the unit of that memory: `binary`, `decimal` (10^9 bytes) or `mebi` (1000
 *                     MiB)
 *   measured.flops    how the source counts the FLOPs of attention, if it prints a rate, or a
 *                     share of the specified bf16 rate, and no time: `causal` or `full`
 *   measured.graph    `step`: the source ran each step as one captured CUDA graph
 *   measured.runs     the number of times that the source runs the pipeline in a step: it passes
 *                     the microbatches of one run through all stages, reduces their gradients,
 *                     and starts the next run; the update follows the last run
 *   measured.steps    `overlapped`: a rank of the source begins the next step as soon as it has
 *                     ended its own work, without waiting for other ranks
 *   measured.totals   `apart`: the row counts in its source and its group, but in no total
 *   why               the reason, for readers
 *
 * {NAME} in a value is replaced by the cell of that column; if the cell is blank, no job is made
 * from the row. An expression such as "{dp} * 4 / 8" or "ceil ({layers} / {pp})" is replaced by its
 * value. */
#pragma once
#include "core/job/job.h"
#include "planner/published.h"

typedef struct weft_assumptions weft_assumptions;

/* Loads the rules from a file; `path` NULL: from the bundled file. The caller frees the rules. */
weft_assumptions *weft_assumptions_load (const char *path, GError **error);
void weft_assumptions_free (weft_assumptions *assumptions);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_assumptions, weft_assumptions_free)

/* A key of a rule that was applied to a row of measurements. */
struct weft_applied {
  /* names of a rule and of a key; both texts belong to struct weft_assumptions */
  const char *rule, *key;
  char *value;            /* the value, in which {NAME} has been replaced */
  unsigned line;          /* line of the key in the file of rules */
};

#define WEFT_MEASURED_MEMORY_LIST(X)                                                               \
  X (WEFT_MEMORY_DEVICE, "device", "all memory that the driver counts")                            \
  X (WEFT_MEMORY_ALLOCATOR, "allocator", "blocks in use (max_memory_allocated)")                   \
  X (WEFT_MEMORY_RESERVED, "reserved", "blocks in use and cached blocks (max_memory_reserved)")
enum weft_measured_memory { WEFT_MEASURED_MEMORY_LIST (WEFT_WORD_ID) WEFT_N_MEASURED_MEMORY };

#define WEFT_MEASURED_PEAK_LIST(X)                                                                 \
  X (WEFT_PEAK_STEPS, "steps", "the peak of several steps")                                        \
  X (WEFT_PEAK_FIRST_STEP, "first_step", "the peak of the first step of a run")
enum weft_measured_peak { WEFT_MEASURED_PEAK_LIST (WEFT_WORD_ID) WEFT_N_MEASURED_PEAK };

#define WEFT_GIGABYTE_LIST(X)                                                                      \
  X (WEFT_GIGABYTE_BINARY, "binary", "2^30 bytes")                                                 \
  X (WEFT_GIGABYTE_DECIMAL, "decimal", "10^9 bytes")                                               \
  X (WEFT_GIGABYTE_MEBI, "mebi", "1000 MiB: the thousands of a number of MiB")
enum weft_gigabyte { WEFT_GIGABYTE_LIST (WEFT_WORD_ID) WEFT_N_GIGABYTE };

#define WEFT_MEASURED_FLOPS_LIST(X)                                                                \
  X (WEFT_FLOPS_UNKNOWN, "unknown", "no step time is derived from a rate")                         \
  X (WEFT_FLOPS_CAUSAL, "causal", "half of the attention FLOPs: causal mask")                      \
  X (WEFT_FLOPS_FULL, "full", "all attention FLOPs, without the mask")
enum weft_measured_flops { WEFT_MEASURED_FLOPS_LIST (WEFT_WORD_ID) WEFT_N_MEASURED_FLOPS };

#define WEFT_MEASURED_TOTALS_LIST(X)                                                               \
  X (WEFT_TOTALS_COUNTED, "counted", "the row counts in all totals")                               \
  X (WEFT_TOTALS_APART, "apart", "the row counts in its source and its group only")
enum weft_measured_totals { WEFT_MEASURED_TOTALS_LIST (WEFT_WORD_ID) WEFT_N_MEASURED_TOTALS };

#define WEFT_MEASURED_GRAPH_LIST(X)                                                                \
  X (WEFT_MEASURED_GRAPH_NONE, "none", "the host launched each kernel")                            \
  X (WEFT_MEASURED_GRAPH_STEP, "step", "each step was one captured CUDA graph")
enum weft_measured_graph { WEFT_MEASURED_GRAPH_LIST (WEFT_WORD_ID) WEFT_N_MEASURED_GRAPH };

#define WEFT_MEASURED_STEPS_LIST(X)                                                                \
  X (WEFT_STEPS_APART, "apart", "all ranks begin a step together")                                 \
  X (WEFT_STEPS_OVERLAPPED, "overlapped", "a rank begins its next step while others end theirs")
enum weft_measured_steps { WEFT_MEASURED_STEPS_LIST (WEFT_WORD_ID) WEFT_N_MEASURED_STEPS };

typedef struct weft_row_job {
  struct weft_job job; /* the job; valid if weft_row_job_new() set no error */
  char *cell[WEFT_N_COLUMN]; /* texts of all cells of the row; rules have replaced blank cells */
  /* keys of rules that were applied to the row, struct weft_applied *, in order */
  GPtrArray *applied;
  /* values of enum weft_measured_memory, _peak, _flops, _totals, _graph and _steps */
  int memory, peak, flops, totals, graph, steps;
  int gigabyte;              /* unit of the measured memory, value of enum weft_gigabyte */
  int runs;                  /* of the pipeline in a step, at least 1 */
} weft_row_job;

/* Makes the job of a row. If the job breaks a rule of rules.def, or a value needs a cell that is
 * blank, *error is set, and the result still lists the rules of assumptions.h that were applied.
 * The caller frees the result. */
weft_row_job *weft_row_job_new (const weft_assumptions *assumptions, const weft_published *table,
                                unsigned row, GError **error);
void weft_row_job_free (weft_row_job *row);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_row_job, weft_row_job_free)

/* The measured seconds of a step: the printed time, or the time computed from tokens per second,
 * from FLOP/s or from the share of the specified rate. NaN if the row has none of these values. */
double weft_row_job_seconds (const weft_row_job *row);

/* Measured memory in bytes; NaN if the row has none. */
double weft_row_job_bytes (const weft_row_job *row);
