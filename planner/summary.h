/* summary.h - the prediction of one job as a few numbers without pointers, which a worker process
 * can return (workers.h). */
#pragma once
#include "core/report/report.h"
#include "core/exec/exec.h"

/* X (constant, word, doc): what became of a job. */
#define WEFT_SUMMARY_FATE_LIST(X)                                                                  \
  X (WEFT_SUMMARY_OPEN, "open", "not predicted yet")                                               \
  X (WEFT_SUMMARY_OK, "ok", "predicted, and fits in memory")                                       \
  X (WEFT_SUMMARY_TOO_LARGE, "does not fit", "predicted, but needs more memory than a GPU has")    \
  X (WEFT_SUMMARY_REFUSED, "refused", "a value or a rule refuses the job: see its reason")
enum weft_summary_fate { WEFT_SUMMARY_FATE_LIST (WEFT_WORD_ID) WEFT_N_SUMMARY_FATE };
extern const char *const weft_summary_fate_words[];

/* X (member, doc): numbers of a summary, which are also columns of the file of weft sweep. */
#define WEFT_SUMMARY_NUMBER_LIST(X)                                                                \
  X (step_s, "seconds of the step")                                                                \
  X (tokens_per_s, "tokens per second of all GPUs")                                                \
  X (tokens_per_s_per_gpu, "tokens per second of one GPU")                                         \
  X (mfu, "model FLOP/s divided by the printed peak")                                              \
  X (peak_bytes, "bytes of memory of the fullest GPU")

#define WEFT_SUMMARY_MEMBER(member, doc) double member;
#define WEFT_SUMMARY_ONE(...) +1
enum { WEFT_N_SUMMARY_NUMBER = 0 WEFT_SUMMARY_NUMBER_LIST (WEFT_SUMMARY_ONE) };

struct weft_summary {
  enum weft_summary_fate fate;
  union {
    struct {
      WEFT_SUMMARY_NUMBER_LIST (WEFT_SUMMARY_MEMBER)
    };
    double number[WEFT_N_SUMMARY_NUMBER];
  };
  char reason[400]; /* with WEFT_SUMMARY_REFUSED: the message, possibly cut */
};
extern const char *const weft_summary_number_words[];

static inline gboolean
weft_summary_has_numbers (const struct weft_summary *cell)
{
  return cell->fate == WEFT_SUMMARY_OK || cell->fate == WEFT_SUMMARY_TOO_LARGE;
}

/* Predicts a step of the job. */
void weft_summary_predict (const struct weft_job *job, const struct weft_exec_ops *executor,
                           struct weft_summary *cell);

/* Whoever wants more of a prediction than its summary sees the whole report before it is freed. */
struct weft_summary_seer {
  void (*see) (void *user, uint32_t cell, const weft_report *report);
  void *user;
  uint32_t cell; /* passed to `see` */
};

/* The same, and shows the report to the seer; NULL: to nobody. */
void weft_summary_predict_seen (const struct weft_job *job, const struct weft_exec_ops *executor,
                                struct weft_summary *cell, const struct weft_summary_seer *seer);

/* Sets the fate and the reason of a job that an error refuses. */
void weft_summary_refuse (struct weft_summary *cell, const GError *error);
