/* weft.h - Weft for a training loop of your own.
 *
 * A job is what `weft train` takes: a model, a strategy, a cluster, batches.  A module is that job with
 * real numbers: all its ranks live in this process, on threads of the CPU, and the ops of a step are
 * those that `weft sim` predicts.  A loop calls the methods of Megatron-Core's DistributedDataParallel
 * under their own names; docs/api.md tells the life of a step, examples/train.c is a whole loop:
 *
 *     weft_module_zero_grad_buffer           gradients and running sums are cleared
 *       weft_module_forward, _backward       once for each microbatch; or weft_module_forward_backward
 *       weft_module_start_grad_sync          optional: the next one does it
 *       weft_module_finish_grad_sync         optional: the next one does it
 *     weft_module_finalize_model_grads       gradients are complete
 *     weft_module_step                       norm, clip, Adam, gather; loss, norm, skipped
 *
 * The program of a step is fixed when the job is opened, and so is the order of calls: one that comes
 * too early or twice is refused with the one that is wanted next, and changes nothing.  In canonical
 * order (the default on topology cpu) the bits are those of `weft train`, whichever calls were used
 * and whatever the strategy.
 *
 * Ownership: what a function named ..._open or ..._new, and weft_module_state_dict(), returns is the
 * caller's, to be given to the _close of the same noun, which accepts NULL.  A job outlives its modules
 * and batches, a module its dicts; everything else that is returned as a pointer is borrowed and lasts
 * as long as its owner.  Arguments are read during the call only.
 *
 * Errors: what can fail returns false or NULL and fills `error`, which may be NULL.  Messages are those
 * of the command line: what was found, what was wanted, the name that was meant.  After
 * WEFT_STATUS_FAILED of a step its module can only be closed.
 *
 * Units: seconds, bytes, tokens; ids are int32_t; sequences have seq_length + 1 tokens, the last of
 * which is only predicted.
 *
 * Threads: objects may be used from any thread, by one at a time; a job by several that only read it.
 * weft_job_predict() with executor "sim" runs once at a time in a process: SimGrid has one engine. */
#ifndef WEFT_WEFT_H
#define WEFT_WEFT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_API extern

/* "0.1.0". */
WEFT_API const char *weft_version (void);

/* ----------------------------------------------------------------------- errors */

/* The first five are the exit statuses of the weft command. */
typedef enum weft_status {
  WEFT_STATUS_DONE = 0,
  WEFT_STATUS_FAILED = 1,     /* files, memory, numbers that are not finite */
  WEFT_STATUS_BAD_INPUT = 2,  /* an argument, a setting, a file of the wrong kind */
  WEFT_STATUS_NO = 3,         /* does not fit the memory there is */
  WEFT_STATUS_INFEASIBLE = 4,
  WEFT_STATUS_ORDER = 5       /* a call that is not the next one of its step */
} weft_status;

/* Nothing to free.  Of a message that is longer both ends are kept. */
typedef struct weft_error_text {
  weft_status status;
  char message[2048];
} weft_error;

/* -------------------------------------------------------------------------- job */

typedef struct weft_open_job weft_job;

/* Words as on the command line of `weft train`: a job file, or flags, or both, and flags override the
 * file: { "job.ini", "--gpus", "2", "--overlap-grad-reduce" }.  Topology is cpu unless they say
 * otherwise. */
WEFT_API weft_job *weft_job_open (size_t n, const char *const *words, weft_error *error);
WEFT_API void weft_job_close (weft_job *job);

typedef struct weft_job_facts {
  uint32_t ranks, replicas, stages; /* replicas: of a pipeline; their batches differ */
  uint32_t microbatches;            /* of one replica in a step */
  uint32_t micro_batch_size, global_batch_size, seq_length; /* sequences, sequences, tokens */
  uint32_t vocab_size;
  uint64_t parameters;
  uint64_t planned_bytes;           /* that a rank allocates, the largest one */
} weft_job_facts;
WEFT_API void weft_job_describe (const weft_job *job, weft_job_facts *facts);

/* What the command line prints as a note: 0, 1, ... until NULL. */
WEFT_API const char *weft_job_note (const weft_job *job, size_t i);

/* Which row of a global batch is sequence `i` of a microbatch of a replica. */
WEFT_API uint64_t weft_job_row (const weft_job *job, uint32_t replica, uint32_t micro, uint32_t i);

/* The step as `weft sim` predicts it: the same plan that a module runs. */
typedef struct weft_prediction {
  double seconds, tokens_per_s, mfu;
  double compute_s, exposed_communication_s, bubble_s; /* means over ranks; they add up to seconds */
  double broadcast_params_s; /* once, before the first step; 0 where nothing is sent */
  uint64_t peak_bytes;       /* of the largest rank, what libraries take included */
  bool fits;
} weft_prediction;

/* `executor` is "sim", "clock" or NULL, which is sim. */
WEFT_API bool weft_job_predict (const weft_job *job, const char *executor, weft_prediction *out,
                                weft_error *error);

/* ------------------------------------------------------------------------- data */

/* Sequences of a token file in the order in which `weft train` reads them: text (bytes are tokens),
 * nanoGPT or llm.c .bin, Megatron .idx and .bin. */
typedef struct weft_open_batches weft_batches;

/* Without `shuffle` in their order in the file; with it, in one drawn from the seed for each epoch. */
WEFT_API weft_batches *weft_batches_open (const weft_job *job, const char *path, uint64_t seed,
                                          bool shuffle, weft_error *error);
WEFT_API void weft_batches_close (weft_batches *batches);

/* The global batch that begins `position` sequences after the first: step i of a run reads position
 * i * global_batch_size.  `tokens` has room for (global_batch_size, seq_length + 1) ids. */
WEFT_API bool weft_batches_read (weft_batches *batches, uint64_t position, int32_t *tokens,
                                 weft_error *error);

/* Of that batch, what weft_module_forward() takes for microbatch `micro`: (replicas, micro_batch_size,
 * seq_length + 1) ids. */
WEFT_API bool weft_batches_read_micro (weft_batches *batches, uint64_t position, uint32_t micro,
                                       int32_t *tokens, weft_error *error);

/* ----------------------------------------------------------------------- module */

typedef struct weft_open_module weft_module;

typedef struct weft_module_options {
  uint32_t threads; /* that share the kernels of one rank; 0 is 1 */
  uint64_t stress;  /* not 0: ops of all ranks in a legal random order, from this seed */
} weft_module_options;

/* Memory of all ranks, without weights so far.  `options` may be NULL. */
WEFT_API weft_module *weft_module_open (const weft_job *job, const weft_module_options *options,
                                        weft_error *error);
WEFT_API void weft_module_close (weft_module *module);

/* First weights, drawn from the seed alone: the same for every strategy and on all replicas.  Moments
 * are cleared and steps counted from 0. */
WEFT_API void weft_module_init_weights (weft_module *module, uint64_t seed);

/* Sends every parameter of replica 0 to the others, for those who filled replicas differently
 * (weft_state_dict_data()); masters of a model in bf16 are taken from the result.  Nothing to do with
 * one replica.  Refused with Megatron-FSDP level 3, where no rank holds anything whole: upstream's
 * base class does nothing there and says nothing.  Between steps only. */
WEFT_API bool weft_module_broadcast_params (weft_module *module, weft_error *error);

/* Begins a step.  In the middle of one it gives that one up and begins anew. */
WEFT_API bool weft_module_zero_grad_buffer (weft_module *module, weft_error *error);

/* The next microbatch of every replica, (replicas, micro_batch_size, seq_length + 1) ids, and then its
 * backward.  With one stage only: in a pipeline a stage cannot finish its part alone.  Which of the two
 * is next is said by pipeline_schedule: forward and backward in turn with 1f1b, all forwards first with
 * gpipe. */
WEFT_API bool weft_module_forward (weft_module *module, const int32_t *tokens, weft_error *error);
WEFT_API bool weft_module_backward (weft_module *module, weft_error *error);

/* All microbatches of all stages by the pipeline's schedule: the (global_batch_size, seq_length + 1) ids
 * of a whole batch.  Backwards before the last one are within no_sync by themselves. */
WEFT_API bool weft_module_forward_backward (weft_module *module, const int32_t *tokens,
                                            weft_error *error);

/* Backwards in between only accumulate.  The last microbatch's must not be in between.  The others must
 * where gradients leave in the last backward (overlap_grad_reduce), and may elsewhere: without overlap
 * nothing leaves before start_grad_sync, and Megatron-FSDP with sharded gradients reduces every
 * microbatch all the same. */
WEFT_API bool weft_module_no_sync_begin (weft_module *module, weft_error *error);
WEFT_API bool weft_module_no_sync_end (weft_module *module, weft_error *error);

/* Launches the gradient collectives that are not on their way: all of them without overlap_grad_reduce;
 * with it they left in the last backward, and nothing remains.  Then waits for all of them and adds what
 * arrived in slices. */
WEFT_API bool weft_module_start_grad_sync (weft_module *module, weft_error *error);
WEFT_API bool weft_module_finish_grad_sync (weft_module *module, weft_error *error);

/* What completes gradients, in Megatron-Core's order: finish_grad_sync if nobody called it, the sum of a
 * tied embedding over first and last stage, the division by the token count. */
WEFT_API bool weft_module_finalize_model_grads (weft_module *module, weft_error *error);

/* Multiplies every gradient buffer of every rank, between finish_grad_sync and step. */
WEFT_API bool weft_module_scale_gradients (weft_module *module, double factor, weft_error *error);

typedef struct weft_adam {
  double lr, beta1, beta2, epsilon, weight_decay;
} weft_adam;
#define WEFT_ADAM_DEFAULTS { 1e-3, 0.9, 0.95, 1e-8, 0.1 }

typedef struct weft_step_result {
  double loss;      /* mean over all tokens of the global batch, before the update */
  double grad_norm; /* before clipping; NaN with clip_grad = 0 */
  bool skipped;     /* the norm was not finite: nothing was updated */
  uint64_t large;   /* check_for_large_grads: buckets of all ranks far above the first ones */
} weft_step_result;

/* Norm, clip (clip_grad of the job), AdamW, and gathers that no later forward brings along.  Ends the
 * step.  `out` may be NULL. */
WEFT_API bool weft_module_step (weft_module *module, const weft_adam *adam, weft_step_result *out,
                                weft_error *error);

/* Only forward, a whole batch, between steps; nothing is changed. */
WEFT_API bool weft_module_evaluate (weft_module *module, const int32_t *tokens, double *loss,
                                    weft_error *error);

/* The name of the call that is wanted next: "backward of microbatch 0". */
WEFT_API const char *weft_module_wants (const weft_module *module);

/* Steps so far, those that were skipped included. */
WEFT_API uint64_t weft_module_steps (const weft_module *module);

/* ------------------------------------------------------------------------ state */

/* Tensors of the whole model by name, whichever ranks hold them; a tied embedding is one.  A dict is a
 * list of references: it copies nothing, and what is read through it is the value of that moment.
 * keep_vars as upstream: without it only values can be read; with it an entry is the parameter itself,
 * whose gradient can be read and whose memory may be written. */
typedef struct weft_open_state_dict weft_state_dict;

typedef struct weft_tensor_face {
  const char *name;  /* prefix included: "layers.3.qkv.weight" */
  const char *dtype; /* "fp32" or "bf16" */
  uint32_t n_dims;   /* 1 or 2 */
  uint64_t shape[2]; /* row-major; shape[1] is 1 for vectors */
  uint64_t elements;
} weft_tensor_face;

/* `prefix` goes before every name; NULL is none.  The second form is what a checkpoint wants: the same
 * names, but values in full precision (fp32 masters where kernels read bf16). */
WEFT_API weft_state_dict *weft_module_state_dict (weft_module *module, const char *prefix,
                                                  bool keep_vars);
WEFT_API weft_state_dict *weft_module_state_dict_for_save_checkpoint (weft_module *module,
                                                                      const char *prefix,
                                                                      bool keep_vars);
WEFT_API void weft_state_dict_close (weft_state_dict *dict);

/* Model order: embeddings, layers, final norm, head.  weft_state_dict_find() is the count when there is
 * no such name. */
WEFT_API size_t weft_state_dict_count (const weft_state_dict *dict);
WEFT_API const weft_tensor_face *weft_state_dict_at (const weft_state_dict *dict, size_t i);
WEFT_API size_t weft_state_dict_find (const weft_state_dict *dict, const char *name);

/* Elements [first, first + n) as floats (bf16 is exact as such), copied out. */
WEFT_API bool weft_state_dict_read (weft_state_dict *dict, size_t i, uint64_t first, uint64_t n,
                                    float *out, weft_error *error);

/* The same of the gradient, complete after finalize_model_grads; keep_vars only. */
WEFT_API bool weft_state_dict_read_grad (weft_state_dict *dict, size_t i, uint64_t first, uint64_t n,
                                         float *out, weft_error *error);

/* Where a rank keeps a tensor, without a copy: `elements` of `dtype`, to be written with keep_vars only.
 * NULL where the rank has no such tensor, or only slices of it. */
WEFT_API void *weft_state_dict_data (weft_state_dict *dict, size_t i, uint32_t rank);

typedef struct weft_given_tensor {
  const char *name;
  uint64_t shape[2]; /* shape[1] is 1 for vectors */
  const float *data;
} weft_tensor;

/* Copies tensors into the weights of all ranks that hold them, and into masters, so that the next step
 * goes on from there; moments stay.  strict: the names are those of the model, no more and no fewer, or
 * nothing is changed and the error lists which are unknown and which are missing.  Otherwise those that
 * fit are copied and `error`, with WEFT_STATUS_DONE, lists the others.  A shape that differs is always
 * refused.  Between steps only. */
WEFT_API bool weft_module_load_state_dict (weft_module *module, const weft_tensor *tensors, size_t n,
                                           bool strict, weft_error *error);

/* ------------------------------------------------------------------------ files */

/* A checkpoint of `weft train`: any other strategy can go on from it, there or here.  `position` and
 * `seed` are those of the batches.  DIR/step-N is written whole or not at all; `keep` newest ones stay, 0
 * keeps all.  Between steps only. */
WEFT_API bool weft_module_save_checkpoint (weft_module *module, const char *dir, uint32_t keep,
                                           uint64_t position, uint64_t seed, weft_error *error);

/* `path` is a checkpoint, or a folder of them: the newest complete one.  `position` and `seed` may be
 * NULL. */
WEFT_API bool weft_module_load_checkpoint (weft_module *module, const char *path, uint64_t *position,
                                           uint64_t *seed, weft_error *error);

/* Weights under Hugging Face's names, in its layouts. */
WEFT_API bool weft_module_import_safetensors (weft_module *module, const char *path,
                                              weft_error *error);
WEFT_API bool weft_module_export_safetensors (weft_module *module, const char *path,
                                              weft_error *error);

#ifdef __cplusplus
}
#endif
#endif
