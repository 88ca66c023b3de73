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

/* ----------------------------------------------------------------------- tables */

/* A table has columns of equal length. The arrays of its columns belong to the table: nothing is
 * copied when they are read. The caller owns a table and passes it to weft_table_close(). */
typedef struct weft_open_table weft_table;

typedef enum weft_column_type {
  WEFT_COLUMN_INTEGERS = 0, /* int64_t; -1 means that the row has no value */
  WEFT_COLUMN_REALS = 1,    /* double; NaN means that the row has no value */
  WEFT_COLUMN_WORDS = 2     /* int32_t, an index into `words`; -1: the row has no value */
} weft_column_type;

typedef struct weft_column_face {
  const char *name;         /* "begin" */
  const char *unit;         /* "s", "B", "FLOP"; "" for counts and numbers without unit */
  const char *doc;          /* one line */
  weft_column_type type;
  const void *data;         /* one element of `type` for each row */
  const char *const *words; /* for WEFT_COLUMN_WORDS, otherwise NULL */
  size_t n_words;
} weft_column;

WEFT_API void weft_table_close (weft_table *table);
WEFT_API size_t weft_table_rows (const weft_table *table);
WEFT_API size_t weft_table_columns (const weft_table *table);

/* Column `i`; NULL if there is none. */
WEFT_API const weft_column *weft_table_column (const weft_table *table, size_t i);

/* The knobs of `weft knobs`: name, type, default, range, source, affects, doc. */
WEFT_API weft_table *weft_knob_table (void);

/* The program that all ranks of a pipeline stage (role) run; roles are counted from 0. Ops have one
 * row each, in a topological order: op, kind, lane, axis, layer, chunk, micro, phase, dtype, label,
 * flops, bytes. */
WEFT_API weft_table *weft_job_ops (const weft_job *job, uint32_t role, weft_error *error);

/* The buffers of the program: buffer, kind, pool, bytes, offset, first and last op, permanent,
 * owner, layer, micro, label. The owner of a view is the buffer whose memory it is in. */
WEFT_API weft_table *weft_job_buffers (const weft_job *job, uint32_t role, weft_error *error);

/* Which op uses which buffer: op, buffer, read, write. Views are named as such. */
WEFT_API weft_table *weft_job_uses (const weft_job *job, uint32_t role, weft_error *error);

/* Dependencies between lanes: op, after. Ops of one lane also run in the order of their numbers. */
WEFT_API weft_table *weft_job_dependencies (const weft_job *job, uint32_t role,
                                            weft_error *error);

/* What fills the memory of each role at its peak: role, part, bytes. */
WEFT_API weft_table *weft_job_memory (const weft_job *job, weft_error *error);

/* ------------------------------------------------------------------- simulations */

/* A simulated step with the times of its ops. */
typedef struct weft_open_simulation weft_simulation;

/* Simulates a step of a job. `executor` is "sim" or "clock"; NULL means "sim". The job must outlive
 * the simulation. */
WEFT_API weft_simulation *weft_job_simulate (const weft_job *job, const char *executor,
                                             weft_error *error);
WEFT_API void weft_simulation_close (weft_simulation *simulation);

/* The numbers of the step, as weft_job_predict() returns them. */
WEFT_API const weft_prediction *weft_simulation_numbers (const weft_simulation *simulation);

/* All numbers as a JSON document of schema weft.sim/1, without its band of published errors. The
 * text belongs to the simulation. */
WEFT_API const char *weft_simulation_json (const weft_simulation *simulation);

/* Begin and end of every op of the simulated ranks, in seconds since the step began: row, rank,
 * role, ranks, op, begin, end. A row of the simulation stands for `ranks` ranks that behave alike;
 * op numbers are those of weft_job_ops() for the role. */
WEFT_API weft_table *weft_simulation_timeline (const weft_simulation *simulation,
                                               weft_error *error);

/* ---------------------------------------------------------------------- searches */

/* The strategies of a job, ranked by step time: the answer of `weft plan`. */
typedef struct weft_open_ranking weft_ranking;

typedef struct weft_ranking_options {
  uint32_t finalists; /* strategies that SimGrid simulates; 0: 10, fewer if steps are long */
  /* Called now and then from a thread of the library with the phase, the work units done and their
   * number, and the best step time so far in seconds (INFINITY: none). Returning false ends the
   * search with the strategies found so far. May be NULL. */
  bool (*progress) (void *user, const char *phase, uint32_t done, uint32_t of, double best);
  void *user;
  /* also search schedules that split the backward pass, selective recompute, offload, groups of
   * sharding, bucket sizes and tp_comm_overlap: `weft plan --whole-space` */
  bool whole_space;
} weft_ranking_options;

/* Searches the strategies around a job. The words are those of `weft plan`: settings that they give
 * keep their values. `options` may be NULL. If no strategy fits, fails with
 * WEFT_STATUS_INFEASIBLE. The search runs in one thread; `weft plan` uses all processors. */
WEFT_API weft_ranking *weft_ranking_open (size_t n, const char *const *words,
                                          const weft_ranking_options *options, weft_error *error);
WEFT_API void weft_ranking_close (weft_ranking *ranking);

typedef struct weft_ranking_facts {
  uint64_t space; /* number of strategies; how many of them ... */
  uint64_t break_a_rule, do_not_fit, ruled_out, ranked, simulated;
  /* upper bound of the distance of the best from the optimum of the space under the model, as a
   * fraction of its time; 1 if the search was stopped */
  double gap;
  double wall_s;
  bool stopped;
} weft_ranking_facts;
WEFT_API void weft_ranking_describe (const weft_ranking *ranking, weft_ranking_facts *facts);

/* The strategies, best first: fate, step_s (simulated), clock_s, bound_s, bytes, then the setting
 * of each axis of the search. Strategies that the search has ruled out together have no rows, so
 * the table can have fewer rows than the space. */
WEFT_API weft_table *weft_ranking_table (const weft_ranking *ranking, weft_error *error);

/* Word `i` of the arguments that open the job with strategy `rank`, counted from 0; NULL after the
 * last word and for a strategy that does not exist. The text belongs to the ranking. */
WEFT_API const char *weft_ranking_word (const weft_ranking *ranking, size_t rank, size_t i);

/* Predicts a job with every combination of lists of values, as `weft sweep` does: a column for each
 * list "KNOB=a,b,c", then fate, step_s, tokens_per_s, tokens_per_s_per_gpu, mfu, peak_bytes,
 * reason. The last list varies fastest. `executor` as for weft_job_simulate(). */
WEFT_API weft_table *weft_sweep_table (size_t n, const char *const *words, size_t n_lists,
                                       const char *const *lists, const char *executor,
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
