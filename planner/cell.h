/* cell.h - the prediction of one job as a few numbers without pointers, which a worker process can
 * return (workers.h). */
#pragma once
#include "core/exec/exec.h"

/* X (constant, word, doc): what became of a job. */
#define WEFT_CELL_FATE_LIST(X)                                                                     \
  X (WEFT_CELL_OPEN, "open", "not predicted yet")                                                  \
  X (WEFT_CELL_OK, "ok", "predicted, and fits in memory")                                          \
  X (WEFT_CELL_TOO_LARGE, "does not fit", "predicted, but needs more memory than a GPU has")       \
  X (WEFT_CELL_REFUSED, "refused", "a value or a rule refuses the job: see its reason")
enum weft_cell_fate { WEFT_CELL_FATE_LIST (WEFT_WORD_ID) WEFT_N_CELL_FATE };
extern const char *const weft_cell_fate_words[];

/* X (member, doc): numbers of a cell, which are also columns of a file. */
#define WEFT_CELL_NUMBER_LIST(X)                                                                   \
  X (step_s, "seconds of the step")                                                                \
  X (tokens_per_s, "tokens per second of all GPUs")                                                \
  X (tokens_per_s_per_gpu, "tokens per second of one GPU")                                         \
  X (mfu, "model FLOP/s divided by the printed peak")                                              \
  X (peak_bytes, "bytes of memory of the fullest GPU")

#define WEFT_CELL_MEMBER(member, doc) double member;
#define WEFT_CELL_ONE(...) +1
enum { WEFT_N_CELL_NUMBER = 0 WEFT_CELL_NUMBER_LIST (WEFT_CELL_ONE) };

struct weft_cell {
  enum weft_cell_fate fate;
  union {
    struct {
      WEFT_CELL_NUMBER_LIST (WEFT_CELL_MEMBER)
    };
    double number[WEFT_N_CELL_NUMBER];
  };
  char reason[400]; /* with WEFT_CELL_REFUSED: the message, possibly cut */
};
extern const char *const weft_cell_number_words[];

static inline gboolean
weft_cell_has_numbers (const struct weft_cell *cell)
{
  return cell->fate == WEFT_CELL_OK || cell->fate == WEFT_CELL_TOO_LARGE;
}

/* Predicts a step of the job. */
void weft_cell_predict (const struct weft_job *job, const struct weft_exec_ops *executor,
                        struct weft_cell *cell);

/* Sets the fate and the reason of a job that an error refuses. */
void weft_cell_refuse (struct weft_cell *cell, const GError *error);
