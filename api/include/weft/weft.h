/* weft.h - Weft as a library for your own training loop.
 *
 * A job is the input of `weft train`: a model, a strategy, a cluster, batches. A module is a job
 * with real numbers: all ranks of the job run in this process on CPU threads, and run the ops that
 * `weft sim` predicts. A training loop calls the methods of Megatron-Core's DistributedDataParallel
 * under their own names. docs/api.md explains the phases of a step; api/examples/train.c is a
 * complete loop:
 *
 *     weft_module_zero_grad_buffer           clears gradients and running sums
 *       weft_module_forward, _backward       once per microbatch; or weft_module_forward_backward
 *       weft_module_start_grad_sync          optional: finish_grad_sync does it
 *       weft_module_finish_grad_sync         optional: finalize_model_grads does it
 *     weft_module_finalize_model_grads       gradients are complete
 *     weft_module_step                       norm, clip, Adam, gather; returns loss, norm, skipped
 *
 * The program of a step is fixed when the job is opened, and so is the order of calls. A call that
 * is too early or repeated is an error that names the call wanted next; it changes nothing. In
 * canonical order (the default on topology cpu) the results are bit for bit those of `weft train`,
 * whatever the strategy and whichever of the calls are used.
 *
 * Ownership: the caller owns what a function named ..._open or ..._new, or
 * weft_module_state_dict(), returns, and passes it to the _close of the same noun, which accepts
 * NULL. A job must outlive its modules and batches, a module its state dicts. Every other returned
 * pointer is borrowed and lasts as long as its owner. Arguments are read during the call only.
 *
 * Errors: a function that can fail returns false or NULL and fills `error`, which may be NULL.
 * Messages are those of the command line: the value found, the value wanted, the name that was
 * probably meant. After a step has failed with WEFT_STATUS_FAILED, its module can only be closed.
 *
 * Units: seconds, bytes, tokens. Ids are int32_t. Sequences have seq_length + 1 tokens, the last of
 * which is only a target.
 *
 * NULL for a pointer that must not be NULL, and a number outside its range, are errors with status
 * WEFT_STATUS_BAD_INPUT. A function without an argument `error` then does nothing and returns NULL
 * or 0.
 *
 * Threads: an object may be used from any thread, by one thread at a time; several threads may read
 * the same job. Predictions of several threads run one after the other, in a thread of the library:
 * SimGrid has one engine per process. */
#ifndef WEFT_WEFT_H
#define WEFT_WEFT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_API extern

/* The version of the library, for example "0.1.0". Static text. */
WEFT_API const char *weft_version (void);

/* ----------------------------------------------------------------------- errors */

/* The values 0 to 4 are also the exit statuses of the weft command. */
typedef enum weft_status {
  WEFT_STATUS_DONE = 0,
  WEFT_STATUS_FAILED = 1,     /* an error of files or memory, or numbers that are not finite */
  WEFT_STATUS_BAD_INPUT = 2,  /* a wrong argument or setting, or a file of the wrong kind */
  WEFT_STATUS_NO = 3,         /* the job does not fit into memory */
  WEFT_STATUS_INFEASIBLE = 4,
  WEFT_STATUS_ORDER = 5       /* a call that is not allowed at this point of the step */
} weft_status;

/* An error: its status and its message. The caller frees nothing. A message that is too long is cut
 * in the middle. */
typedef struct weft_error_text {
  weft_status status;
  char message[2048];
} weft_error;

/* -------------------------------------------------------------------------- job */

typedef struct weft_open_job weft_job;

/* Opens a job. The words are arguments as on the command line of `weft train`: a job file, flags,
 * or both; flags override the file: { "job.ini", "--gpus", "2", "--overlap-grad-reduce" }. The
 * topology is cpu unless the arguments set another one. */
WEFT_API weft_job *weft_job_open (size_t n, const char *const *words, weft_error *error);
WEFT_API void weft_job_close (weft_job *job);

typedef struct weft_job_facts {
  uint32_t ranks, replicas, stages; /* number of replicas: pipelines that read different batches */
  uint32_t microbatches;            /* sequences per replica in a step */
  /* micro_batch_size and global_batch_size in sequences, seq_length in tokens */
  uint32_t micro_batch_size, global_batch_size, seq_length;
  uint32_t vocab_size;
  uint64_t parameters;
  uint64_t planned_bytes;           /* bytes of memory of the rank with the most */
} weft_job_facts;
WEFT_API void weft_job_describe (const weft_job *job, weft_job_facts *facts);

/* Warning number `i` about the job, as the command line prints it. Call with 0, 1, ... until the
 * result is NULL. The text belongs to the job. */
WEFT_API const char *weft_job_note (const weft_job *job, size_t i);

/* The row of the global batch that contains sequence `i` of one microbatch of one replica. */
WEFT_API uint64_t weft_job_row (const weft_job *job, uint32_t replica, uint32_t micro, uint32_t i);

/* The predicted step of a job, as `weft sim` prints it. The prediction and a module use the same
 * plan. */
typedef struct weft_prediction {
  double seconds, tokens_per_s, mfu;
  /* means over all ranks; their sum is the field `seconds` */
  double compute_s, exposed_communication_s, bubble_s;
  /* seconds of broadcast_params(), which runs once before the first step; 0 if nothing is sent */
  double broadcast_params_s;
  /* peak bytes of the rank with the most, including the memory of libraries */
  uint64_t peak_bytes;
  bool fits;
} weft_prediction;

/* Predicts the step of a job. `executor` is "sim" or "clock"; NULL means "sim". */
WEFT_API bool weft_job_predict (const weft_job *job, const char *executor, weft_prediction *out,
                                weft_error *error);

/* ------------------------------------------------------------------------- data */

/* The sequences of a token file, in the order in which `weft train` reads them. Formats of the
 * file: text (each byte is a token), .bin of nanoGPT and llm.c, .idx and .bin of Megatron. */
typedef struct weft_open_batches weft_batches;

/* Opens a token file. Sequences are read in file order; with `shuffle`, in an order drawn from the
 * seed for each epoch. */
WEFT_API weft_batches *weft_batches_open (const weft_job *job, const char *path, uint64_t seed,
                                          bool shuffle, weft_error *error);
WEFT_API void weft_batches_close (weft_batches *batches);

/* Reads the global batch that begins at sequence `position`, counted from 0: step i of a run reads
 * position i * global_batch_size. `tokens` must have room for (global_batch_size, seq_length + 1)
 * ids. */
WEFT_API bool weft_batches_read (weft_batches *batches, uint64_t position, int32_t *tokens,
                                 weft_error *error);

/* Reads a part of the global batch that begins at sequence `position`: the input of
 * weft_module_forward() for microbatch `micro`, (replicas, micro_batch_size, seq_length + 1)
 * ids. */
WEFT_API bool weft_batches_read_micro (weft_batches *batches, uint64_t position, uint32_t micro,
                                       int32_t *tokens, weft_error *error);

/* ----------------------------------------------------------------------- module */

typedef struct weft_open_module weft_module;

typedef struct weft_module_options {
  uint32_t threads; /* threads per rank that run its kernels, 1..1024; 0 means 1 */
  /* not 0: run the ops of all ranks in a random order that the plan allows, drawn from this seed */
  uint64_t stress;
} weft_module_options;

/* Allocates the memory of all ranks, but does not set the weights. `options` may be NULL. */
WEFT_API weft_module *weft_module_open (const weft_job *job, const weft_module_options *options,
                                        weft_error *error);
WEFT_API void weft_module_close (weft_module *module);

/* Draws initial weights. They depend only on the seed, not on strategy or replica. Sets the moments
 * of Adam to 0 and the step count to 0. */
WEFT_API void weft_module_init_weights (weft_module *module, uint64_t seed);

/* Broadcasts every parameter of replica 0 to the other replicas, for use after replicas were given
 * different values through weft_state_dict_data(). Recomputes the fp32 masters of a bf16 model.
 * Does nothing with one replica. Fails with Megatron-FSDP level 3, where no rank has whole
 * parameters (upstream's base class silently does nothing there). Only between steps. */
WEFT_API bool weft_module_broadcast_params (weft_module *module, weft_error *error);

/* Begins a step. If a step is in progress, discards it and begins a new one. */
WEFT_API bool weft_module_zero_grad_buffer (weft_module *module, weft_error *error);

/* Runs the forward of the next microbatch of every replica, on (replicas, micro_batch_size,
 * seq_length + 1) ids. Only for jobs with one pipeline stage; several stages can run a microbatch
 * only together. pipeline_schedule fixes the order of calls: with 1f1b forward and backward
 * alternate, with gpipe all forwards precede the backwards. */
WEFT_API bool weft_module_forward (weft_module *module, const int32_t *tokens, weft_error *error);

/* Runs the backward of the next microbatch whose forward has run. Only for one pipeline stage. */
WEFT_API bool weft_module_backward (weft_module *module, weft_error *error);

/* Runs all microbatches of all stages in the order of the pipeline schedule, on the
 * (global_batch_size, seq_length + 1) ids of a whole batch. Gradients are handled as if all
 * backwards but the last were inside no_sync. */
WEFT_API bool weft_module_forward_backward (weft_module *module, const int32_t *tokens,
                                            weft_error *error);

/* Between weft_module_no_sync_begin() and weft_module_no_sync_end(), backwards only accumulate
 * gradients. The backward of the last microbatch must be outside. Earlier backwards must be inside
 * if gradients are reduced in the last backward (overlap_grad_reduce). In other cases these calls
 * have no effect: without overlap nothing is reduced before start_grad_sync, and Megatron-FSDP with
 * sharded gradients reduces in every microbatch. */
WEFT_API bool weft_module_no_sync_begin (weft_module *module, weft_error *error);
WEFT_API bool weft_module_no_sync_end (weft_module *module, weft_error *error);

/* Launches the gradient collectives that have not been launched yet. Without overlap_grad_reduce
 * these are all collectives. With overlap_grad_reduce the last backward has launched all of them,
 * and this call launches none. */
WEFT_API bool weft_module_start_grad_sync (weft_module *module, weft_error *error);

/* Waits for all gradient collectives and accumulates gradient shards. */
WEFT_API bool weft_module_finish_grad_sync (weft_module *module, weft_error *error);

/* Completes the gradients, in the order of Megatron-Core: calls finish_grad_sync if the caller has
 * not, all-reduces the gradient of a tied embedding over first and last stage, and divides by the
 * token count. */
WEFT_API bool weft_module_finalize_model_grads (weft_module *module, weft_error *error);

/* Multiplies every gradient buffer of every rank by `factor`. Allowed between finish_grad_sync and
 * step. */
WEFT_API bool weft_module_scale_gradients (weft_module *module, double factor, weft_error *error);

typedef struct weft_adam {
  double lr, beta1, beta2, epsilon, weight_decay;
} weft_adam;
#define WEFT_ADAM_DEFAULTS { 1e-3, 0.9, 0.95, 1e-8, 0.1 }

typedef struct weft_step_result {
  double loss;      /* loss before the update: mean over all tokens of the global batch */
  double grad_norm; /* norm of the gradient before clipping; NaN if clip_grad is 0 */
  bool skipped;     /* TRUE: the update was skipped because the gradient norm was not finite */
  /* with check_for_large_grads: number of buckets, of all ranks, whose norm is at least 10 times
   * the largest norm of the first samples */
  uint64_t large;
} weft_step_result;

/* Ends the step: computes the gradient norm, clips gradients (clip_grad of the job), updates
 * parameters with AdamW, and gathers those parameters that the next forward does not gather itself.
 * `out` may be NULL. */
WEFT_API bool weft_module_step (weft_module *module, const weft_adam *adam, weft_step_result *out,
                                weft_error *error);

/* Computes the loss of a whole batch by a forward pass. Changes no state. Allowed only between
 * steps. */
WEFT_API bool weft_module_evaluate (weft_module *module, const int32_t *tokens, double *loss,
                                    weft_error *error);

/* The name of the call that is allowed next, for example "backward of microbatch 0". */
WEFT_API const char *weft_module_wants (const weft_module *module);

/* Number of steps so far, including steps whose update was skipped. */
WEFT_API uint64_t weft_module_steps (const weft_module *module);

/* ------------------------------------------------------------------------ state */

/* Tensors of the whole model by name, independent of sharding; a tied embedding is one tensor. A
 * state dict is a list of references: it copies nothing, and a read returns the current value.
 * `keep_vars` has the same meaning as in PyTorch. FALSE: only values can be read. TRUE: an entry is
 * the parameter itself, whose gradient can be read and whose memory can be written. */
typedef struct weft_open_state_dict weft_state_dict;

typedef struct weft_tensor_face {
  const char *name;  /* name with the prefix: "layers.3.qkv.weight" */
  const char *dtype; /* type of the elements: "fp32" or "bf16" */
  uint32_t n_dims;   /* 1 or 2 */
  uint64_t shape[2]; /* dimensions, row-major; shape[1] is 1 for vectors */
  uint64_t elements;
} weft_tensor_face;

/* Makes the state dict of a module. `prefix` is put before every name; NULL: no prefix. */
WEFT_API weft_state_dict *weft_module_state_dict (weft_module *module, const char *prefix,
                                                  bool keep_vars);

/* Like weft_module_state_dict(), but the values are in full precision: a read of a bf16 weight
 * returns its fp32 master. */
WEFT_API weft_state_dict *weft_module_state_dict_for_save_checkpoint (weft_module *module,
                                                                      const char *prefix,
                                                                      bool keep_vars);
WEFT_API void weft_state_dict_close (weft_state_dict *dict);

/* Number of tensors. The tensors have the order of the model: embeddings, layers, final norm,
 * head. */
WEFT_API size_t weft_state_dict_count (const weft_state_dict *dict);

/* The description of tensor `i`, owned by the state dict; NULL if there is no such tensor. */
WEFT_API const weft_tensor_face *weft_state_dict_at (const weft_state_dict *dict, size_t i);

/* Index of the tensor with this name; if there is none, the number of tensors. */
WEFT_API size_t weft_state_dict_find (const weft_state_dict *dict, const char *name);

/* Copies elements [first, first + n) of tensor `i` to `out`, as floats (bf16 converts exactly). */
WEFT_API bool weft_state_dict_read (weft_state_dict *dict, size_t i, uint64_t first, uint64_t n,
                                    float *out, weft_error *error);

/* Copies elements of the gradient, which is complete after finalize_model_grads. The state dict
 * must have keep_vars. */
WEFT_API bool weft_state_dict_read_grad (weft_state_dict *dict, size_t i, uint64_t first,
                                         uint64_t n, float *out, weft_error *error);

/* The address of a tensor in the memory of a rank, which has `elements` elements of type `dtype`
 * there. The caller may write to this memory only if keep_vars is TRUE. NULL if the rank does not
 * have the tensor, or has only slices of it. */
WEFT_API void *weft_state_dict_data (weft_state_dict *dict, size_t i, uint32_t rank);

typedef struct weft_given_tensor {
  const char *name;
  uint64_t shape[2]; /* dimensions, row-major; shape[1] is 1 for vectors */
  const float *data;
} weft_tensor;

/* Copies tensors into the weights of all ranks that hold them and into the fp32 masters, so that
 * the next step continues from these values. The moments of Adam do not change. With `strict`, the
 * names must be exactly those of the model; otherwise nothing changes and the error lists unknown
 * and missing names. Without `strict`, tensors with known names are copied, and `error` (with
 * WEFT_STATUS_DONE) lists the other names. A wrong shape is always an error. Allowed only between
 * steps. */
WEFT_API bool weft_module_load_state_dict (weft_module *module, const weft_tensor *tensors,
                                           size_t n, bool strict, weft_error *error);

/* ------------------------------------------------------------------------ files */

/* Writes a checkpoint as `weft train` does. A module or `weft train` can resume from it with any
 * strategy. `position` and `seed` are those of the batches. The folder DIR/step-N appears complete
 * or not at all. The `keep` newest checkpoints are kept, 0 keeps all. Allowed only between
 * steps. */
WEFT_API bool weft_module_save_checkpoint (weft_module *module, const char *dir, uint32_t keep,
                                           uint64_t position, uint64_t seed, weft_error *error);

/* Loads a checkpoint. `path` is a checkpoint, or a folder whose newest complete checkpoint is
 * loaded. `position` and `seed` may be NULL. */
WEFT_API bool weft_module_load_checkpoint (weft_module *module, const char *path,
                                           uint64_t *position, uint64_t *seed, weft_error *error);

/* Import and export weights as safetensors, under the names and in the layouts of Hugging Face. */
WEFT_API bool weft_module_import_safetensors (weft_module *module, const char *path,
                                              weft_error *error);
WEFT_API bool weft_module_export_safetensors (weft_module *module, const char *path,
                                              weft_error *error);

#ifdef __cplusplus
}
#endif
#endif
