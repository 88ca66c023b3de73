/* report.h - time, overlap and memory of one step, computed only from a plan and a timeline.
 *
 * iteration
 *   model FLOPs      forward and backward of the model once, without recompute: 6 N + 6 L a d s
 *                    per token, attention by flops_convention (weft_job_flops_per_token; causal
 *                    is the convention of Megatron-LM since 2024).  MFU divides their rate by the
 *                    dense peak that the vendor prints for the dtype of the matmuls.
 *   hardware FLOPs   the FLOPs of the ops that run, including recompute and padded vocabulary.
 *                    HFU divides their rate by the same peak.
 *
 * overlap, for each rank, after merging the intervals of its lanes (definitions of Meta's Holistic
 * Trace Analysis: communication computation overlap and temporal breakdown)
 *   compute          a kernel runs on lane gpu
 *   communication    an op runs on a lane that moves data: any lane but gpu and host
 *   exposed          communication while no kernel runs
 *   overlap          (communication - exposed) / communication; 0 if the rank sends nothing
 *   bubble           the rest of the step: neither compute nor communication runs.
 *                    compute + exposed + bubble is the step; bubble_fraction is bubble / step.
 * launch_wait is the part of bubble and exposed communication in which a kernel could have run but
 * had not been issued yet, because the host was slower than the GPU. An axis counts only its own
 * lane: exposed times of two axes may cover the same second, so their sum may exceed the total. The
 * bytes of an axis are the payloads that its ops send and receive.  All numbers are means over
 * ranks; a row of the timeline counts for all ranks that it represents.
 *
 * memory, by role: planned is the arena that the executors allocate on the GPU, reserved is memory
 * of libraries, peak is their sum.  by_kind is the bytes of buffers that are alive at the peak.
 * padding is the rest of planned: bytes that no buffer uses at the peak.  If a plan fits only
 * because ops wait for memory, memory_stalls.h lists these ops and their waits. */
#pragma once
#include "core/exec/timeline.h"
#include "core/report/memory_stalls.h"
#include <json-glib/json-glib.h>

#define WEFT_REPORT_ITERATION_LIST(X)                                                              \
  X (time_s, "seconds of the step")                                                                \
  X (tokens_per_s, "tokens of the global batch over the step time")                                \
  X (tokens_per_s_per_gpu, "tokens of the global batch over step time and GPUs")                   \
  X (model_tflops_per_gpu, "1e12 model FLOPs per second and GPU")                                  \
  X (hardware_tflops_per_gpu, "1e12 executed FLOPs per second, mean GPU")                          \
  X (mfu, "model FLOP/s over the printed peak")                                                    \
  X (hfu, "hardware FLOP/s over the printed peak")

#define WEFT_REPORT_OVERLAP_LIST(X)                                                                \
  X (compute_s, "kernels")                                                                         \
  X (communication_s, "communication")                                                             \
  X (exposed_communication_s, "communication while no kernel runs")                                \
  X (overlap_fraction, "share of communication that overlaps kernels")                             \
  X (bubble_s, "neither kernels nor communication")                                                \
  X (bubble_fraction, "bubble over the step time")                                                 \
  X (launch_wait_s, "time in which the next kernel was not issued yet (core/plan/host.h)")

#define WEFT_REPORT_REAL(name, doc) double name;
struct weft_report_iteration {
  WEFT_REPORT_ITERATION_LIST (WEFT_REPORT_REAL)
};
struct weft_report_overlap {
  WEFT_REPORT_OVERLAP_LIST (WEFT_REPORT_REAL)
};
#undef WEFT_REPORT_REAL

struct weft_report_axis {
  double busy_s, exposed_s;
  double bytes;
};

struct weft_report_role {
  uint64_t peak_bytes;    /* bytes of the plan and reserved bytes of libraries: their sum */
  uint64_t planned_bytes; /* weft_plan_used_bytes() of the role */
  uint64_t reserved_bytes, host_bytes;
  /* bytes of the pool that is registered with NCCL; included in planned_bytes */
  uint64_t registered_bytes;
  uint64_t cached_bytes; /* weft_plan_cached_bytes(); not included in peak_bytes */
  /* bytes of the buffers that are alive at the peak: planned_bytes minus padding */
  uint64_t live_bytes;
  uint64_t by_kind[WEFT_N_BUF_KIND], padding;
  /* bytes of each kind of buffer in the host pool at its peak */
  uint64_t host_by_kind[WEFT_N_BUF_KIND];
  uint32_t peak_op;    /* op at which memory is at its peak */
  char *peak_label;    /* name of the op at which memory is at its peak */
  uint64_t init_bytes; /* weft_plan_init_bytes() of the role */
  /* waits of ops for memory, which cost overlap; empty if no op waits */
  struct weft_memory_stalls stalls;
};

/* Work before the first step (weft_plan_new_startup); all zero if there is none. */
struct weft_report_startup {
  /* seconds of the work before the first step; broadcasts start after initialisation */
  double initialisation_s, broadcast_params_s;
  /* initialisation of weights: number of kernels and bytes, of the rank that initialises most */
  uint64_t fills, fill_bytes;
  /* number of broadcasts (one per tensor) and payload bytes, of the rank that has most */
  uint64_t broadcasts, bytes;
};

typedef struct weft_report {
  const weft_plan *plan;         /* borrowed */
  /* the timeline, owned by the caller; NULL: only memory is reported */
  const weft_timeline *timeline;
  struct weft_report_iteration iteration;
  struct weft_report_overlap overlap;
  /* indexed by lane; the elements of lanes gpu and host stay empty */
  struct weft_report_axis axis[WEFT_N_LANE];
  uint64_t capacity_bytes, peak_bytes;
  /* bytes of host memory of a node; planned host bytes of all ranks on the fullest node */
  uint64_t host_capacity_bytes, host_bytes;
  gboolean fits;
  struct weft_report_startup startup;
  uint32_t n_roles;
  struct weft_report_role *role;
} weft_report;

/* Computes a report. `timeline` NULL: the report has only memory. Plan and timeline must outlive
 * the report. The caller frees the report. After weft_plan_drop_programs(), which frees the
 * programs, parts of the report can still be added to JSON, but the whole text page cannot be
 * printed. */
weft_report *weft_report_new (const weft_plan *plan, const weft_timeline *timeline);
void weft_report_free (weft_report *report);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_report, weft_report_free)

/* Sets the start-up times of a report from the start-up plan of the job (weft_plan_new_startup) and
 * its timeline. */
void weft_report_add_startup (weft_report *report, const weft_plan *startup,
                              const weft_timeline *timeline);

/* Dense peak of one GPU that the vendor prints for the dtype of the matmuls: the denominator of
 * MFU. */
double weft_report_printed_peak (const struct weft_job *job);

/* ANSI codes of the colours in text bars. */
enum weft_ink {
  WEFT_INK_NONE,
  WEFT_INK_RED = 31,
  WEFT_INK_GREEN,
  WEFT_INK_YELLOW,
  WEFT_INK_BLUE,
  WEFT_INK_MAGENTA,
  WEFT_INK_CYAN,
  WEFT_INK_GREY = 90
};

/* Parts of the memory of a role, in the order in which they are shown: the rows of
 * WEFT_BUF_KIND_LIST, padding, reserved. */
enum { WEFT_REPORT_PADDING = WEFT_N_BUF_KIND, WEFT_REPORT_RESERVED, WEFT_N_REPORT_PART };
struct weft_report_part {
  const char *word;
  char mark;         /* character that draws the part in text bars */
  enum weft_ink ink; /* colour of the mark */
  unsigned look;     /* number of its colour in the palette of figures (charts/looks.h) */
};
extern const struct weft_report_part weft_report_parts[WEFT_N_REPORT_PART];
uint64_t weft_report_part_bytes (const struct weft_report_role *role, int part);

/* Whether the ops of a lane move data. */
static inline gboolean
weft_report_is_axis (enum weft_lane lane)
{
  return weft_lane_traits[lane].communicates || weft_lane_traits[lane].copies;
}

/* ------------------------------------------------------------------------ JSON */

/* Adds the members of a weft.sim/1 document to the open JSON object; the report must have a
 * timeline. */
void weft_report_to_json (const weft_report *report, JsonBuilder *builder);

/* Each of these functions adds one part of the weft.sim/1 document, as an object, to any JSON
 * document. */
void weft_report_build_iteration (const weft_report *report, JsonBuilder *builder);
void weft_report_build_memory (const weft_report *report, JsonBuilder *builder);

/* Adds the JSON object { "model": {}, "cluster": {}, "train": {}, "stack": {}, "strategy": {} },
 * with every field. */
void weft_report_build_job (const struct weft_job *job, JsonBuilder *builder);

/* These functions add the JSON object "strategy" or "train". Object "strategy" has only sizes,
 * knobs that were set, and knobs that differ from their default. */
void weft_report_build_strategy (const struct weft_job *job, JsonBuilder *builder);
void weft_report_build_train (const struct weft_job *job, JsonBuilder *builder);

/* ------------------------------------------------------------------------ text */

struct weft_report_style {
  int columns;     /* width of the terminal; bars are 60 to 100 columns wide */
  gboolean colour; /* ANSI escapes */
};

/* Prints the whole report: job, numbers, communication, memory, pipeline. */
void weft_report_print (const weft_report *report, struct weft_report_style style, GString *out);

/* Prints one line that names model, cluster and stack. */
void weft_report_print_where (const struct weft_job *job, GString *out);

/* Prints the line of weft_report_print_where() and a second line with the sizes of the job. */
void weft_report_print_job (const struct weft_job *job, GString *out);

/* Prints a bar and a line of numbers for every role. */
void weft_report_print_memory (const weft_report *report, struct weft_report_style style,
                               GString *out);

/* Prints one row per stage, with time from left to right: a digit is the forward pass of that
 * microbatch, a letter its backward pass (capital: weight gradients only), # the update, ~ a wait
 * for communication, and a dot idle time. */
void weft_report_print_pipeline (const weft_report *report, struct weft_report_style style,
                                 GString *out);
