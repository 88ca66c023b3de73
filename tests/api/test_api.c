/* The library for training loops: every method of DistributedDataParallel and finalize_model_grads,
 * the order in which the methods must be called, and that a step made of separate calls gives bit
 * for bit the results of a step made of one call. */
#include "api/include/weft/weft.h"
#include "tests/runner/folder.h"
#include "tests/runner/runner.h"
#include <glib.h>
#include <math.h>
#include <string.h>

#define NANO "--model gpt2-nano --num-layers 2 --seq-length 32 "
/* 2 ranks, 4 sequences per step: two microbatches per replica */
#define TWO NANO "--gpus 2 --global-batch-size 4 "
#define OVERLAP "--overlap-grad-reduce --bucket-size 30000 "
#define SHARDED "--use-distributed-optimizer "
#define STAGES "--pipeline-model-parallel-size 2 "
#define LEVEL3 "--use-megatron-fsdp --zero-dp-strategy 3 "

#define assert_ok(call)                                                                            \
  do {                                                                                             \
    weft_error error_;                                                                             \
    weft_error *error = &error_;                                                                   \
    if (!(call))                                                                                   \
      fail_msg ("%s:%d: %s: %s", __FILE__, __LINE__, #call, error_.message);                       \
  } while (0)

/* Asserts that the call fails with this status and a message that contains `words`. */
#define assert_refused(call, status_, words)                                                       \
  do {                                                                                             \
    weft_error error_;                                                                             \
    weft_error *error = &error_;                                                                   \
    assert_false (call);                                                                           \
    if (error_.status != (status_) || !strstr (error_.message, words))                             \
      fail_msg ("%s:%d: found %d, \"%s\", wanted %d, \"%s\"", __FILE__, __LINE__, error_.status,   \
                error_.message, status_, words);                                                   \
  } while (0)

struct run {
  weft_job *job;
  weft_job_facts facts;
  weft_module *module;
  int32_t *batch; /* tokens of the newest step, in memory for one global batch */
};

static weft_job *
open_job (const char *words, weft_error *error)
{
  g_autofree char *text = g_strstrip (g_strdup (words));
  g_auto (GStrv) word = g_strsplit (text, " ", -1);

  return weft_job_open (g_strv_length (word), (const char *const *) word, error);
}

static struct run *
run_open (const char *words, const weft_module_options *options)
{
  struct run *r = g_new0 (struct run, 1);

  assert_ok (r->job = open_job (words, error));
  weft_job_describe (r->job, &r->facts);
  assert_ok (r->module = weft_module_open (r->job, options, error));
  r->batch = g_new0 (int32_t, r->facts.global_batch_size * (r->facts.seq_length + 1));
  weft_module_init_weights (r->module, 7);
  return r;
}

static void
run_close (struct run *r)
{
  weft_module_close (r->module);
  weft_job_close (r->job);
  g_free (r->batch);
  g_free (r);
}
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_state_dict, weft_state_dict_close)
typedef struct run run;
G_DEFINE_AUTOPTR_CLEANUP_FUNC (run, run_close)

/* Fills the batch with the tokens of a step. The tokens depend on the step only, so every strategy
 * reads the same tokens. */
static void
fill_batch (struct run *r, uint64_t step)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed ((guint32) step);

  for (uint32_t i = 0; i < r->facts.global_batch_size * (r->facts.seq_length + 1); i++)
    r->batch[i] = g_rand_int_range (rand, 0, (gint32) r->facts.vocab_size);
}

/* Returns the rows of the batch that one call of forward needs; caller frees. */
static int32_t *
microbatch (const struct run *r, uint32_t micro)
{
  size_t row = r->facts.seq_length + 1;
  int32_t *tokens = g_new (int32_t, r->facts.replicas * r->facts.micro_batch_size * row),
          *to = tokens;

  for (uint32_t replica = 0; replica < r->facts.replicas; replica++)
    for (uint32_t i = 0; i < r->facts.micro_batch_size; i++, to += row)
      memcpy (to, r->batch + weft_job_row (r->job, replica, micro, i) * row, row * sizeof *to);
  return tokens;
}

static void
begin (struct run *r)
{
  fill_batch (r, weft_module_steps (r->module) + 1);
  assert_ok (weft_module_zero_grad_buffer (r->module, error));
}

static void
forward (struct run *r, uint32_t micro)
{
  g_autofree int32_t *tokens = microbatch (r, micro);
  assert_ok (weft_module_forward (r->module, tokens, error));
}

static void
play_microbatches (struct run *r)
{
  for (uint32_t micro = 0; micro < r->facts.microbatches; micro++) {
    bool last = micro + 1 == r->facts.microbatches;
    if (!last)
      assert_ok (weft_module_no_sync_begin (r->module, error));
    forward (r, micro);
    assert_ok (weft_module_backward (r->module, error));
    if (!last)
      assert_ok (weft_module_no_sync_end (r->module, error));
  }
}

static weft_step_result
end (struct run *r)
{
  const weft_adam adam = WEFT_ADAM_DEFAULTS;
  weft_step_result result;

  assert_ok (weft_module_step (r->module, &adam, &result, error));
  return result;
}

/* The calls of a step. WHOLE: forward_backward. CELLS: forward and backward of each microbatch.
 * EVERY_CALL: like CELLS, and the synchronisation methods one by one. */
enum way { WHOLE, CELLS, EVERY_CALL, N_WAY };

static weft_step_result
step (struct run *r, enum way way)
{
  begin (r);
  if (way == WHOLE || r->facts.stages > 1)
    assert_ok (weft_module_forward_backward (r->module, r->batch, error));
  else
    play_microbatches (r);
  if (way == EVERY_CALL) {
    assert_ok (weft_module_start_grad_sync (r->module, error));
    assert_ok (weft_module_finish_grad_sync (r->module, error));
  }
  assert_ok (weft_module_finalize_model_grads (r->module, error));
  return end (r);
}

static uint64_t
mix (uint64_t hash, const float *value, uint64_t n)
{
  for (uint64_t i = 0; i < n; i++) {
    uint32_t word;
    memcpy (&word, &value[i], sizeof word);
    hash = (hash ^ word) * 0x100000001b3u;
  }
  return hash;
}

/* Returns a hash of all weights (`grads` false) or of all gradients (true) of the module. */
static uint64_t
hash_of (struct run *r, bool grads)
{
  g_autoptr (weft_state_dict) d = weft_module_state_dict (r->module, NULL, true);
  uint64_t hash = 0xcbf29ce484222325u;

  for (size_t i = 0; i < weft_state_dict_count (d); i++) {
    uint64_t n = weft_state_dict_at (d, i)->elements;
    g_autofree float *value = g_new (float, n);
    assert_ok (
        (grads ? weft_state_dict_read_grad : weft_state_dict_read) (d, i, 0, n, value, error));
    hash = mix (hash, value, n);
  }
  return hash;
}

/* -------------------------------------------------------------------------- bits */

static const char *const strategies[] = {
  NANO "--global-batch-size 4",
  TWO,
  TWO SHARDED OVERLAP "--overlap-param-gather",
  TWO OVERLAP,
  TWO LEVEL3,
  TWO "--distributed-config fsdp2",
  TWO STAGES SHARDED,
  TWO "--cross-entropy-loss-fusion --cross-entropy-fusion-impl linear --cross-entropy-chunks 8",
  NANO "--gpus 4 --global-batch-size 4 " STAGES OVERLAP,
};

static void
every_way_to_write_a_step_and_every_strategy_give_the_bits_of_one_rank (void **state)
{
  enum { STEPS = 3 };
  weft_step_result wanted[STEPS];
  uint64_t weights = 0;

  (void) state;
  for (unsigned s = 0; s < G_N_ELEMENTS (strategies); s++)
    for (int way = 0; way < N_WAY; way++) {
      g_autoptr (run) r = run_open (strategies[s], NULL);
      for (int i = 0; i < STEPS; i++) {
        weft_step_result found = step (r, way);
        if (s + way == 0)
          wanted[i] = found;
        assert_memory_equal (&found.loss, &wanted[i].loss, sizeof found.loss);
        assert_memory_equal (&found.grad_norm, &wanted[i].grad_norm, sizeof found.grad_norm);
        assert_false (found.skipped);
      }
      if (s + way == 0)
        weights = hash_of (r, false);
      assert_true (hash_of (r, false) == weights);
      assert_int_equal (weft_module_steps (r->module), STEPS);
    }
}

static void
ops_in_any_legal_order_and_more_threads_change_no_bit (void **state)
{
  const weft_module_options options[] = { { 0, 0 }, { 0, 21 }, { 2, 0 } };
  uint64_t weights[G_N_ELEMENTS (options)];

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (options); i++) {
    g_autoptr (run) r = run_open (TWO SHARDED OVERLAP, &options[i]);
    step (r, EVERY_CALL);
    weights[i] = hash_of (r, false);
    assert_true (weights[i] == weights[0]);
  }
}

/* ------------------------------------------------------------------------- methods */

static void
zero_grad_buffer_begins_a_step_and_gives_up_one_that_was_begun (void **state)
{
  g_autoptr (run) a = run_open (TWO, NULL), b = run_open (TWO, NULL);

  (void) state;
  assert_string_equal (weft_module_wants (a->module), "zero_grad_buffer");
  begin (b);
  assert_ok (weft_module_no_sync_begin (b->module, error));
  /* This forward reads microbatch 1 instead of 0. The zero_grad_buffer of the next step must
   * discard the gradients of the unfinished step. */
  forward (b, 1);
  step (a, CELLS);
  step (b, CELLS);
  assert_true (hash_of (a, false) == hash_of (b, false));
}

static void
forward_and_backward_take_one_microbatch_of_every_replica (void **state)
{
  g_autoptr (run) r = run_open (TWO, NULL);

  (void) state;
  begin (r);
  assert_string_equal (weft_module_wants (r->module), "forward of microbatch 0");
  assert_refused (weft_module_backward (r->module, error), WEFT_STATUS_ORDER,
                  "wanted forward of microbatch 0 next");
  forward (r, 0);
  assert_refused (weft_module_forward (r->module, r->batch, error), WEFT_STATUS_ORDER,
                  "wanted backward of microbatch 0 next");
  assert_ok (weft_module_backward (r->module, error));
  assert_string_equal (weft_module_wants (r->module), "forward of microbatch 1");
  r->batch[5] = (int32_t) r->facts.vocab_size;
  assert_refused (weft_module_forward (r->module, r->batch, error), WEFT_STATUS_BAD_INPUT,
                  "found id 256 as token 5, wanted 0..255");
}

static void
a_pipeline_runs_its_microbatches_together (void **state)
{
  g_autoptr (run) r = run_open (TWO STAGES, NULL);

  (void) state;
  begin (r);
  assert_refused (weft_module_forward (r->module, r->batch, error), WEFT_STATUS_BAD_INPUT,
                  "a pipeline of 2 stages");
  assert_refused (weft_module_backward (r->module, error), WEFT_STATUS_BAD_INPUT,
                  "wanted forward_backward");
  assert_ok (weft_module_forward_backward (r->module, r->batch, error));
  assert_refused (weft_module_forward_backward (r->module, r->batch, error), WEFT_STATUS_ORDER,
                  "wanted start_grad_sync next");
}

static void
no_sync_is_for_all_microbatches_but_the_last (void **state)
{
  g_autoptr (run) r = run_open (TWO OVERLAP, NULL), lazy = run_open (TWO, NULL);

  (void) state;
  begin (r);
  assert_refused (weft_module_no_sync_end (r->module, error), WEFT_STATUS_ORDER, "outside of");
  forward (r, 0);
  assert_refused (weft_module_backward (r->module, error), WEFT_STATUS_ORDER,
                  "microbatch 0 of 2 outside no_sync");
  assert_ok (weft_module_no_sync_begin (r->module, error));
  assert_refused (weft_module_no_sync_begin (r->module, error), WEFT_STATUS_ORDER, "a second one");
  assert_ok (weft_module_backward (r->module, error));
  forward (r, 1);
  assert_refused (weft_module_backward (r->module, error), WEFT_STATUS_ORDER,
                  "microbatch 1, the last one, inside no_sync");
  assert_ok (weft_module_no_sync_end (r->module, error));
  assert_ok (weft_module_backward (r->module, error));
  /* Without overlap_grad_reduce, backward launches no collective, so the module needs no
   * no_sync. */
  begin (lazy);
  for (uint32_t micro = 0; micro < 2; micro++) {
    forward (lazy, micro);
    assert_ok (weft_module_backward (lazy->module, error));
  }
  assert_ok (weft_module_finalize_model_grads (r->module, error));
  assert_ok (weft_module_finalize_model_grads (lazy->module, error));
  assert_true (hash_of (r, true) == hash_of (lazy, true));
}

static void
start_grad_sync_launches_what_no_backward_has_launched (void **state)
{
  g_autoptr (run) late = run_open (TWO, NULL), early = run_open (TWO OVERLAP, NULL);
  uint64_t before[2], after[2];
  struct run *both[] = { late, early };

  (void) state;
  for (int i = 0; i < 2; i++) {
    begin (both[i]);
    assert_refused (weft_module_start_grad_sync (both[i]->module, error), WEFT_STATUS_ORDER,
                    "wanted forward of microbatch 0 next");
    play_microbatches (both[i]);
    before[i] = hash_of (both[i], true);
    assert_ok (weft_module_start_grad_sync (both[i]->module, error));
    assert_refused (weft_module_start_grad_sync (both[i]->module, error), WEFT_STATUS_ORDER,
                    "wanted finish_grad_sync next");
    after[i] = hash_of (both[i], true);
  }
  /* Without overlap_grad_reduce, start_grad_sync reduces the gradients. */
  assert_true (before[0] != after[0]);
  /* With overlap_grad_reduce, the last backward has already reduced the gradients. */
  assert_true (before[1] == after[1]);
  assert_true (after[0] == after[1]);
}

static void
finish_grad_sync_starts_what_was_not_started_and_ends_it (void **state)
{
  g_autoptr (run) a = run_open (TWO, NULL), b = run_open (TWO, NULL);

  (void) state;
  begin (a);
  begin (b);
  play_microbatches (a);
  play_microbatches (b);
  assert_ok (weft_module_start_grad_sync (a->module, error));
  assert_ok (weft_module_finish_grad_sync (a->module, error));
  assert_ok (weft_module_finish_grad_sync (b->module, error));
  assert_refused (weft_module_finish_grad_sync (b->module, error), WEFT_STATUS_ORDER,
                  "wanted finalize_model_grads next");
  assert_true (hash_of (a, true) == hash_of (b, true));
}

static void
finalize_model_grads_joins_and_sums_the_tied_embedding (void **state)
{
  const weft_adam adam = WEFT_ADAM_DEFAULTS;
  g_autoptr (run) one = run_open (NANO "--global-batch-size 4", NULL);
  g_autoptr (run) two = run_open (TWO STAGES, NULL);
  uint64_t joined;

  (void) state;
  begin (one);
  begin (two);
  assert_ok (weft_module_forward_backward (one->module, one->batch, error));
  assert_ok (weft_module_forward_backward (two->module, two->batch, error));
  assert_refused (weft_module_step (two->module, &adam, NULL, error), WEFT_STATUS_ORDER,
                  "wanted start_grad_sync next");
  assert_ok (weft_module_finish_grad_sync (two->module, error));
  joined = hash_of (two, true);
  assert_refused (weft_module_step (two->module, &adam, NULL, error), WEFT_STATUS_ORDER,
                  "wanted finalize_model_grads next");
  assert_ok (weft_module_finalize_model_grads (two->module, error));
  assert_ok (weft_module_finalize_model_grads (one->module, error));
  /* finalize_model_grads adds the embedding gradients of both stages. */
  assert_true (hash_of (two, true) != joined);
  assert_true (hash_of (two, true) == hash_of (one, true));
}

static void
scale_gradients_multiplies_every_buffer (void **state)
{
  static const char *const words[] = { TWO, TWO SHARDED, TWO LEVEL3, TWO STAGES,
                                       TWO "--precision bf16 --grad-reduce-in-fp32" };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (words); i++) {
    g_autoptr (run) a = run_open (words[i], NULL), b = run_open (words[i], NULL);
    begin (a);
    begin (b);
    assert_refused (weft_module_scale_gradients (b->module, 2, error), WEFT_STATUS_ORDER, "wanted");
    assert_ok (weft_module_forward_backward (a->module, a->batch, error));
    assert_ok (weft_module_forward_backward (b->module, b->batch, error));
    assert_ok (weft_module_finalize_model_grads (a->module, error));
    assert_ok (weft_module_finalize_model_grads (b->module, error));
    assert_ok (weft_module_scale_gradients (b->module, 0.25, error));
    double norm = end (a).grad_norm;
    assert_float_equal (end (b).grad_norm, 0.25 * norm, 1e-6 * norm);
  }
}

static void
broadcast_params_gives_everybody_the_weights_of_replica_0 (void **state)
{
  g_autoptr (run) r = run_open (NANO "--gpus 4 --global-batch-size 4 " STAGES, NULL);
  g_autoptr (weft_state_dict) d = weft_module_state_dict (r->module, NULL, true);
  size_t fc1 = weft_state_dict_find (d, "layers.0.fc1.weight");
  float *mine = weft_state_dict_data (d, fc1, 0), *other = weft_state_dict_data (d, fc1, 1);
  uint64_t before = hash_of (r, false), n = weft_state_dict_at (d, fc1)->elements;

  (void) state;
  /* rank 2 is on the second pipeline stage, which does not hold layer 0 */
  assert_null (weft_state_dict_data (d, fc1, 2));
  assert_ptr_not_equal (mine, other);
  for (size_t i = 0; i < weft_state_dict_count (d); i++)
    for (uint32_t rank = 1; rank < 4; rank += 2) {
      float *data = weft_state_dict_data (d, i, rank);
      for (uint64_t e = 0; data && e < weft_state_dict_at (d, i)->elements; e++)
        data[e] = (float) rank;
    }
  assert_memory_not_equal (mine, other, n * sizeof *mine);
  assert_ok (weft_module_broadcast_params (r->module, error));
  assert_memory_equal (mine, other, n * sizeof *mine);
  for (size_t i = 0; i < weft_state_dict_count (d); i++)
    for (uint32_t rank = 0; rank < 4; rank += 2) {
      float *first = weft_state_dict_data (d, i, rank),
            *second = weft_state_dict_data (d, i, rank + 1);
      assert_true (!first == !second);
      if (first)
        assert_memory_equal (first, second, weft_state_dict_at (d, i)->elements * sizeof *first);
    }
  assert_true (hash_of (r, false) == before);
}

static void
broadcast_params_refreshes_masters_and_wants_whole_weights (void **state)
{
  g_autoptr (run) a = run_open (TWO SHARDED "--precision bf16", NULL);
  g_autoptr (run) b = run_open (TWO SHARDED "--precision bf16", NULL);
  g_autoptr (run) slices = run_open (TWO LEVEL3, NULL), alone = run_open (NANO, NULL);
  g_autoptr (weft_state_dict) d = weft_module_state_dict (b->module, NULL, true);
  g_autoptr (weft_state_dict) full =
      weft_module_state_dict_for_save_checkpoint (b->module, NULL, false);

  (void) state;
  assert_string_equal (weft_state_dict_at (d, 0)->dtype, "bf16");
  memset (weft_state_dict_data (d, 0, 1), 0, 64);
  assert_ok (weft_module_broadcast_params (a->module, error));
  assert_ok (weft_module_broadcast_params (b->module, error));
  for (size_t i = 0; i < weft_state_dict_count (d); i++) {
    float weight, master;
    assert_ok (weft_state_dict_read (d, i, 0, 1, &weight, error));
    assert_ok (weft_state_dict_read (full, i, 0, 1, &master, error));
    assert_true (weight == master);
  }
  weft_step_result found = step (b, CELLS), wanted = step (a, CELLS);
  assert_memory_equal (&found.loss, &wanted.loss, sizeof found.loss);
  assert_true (hash_of (a, false) == hash_of (b, false));
  assert_refused (weft_module_broadcast_params (slices->module, error), WEFT_STATUS_BAD_INPUT,
                  "sharded weights");
  assert_ok (weft_module_broadcast_params (alone->module, error));
  begin (alone);
  assert_refused (weft_module_broadcast_params (alone->module, error), WEFT_STATUS_ORDER,
                  "in the middle of a step");
}

/* --------------------------------------------------------------------------- state */

static void
state_dict_refers_to_values_and_keep_vars_to_parameters (void **state)
{
  g_autoptr (run) r = run_open (TWO, NULL);
  g_autoptr (weft_state_dict) d = weft_module_state_dict (r->module, "module.", false);
  g_autoptr (weft_state_dict) vars = weft_module_state_dict (r->module, NULL, true);
  size_t i = weft_state_dict_find (d, "module.layers.1.fc2.weight");
  const weft_tensor_face *face = weft_state_dict_at (d, i);
  float before, after, grad;

  (void) state;
  assert_int_equal (face->n_dims, 2);
  assert_int_equal (face->shape[0], 64);
  assert_int_equal (face->shape[1], 256);
  assert_string_equal (face->dtype, "fp32");
  assert_int_equal (weft_state_dict_find (vars, "layers.1.fc2.weight"), i);
  /* the head is tied to the word embedding and has no tensor of its own */
  assert_int_equal (weft_state_dict_find (d, "head.weight"), weft_state_dict_count (d));
  assert_int_equal (
      weft_state_dict_at (vars, weft_state_dict_find (vars, "final_norm.bias"))->n_dims, 1);
  assert_ok (weft_state_dict_read (d, i, 100, 1, &before, error));
  step (r, WHOLE);
  assert_ok (weft_state_dict_read (d, i, 100, 1, &after, error));
  /* The state dict refers to the weights of the module: a training step changes them. */
  assert_true (before != after);
  assert_true (((const float *) weft_state_dict_data (d, i, 1))[100] == after);
  assert_refused (weft_state_dict_read_grad (d, i, 0, 1, &grad, error), WEFT_STATUS_BAD_INPUT,
                  "without keep_vars");
  assert_ok (weft_state_dict_read_grad (vars, i, 100, 1, &grad, error));
  assert_true (grad != 0);
  assert_refused (weft_state_dict_read (d, i, face->elements, 1, &after, error),
                  WEFT_STATUS_BAD_INPUT, "wanted them among 16384");
  assert_refused (weft_state_dict_read (d, weft_state_dict_count (d), 0, 1, &after, error),
                  WEFT_STATUS_BAD_INPUT, "wanted 0..");
  assert_null (weft_state_dict_at (d, weft_state_dict_count (d)));
}

static void
state_dict_for_save_checkpoint_has_the_same_names_in_full_precision (void **state)
{
  g_autoptr (run) r = run_open (TWO SHARDED "--precision bf16", NULL);
  g_autoptr (weft_state_dict) d = weft_module_state_dict (r->module, "x.", false);
  g_autoptr (weft_state_dict) full =
      weft_module_state_dict_for_save_checkpoint (r->module, "x.", false);
  float low, high;

  (void) state;
  step (r, WHOLE);
  assert_int_equal (weft_state_dict_count (d), weft_state_dict_count (full));
  for (size_t i = 0; i < weft_state_dict_count (d); i++)
    assert_string_equal (weft_state_dict_at (d, i)->name, weft_state_dict_at (full, i)->name);
  assert_string_equal (weft_state_dict_at (full, 0)->dtype, "fp32");
  assert_ok (weft_state_dict_read (d, 0, 3, 1, &low, error));
  assert_ok (weft_state_dict_read (full, 0, 3, 1, &high, error));
  assert_true (low != high && fabsf (low - high) < 0.01f * fabsf (high));
  /* The fully sharded state dict has no whole tensors: each rank holds a slice. */
  assert_null (weft_state_dict_data (full, 0, 0));
}

/* Returns copies of all tensors of a module. The caller frees them. */
static weft_tensor *
copy_out (struct run *r, weft_state_dict *d)
{
  size_t n = weft_state_dict_count (d);
  weft_tensor *all = g_new0 (weft_tensor, n);

  (void) r;
  for (size_t i = 0; i < n; i++) {
    const weft_tensor_face *face = weft_state_dict_at (d, i);
    float *data = g_new (float, face->elements);
    assert_ok (weft_state_dict_read (d, i, 0, face->elements, data, error));
    all[i] = (weft_tensor){ face->name, { face->shape[0], face->shape[1] }, data };
  }
  return all;
}

static void
free_tensors (weft_tensor *all, size_t n)
{
  for (size_t i = 0; i < n; i++)
    g_free ((float *) all[i].data);
  g_free (all);
}

static void
load_state_dict_wants_the_exact_names_when_it_is_strict (void **state)
{
  g_autoptr (run) from = run_open (TWO, NULL), to = run_open (TWO LEVEL3, NULL);
  g_autoptr (weft_state_dict) d = weft_module_state_dict (from->module, NULL, false);
  size_t n = weft_state_dict_count (d);
  weft_error told;
  weft_tensor *all = copy_out (from, d);

  (void) state;
  weft_module_init_weights (to->module, 99);
  uint64_t other = hash_of (to, false);
  const char *name = all[2].name;
  all[2].name = "layers.0.norm1.wait";
  assert_refused (weft_module_load_state_dict (to->module, all, n, true, error),
                  WEFT_STATUS_BAD_INPUT,
                  "unknown: layers.0.norm1.wait; missing: layers.0.norm1.weight");
  assert_true (hash_of (to, false) == other);
  assert_true (weft_module_load_state_dict (to->module, all, n, false, &told));
  assert_int_equal (told.status, WEFT_STATUS_DONE);
  assert_non_null (strstr (told.message, "unknown: layers.0.norm1.wait"));
  assert_true (hash_of (to, false) != other);
  all[2].name = name;
  all[0].shape[1]++;
  assert_refused (weft_module_load_state_dict (to->module, all, n, false, error),
                  WEFT_STATUS_BAD_INPUT, "embedding.weight: found 256 x 65, wanted 256 x 64");
  all[0].shape[1]--;
  assert_ok (weft_module_load_state_dict (to->module, all, n, true, error));
  assert_true (hash_of (to, false) == hash_of (from, false));
  step (from, CELLS);
  step (to, CELLS);
  assert_true (hash_of (to, false) == hash_of (from, false));
  free_tensors (all, n);
}

static void
a_checkpoint_goes_on_under_another_strategy (void **state)
{
  const char *dir = *state;
  g_autoptr (run) a = run_open (TWO SHARDED OVERLAP, NULL), b = run_open (TWO STAGES, NULL);
  uint64_t position, seed;

  step (a, CELLS);
  step (a, CELLS);
  assert_ok (weft_module_save_checkpoint (a->module, dir, 1, 8, 7, error));
  assert_ok (weft_module_load_checkpoint (b->module, dir, &position, &seed, error));
  assert_int_equal (position, 8);
  assert_int_equal (seed, 7);
  assert_int_equal (weft_module_steps (b->module), 2);
  step (a, WHOLE);
  step (b, WHOLE);
  assert_true (hash_of (a, false) == hash_of (b, false));
}

/* ----------------------------------------------------------------------------- rest */

static void
errors_are_those_of_the_command_line (void **state)
{
  (void) state;
  assert_refused (open_job (NANO "--overlap-grad-reduse", error), WEFT_STATUS_BAD_INPUT,
                  "did you mean --overlap-grad-reduce?");
  assert_refused (open_job ("--model gpt2-nana", error), WEFT_STATUS_BAD_INPUT,
                  "did you mean gpt2-nano?");
  assert_refused (open_job ("nowhere.ini", error), WEFT_STATUS_BAD_INPUT, "no such file");
  assert_refused (open_job (NANO "--global-batch-size 3 --gpus 2", error), WEFT_STATUS_BAD_INPUT,
                  "batch");
  assert_refused (open_job (NANO "--gpus", error), WEFT_STATUS_BAD_INPUT, "wanted a value");
  assert_null (open_job (NANO "--gpus", NULL)); /* the last argument, `error`, may be NULL */
}

static void
what_is_predicted_is_the_plan_that_is_run (void **state)
{
  weft_job *job, *cluster;
  weft_job_facts facts;
  weft_prediction sim, clock;

  (void) state;
  assert_ok (job = open_job (TWO, error));
  weft_job_describe (job, &facts);
  assert_int_equal (facts.ranks, 2);
  assert_int_equal (facts.microbatches, 2);
  assert_ok (cluster = open_job (NANO "--topology dgx-h100 --gpus 8 --global-batch-size 8", error));
  assert_ok (weft_job_predict (cluster, NULL, &sim, error));
  assert_ok (weft_job_predict (cluster, "clock", &clock, error));
  assert_true (sim.seconds > 0 && clock.seconds > 0 && clock.seconds <= sim.seconds * 1.000001);
  assert_true (sim.broadcast_params_s > 0);
  assert_float_equal (sim.compute_s + sim.exposed_communication_s + sim.bubble_s, sim.seconds,
                      1e-9);
  assert_ok (weft_job_predict (job, "clock", &clock, error));
  assert_int_equal (clock.peak_bytes, facts.planned_bytes);
  assert_refused (weft_job_predict (job, "simgrid", &clock, error), WEFT_STATUS_BAD_INPUT,
                  "wanted sim or clock");
  weft_job_close (job);
  weft_job_close (cluster);
}

/* SimGrid has one engine per process, and only the thread that made the engine may run it. */
static gpointer
predict_twice (gpointer job)
{
  double *seconds = g_new0 (double, 1);
  weft_prediction out = { 0 };

  for (int i = 0; i < 2; i++)
    if (weft_job_predict (job, "sim", &out, NULL) && (*seconds == 0 || *seconds == out.seconds))
      *seconds = out.seconds;
    else
      *seconds = -1;
  return seconds;
}

static void
several_threads_predict_at_once (void **state)
{
  GThread *thread[4];
  weft_job *job;

  (void) state;
  assert_ok (job = open_job (NANO "--topology dgx-h100 --gpus 2", error));
  g_autofree double *alone = predict_twice (job);
  for (unsigned i = 0; i < G_N_ELEMENTS (thread); i++)
    thread[i] = g_thread_new (NULL, predict_twice, job);
  for (unsigned i = 0; i < G_N_ELEMENTS (thread); i++) {
    g_autofree double *seconds = g_thread_join (thread[i]);
    assert_true (*seconds > 0 && *seconds == *alone);
  }
  weft_job_close (job);
}

static void
null_is_an_error_and_no_crash (void **state)
{
  const char *const words[] = { "--model", NULL };
  const weft_adam adam = WEFT_ADAM_DEFAULTS;
  g_autoptr (run) r = run_open (TWO, NULL);
  weft_prediction out;
  weft_job_facts facts;
  double loss;

  (void) state;
#define assert_null_refused(call) assert_refused (call, WEFT_STATUS_BAD_INPUT, "found NULL, wanted")
  assert_null_refused (weft_job_open (2, NULL, error));
  assert_null_refused (weft_job_open (2, words, error));
  assert_null_refused (weft_job_predict (NULL, NULL, &out, error));
  assert_null_refused (weft_job_predict (r->job, NULL, NULL, error));
  assert_null_refused (weft_module_open (NULL, NULL, error));
  assert_null_refused (weft_batches_open (NULL, "LICENSE", 0, true, error));
  assert_null_refused (weft_batches_open (r->job, NULL, 0, true, error));
  assert_null_refused (weft_batches_read (NULL, 0, r->batch, error));
  assert_null_refused (weft_batches_read_micro (NULL, 0, 0, r->batch, error));
  assert_null_refused (weft_module_broadcast_params (NULL, error));
  assert_null_refused (weft_module_zero_grad_buffer (NULL, error));
  assert_null_refused (weft_module_forward (NULL, r->batch, error));
  assert_null_refused (weft_module_backward (NULL, error));
  assert_null_refused (weft_module_forward_backward (NULL, r->batch, error));
  assert_null_refused (weft_module_no_sync_begin (NULL, error));
  assert_null_refused (weft_module_start_grad_sync (NULL, error));
  assert_null_refused (weft_module_finalize_model_grads (NULL, error));
  assert_null_refused (weft_module_scale_gradients (NULL, 1, error));
  assert_null_refused (weft_module_step (NULL, &adam, NULL, error));
  assert_null_refused (weft_module_evaluate (r->module, NULL, &loss, error));
  assert_null_refused (weft_module_evaluate (r->module, r->batch, NULL, error));
  assert_null_refused (weft_module_load_state_dict (r->module, NULL, 1, true, error));
  assert_null_refused (weft_module_save_checkpoint (r->module, NULL, 1, 0, 0, error));
  assert_null_refused (weft_module_load_checkpoint (r->module, NULL, NULL, NULL, error));
  assert_null_refused (weft_module_export_safetensors (r->module, NULL, error));
  assert_null_refused (weft_state_dict_read (NULL, 0, 0, 1, NULL, error));
  begin (r);
  assert_null_refused (weft_module_forward (r->module, NULL, error));
  weft_job_describe (NULL, &facts);
  assert_int_equal (facts.ranks, 0);
  weft_job_describe (r->job, NULL);
  weft_module_init_weights (NULL, 1);
  assert_null (weft_job_note (NULL, 0));
  assert_null (weft_module_state_dict (NULL, NULL, true));
  assert_int_equal (weft_state_dict_count (NULL), 0);
  assert_null (weft_state_dict_at (NULL, 0));
  assert_null (weft_state_dict_data (NULL, 0, 0));
  assert_int_equal (weft_module_steps (NULL), 0);
}

static void
absurd_numbers_are_refused_with_their_range (void **state)
{
  const weft_module_options crowd = { .threads = 4000000000u }, far = { .stress = UINT64_MAX };
  const weft_adam nan = { NAN, 0.9, 0.95, 1e-8, 0.1 }, one = { 1e-3, 1, 0.95, 1e-8, 0.1 };
  g_autoptr (run) r = run_open (NANO, NULL);

  (void) state;
  assert_refused (weft_module_open (r->job, &crowd, error), WEFT_STATUS_BAD_INPUT,
                  "threads: found 4000000000, wanted none|1..1024");
  assert_refused (weft_module_open (r->job, &far, error), WEFT_STATUS_BAD_INPUT,
                  "stress: found 18446744073709551615");
  assert_refused (weft_job_open (SIZE_MAX, NULL, error), WEFT_STATUS_BAD_INPUT, "words");
  fill_batch (r, 0);
  begin (r);
  assert_ok (weft_module_forward_backward (r->module, r->batch, error));
  assert_ok (weft_module_finalize_model_grads (r->module, error));
  assert_refused (weft_module_step (r->module, &nan, NULL, error), WEFT_STATUS_BAD_INPUT, "lr nan");
  assert_refused (weft_module_step (r->module, &one, NULL, error), WEFT_STATUS_BAD_INPUT,
                  "beta1 1,");
  assert_int_equal (weft_module_steps (r->module), 0);
}

static void
an_evaluation_is_between_steps_and_changes_nothing (void **state)
{
  g_autoptr (run) r = run_open (TWO SHARDED, NULL);
  double loss, again;

  (void) state;
  fill_batch (r, 1);
  assert_ok (weft_module_evaluate (r->module, r->batch, &loss, error));
  assert_ok (weft_module_evaluate (r->module, r->batch, &again, error));
  assert_true (loss == again);
  assert_true (step (r, CELLS).loss == loss);
  begin (r);
  assert_refused (weft_module_evaluate (r->module, r->batch, &loss, error), WEFT_STATUS_ORDER,
                  "in the middle of a step");
}

static void
microbatches_of_a_file_are_rows_of_its_batch (void **state)
{
  g_autoptr (run) r = run_open (TWO LEVEL3, NULL);
  weft_batches *batches;
  size_t n = 2 * (r->facts.seq_length + 1);
  g_autofree int32_t *part = g_new (int32_t, n);

  (void) state;
  assert_ok (batches = weft_batches_open (r->job, WEFT_SOURCE_DIR "/LICENSE", 3, true, error));
  assert_ok (weft_batches_read (batches, 4, r->batch, error));
  for (uint32_t micro = 0; micro < 2; micro++) {
    g_autofree int32_t *wanted = microbatch (r, micro);
    assert_ok (weft_batches_read_micro (batches, 4, micro, part, error));
    assert_memory_equal (part, wanted, n * sizeof *part);
  }
  assert_refused (weft_batches_read_micro (batches, 4, 2, part, error), WEFT_STATUS_BAD_INPUT,
                  "wanted 0..1");
  weft_batches_close (batches);
  assert_refused (weft_batches_open (r->job, "/no/such/file", 3, true, error),
                  WEFT_STATUS_BAD_INPUT, "/no/such/file");
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (every_way_to_write_a_step_and_every_strategy_give_the_bits_of_one_rank),
  cmocka_unit_test (ops_in_any_legal_order_and_more_threads_change_no_bit),
  cmocka_unit_test (zero_grad_buffer_begins_a_step_and_gives_up_one_that_was_begun),
  cmocka_unit_test (forward_and_backward_take_one_microbatch_of_every_replica),
  cmocka_unit_test (a_pipeline_runs_its_microbatches_together),
  cmocka_unit_test (no_sync_is_for_all_microbatches_but_the_last),
  cmocka_unit_test (start_grad_sync_launches_what_no_backward_has_launched),
  cmocka_unit_test (finish_grad_sync_starts_what_was_not_started_and_ends_it),
  cmocka_unit_test (finalize_model_grads_joins_and_sums_the_tied_embedding),
  cmocka_unit_test (scale_gradients_multiplies_every_buffer),
  cmocka_unit_test (broadcast_params_gives_everybody_the_weights_of_replica_0),
  cmocka_unit_test (broadcast_params_refreshes_masters_and_wants_whole_weights),
  cmocka_unit_test (state_dict_refers_to_values_and_keep_vars_to_parameters),
  cmocka_unit_test (state_dict_for_save_checkpoint_has_the_same_names_in_full_precision),
  cmocka_unit_test (load_state_dict_wants_the_exact_names_when_it_is_strict),
  cmocka_unit_test_setup_teardown (a_checkpoint_goes_on_under_another_strategy,
                                   weft_test_folder_make, weft_test_folder_remove),
  cmocka_unit_test (errors_are_those_of_the_command_line),
  cmocka_unit_test (what_is_predicted_is_the_plan_that_is_run),
  cmocka_unit_test (several_threads_predict_at_once),
  cmocka_unit_test (null_is_an_error_and_no_crash),
  cmocka_unit_test (absurd_numbers_are_refused_with_their_range),
  cmocka_unit_test (an_evaluation_is_between_steps_and_changes_nothing),
  cmocka_unit_test (microbatches_of_a_file_are_rows_of_its_batch),
};

WEFT_TESTS (tests)
