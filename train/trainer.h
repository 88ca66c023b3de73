/* trainer.h - the loop: tokens in, steps, evaluation, checkpoints, lines out. */
#pragma once
#include "core/exec.h"

struct weft_trainer_options {
  const char *data;                                     /* token file (tokens.h) */
  uint64_t steps;                                       /* optimizer steps in all */
  uint64_t seed;
  double lr, min_lr;                                    /* peak, and where the cosine ends */
  double beta1, beta2, epsilon, weight_decay;
  uint64_t warmup;                                      /* steps of linear warm-up */
  double eval_share;                                    /* of the sequences, at the end of the file */
  uint64_t eval_interval, eval_batches;                 /* 0: never; global batches each time */
  gboolean shuffle;
  const char *save, *load;                              /* checkpoint directories; NULL: none */
  uint64_t save_interval;
  uint32_t keep;
  const char *init_safetensors, *export_safetensors, *dump_gradients; /* NULL: none */
  struct weft_exec_options exec;                        /* control is the trainer's own */
};

/* Linear to lr over the warm-up, then half a cosine down to min_lr at `steps` (Loshchilov and
 * Hutter 2017, section 3; the schedule of GPT-3, arXiv 2005.14165 appendix B).  step counts from 1. */
double weft_trainer_lr (const struct weft_trainer_options *options, uint64_t step);

struct weft_trainer_line {
  uint64_t step, steps;
  double loss, grad_norm, lr, seconds, tokens_per_s, mfu;
  uint64_t peak_bytes;
  gboolean skipped;
  gboolean evaluated; /* loss is of the evaluation split; the rest of the step is not set */
};

struct weft_trainer_result {
  uint64_t steps, skipped;
  double final_loss;
  uint32_t n_roles;
  uint64_t *planned, *allocated; /* device bytes by role; caller frees */
  gboolean interrupted;          /* SIGTERM or SIGINT: saved, when there is where to */
  weft_timeline *timeline;       /* of the last step; caller owns */
};

struct weft_trainer_sink {
  void (*line) (void *user, const struct weft_trainer_line *line);
  void (*say) (void *user, const char *message); /* "resumed from ...": for people */
  void *user;
};

gboolean weft_trainer_run (const weft_plan *plan, const struct weft_exec_ops *ops,
                           const struct weft_trainer_options *options,
                           const struct weft_trainer_sink *sink,
                           struct weft_trainer_result *result, GError **error);
