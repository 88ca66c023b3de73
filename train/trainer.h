/* trainer.h - the training loop: steps, learning rate, evaluation, checkpoints, progress lines. */
#pragma once
#include "core/base/pace.h"
#include "core/exec/exec.h"

struct weft_trainer_options {
  const char *data;                                     /* name of the token file (tokens.h) */
  uint64_t steps;                                       /* optimizer steps of the whole run,
                                                         * including those before a resume */
  uint64_t seed;
  gboolean seed_given; /* the user gave the seed: a loaded checkpoint must have the same */
  /* learning rate after warm-up; learning rate at the end */
  double lr, min_lr;
  double beta1, beta2, epsilon, weight_decay;
  /* number of the step at which the learning rate reaches lr; at which it reaches min_lr */
  uint64_t warmup, decay_steps;
  /* share of the sequences, at the end of the file, that is reserved for evaluation */
  double eval_share;
  /* number of steps between evaluations (0: no evaluation); maximum number of global batches in an
   * evaluation */
  uint64_t eval_interval, eval_batches;
  gboolean shuffle;
  /* names of checkpoint directories, or NULL */
  const char *save, *load;
  uint64_t save_interval;
  uint32_t keep; /* number of newest checkpoints that are kept; 0: all */
  /* names of files or directories, or NULL */
  const char *init_safetensors, *export_safetensors, *dump_gradients;
  /* folders with LoRA adapters in PEFT's files, or NULL */
  const char *init_adapter, *export_adapter;
  struct weft_exec_options exec;                        /* the trainer sets exec.control */
};

/* ------------------------------------------------------------------- learning_rate.c */

/* Linear warm-up to lr, then half a cosine down to min_lr at `decay_steps`, constant afterwards
 * (Loshchilov and Hutter 2017, section 3; the schedule of GPT-3, arXiv 2005.14165 appendix B).
 * `step` counts from 1. The schedule does not depend on `steps`: a run of 50 steps resumed to 100
 * gives the same numbers as a run of 100. */
double weft_trainer_lr (const struct weft_trainer_options *options, uint64_t step);

/* Default peak learning rate: interpolated from published runs of models of similar size. */
double weft_trainer_default_lr (uint64_t parameters);

/* Default of decay_steps: the steps of compute-optimal training, 20 tokens per parameter (Hoffmann
 * et al. 2022, arXiv 2203.15556, table 3). */
uint64_t weft_trainer_default_decay_steps (uint64_t parameters, uint64_t tokens_per_step);

/* ---------------------------------------------------------------------- the loop */

/* The loop stops with an error after this many consecutive bad steps. A bad step skipped the update
 * or had a loss that is not finite; a skipped step is not counted while a dynamic loss scale can
 * fall further. A gradient that is not finite makes the gradient norm not finite, and the update is
 * skipped. With clip_grad 0 no norm is computed: the update spoils weights and moments, every later
 * loss is not finite, and no further checkpoint is saved. */
#define WEFT_TRAINER_MOST_SKIPS 10

struct weft_trainer_line {
  uint64_t step, steps;
  double loss, mtp_loss, grad_norm, lr, seconds, tokens_per_s, mfu;
  double loss_scale;  /* loss scale of the step; 0: the loss is not scaled */
  uint64_t peak_bytes;
  gboolean skipped;   /* the update was skipped: the gradient norm was not finite */
  /* the line reports an evaluation: only the fields step, steps and loss are set */
  gboolean evaluated;
};

struct weft_trainer_result {
  uint64_t steps, skipped; /* numbers of steps since the first run, over all resumed runs */
  double final_loss;       /* loss of the newest step; NaN if this run did no step */
  uint32_t n_roles;
  /* bytes of device memory by pipeline stage; the caller frees the arrays */
  uint64_t *planned, *allocated;
  /* the run was stopped by a signal; a checkpoint was saved if `save` is set and the weights were
   * complete */
  gboolean interrupted;
  weft_timeline *timeline;       /* times of the last step, or NULL; owned by the caller */
};
void weft_trainer_result_clear (struct weft_trainer_result *result);

/* Progress while weights are made or loaded; times in microseconds. */
struct weft_trainer_loading {
  weft_pace pace;
  gint64 start;
};
struct weft_trainer_loading weft_trainer_loading_start (gint64 now);

/* Message about the progress of loading at the time `now`. NULL: the last message or the start is
 * newer than 10 s. The caller frees the text. */
char *weft_trainer_loading_text (struct weft_trainer_loading *loading, uint32_t ranks, gint64 now);

struct weft_trainer_sink {
  void (*line) (void *user, const struct weft_trainer_line *line);
  void (*say) (void *user, const char *message); /* messages for people: "resumed from ..." */
  void *user;
};

/* Runs the training loop. Blocks the signals that ask a run to stop (launch/signals.h) in this
 * thread and in threads that the executor starts, and polls for them while weights are loaded and
 * between steps. With `load`, seed and data position are those of the checkpoint. With `save`, the
 * directory is locked from the begin to the end of the run. An unreadable token ends the run with
 * an error, after a checkpoint of the completed steps was saved; no checkpoint is saved if several
 * processes read the token in an evaluation. The run also fails if the loss of the newest step or
 * evaluation is not finite. The caller clears *result. */
gboolean weft_trainer_run (const weft_plan *plan, const struct weft_exec_ops *ops,
                           const struct weft_trainer_options *options,
                           const struct weft_trainer_sink *sink,
                           struct weft_trainer_result *result, GError **error);
