/* Aliases (core/aliases.def): flags of other software that set settings of Weft, or that have no
 * effect. */
#include "core/job/aliases.h"
#include "core/job/flags.h"
#include "tests/runner/runner.h"
#include <string.h>

/* Builds a job from a command line. The settings that the flags set are added to `settings`. */
static struct weft_job
job_of (const char *line, weft_settings *settings)
{
  g_auto (GStrv) words = g_strsplit (line, " ", -1);
  g_autoptr (GError) error = NULL;
  struct weft_job job;

  if (!weft_flags_read ((int) g_strv_length (words), (const char *const *) words, "dgx-h100",
                        settings, &error) ||
      !weft_job_build (settings, &job, &error))
    fail_msg ("%s: %s", line, error->message);
  return job;
}

static void
assert_refused (const char *line, const char *part)
{
  g_autoptr (weft_settings) settings = weft_settings_new ();
  g_auto (GStrv) words = g_strsplit (line, " ", -1);
  g_autoptr (GError) error = NULL;
  struct weft_job job;

  assert_false (weft_flags_read ((int) g_strv_length (words), (const char *const *) words,
                                 "dgx-h100", settings, &error) &&
                weft_job_build (settings, &job, &error));
  if (!strstr (error->message, part))
    fail_msg ("%s: %s; wanted \"%s\"", line, error->message, part);
}

#define SHAPE                                                                                      \
  "--num-layers 8 --hidden-size 512 --num-attention-heads 8 --vocab-size 1024 --seq-length 256 "

static void
every_row_names_settings_that_exist_and_parse (void **state)
{
  const char *section, *key;
  gboolean boolean;

  (void) state;
  for (unsigned i = 0; i < weft_n_aliases; i++) {
    const struct weft_alias *alias = &weft_aliases[i];
    g_autofree char *text = weft_alias_text (alias);
    assert_true (weft_alias_find (alias->name) == alias);
    assert_true (strlen (text) > 4);
    if (alias->ignored)
      continue;
    if (alias->values == WEFT_ALIAS_ONE)
      assert_true (weft_job_flag (alias->sets, &section, &key, &boolean) && !boolean);
    else {
      g_autofree char *line = g_strconcat (SHAPE "--", alias->name, NULL);
      g_autoptr (weft_settings) settings = weft_settings_new ();
      job_of (line, settings);
      assert_int_equal (g_strv_length ((char **) weft_settings_ignored (settings)), 0);
    }
  }
}

static void
short_forms_set_the_sizes_of_the_mesh (void **state)
{
  g_autoptr (weft_settings) settings = weft_settings_new ();
  struct weft_job job = job_of ("--model mixtral-nano --gpus 16 --tp 2 --pp 2 --cp 2 --ep 2 --dp 2 "
                                "--global-batch-size 8 --sequence-parallel",
                                settings);

  (void) state;
  assert_int_equal (job.strategy.tensor_model_parallel_size, 2);
  assert_int_equal (job.strategy.pipeline_model_parallel_size, 2);
  assert_int_equal (job.strategy.context_parallel_size, 2);
  assert_int_equal (job.strategy.expert_model_parallel_size, 2);
  assert_int_equal (job.strategy.dp_size, 2);
  assert_refused ("--model gpt2-nano --tp none", "--tp: ");
  assert_refused ("--model gpt2-nano --tp", "--tp: wanted a value");
}

static void
flags_of_the_model_set_its_fields (void **state)
{
  g_autoptr (weft_settings) settings = weft_settings_new ();
  struct weft_job job = job_of (SHAPE "--swiglu --add-bias-linear --disable-bias-linear "
                                      "--untie-embeddings-and-output-weights --use-rope-scaling "
                                      "--use-flash-attn --recompute-activations "
                                      "--ddp-bucket-size 1000",
                                settings);

  (void) state;
  assert_int_equal (job.model.activation, WEFT_SWIGLU);
  assert_false (job.model.add_bias_linear);
  assert_false (job.model.share_embeddings_and_output_weights);
  assert_int_equal (job.model.rotary_scaling, WEFT_ROTARY_LLAMA3);
  assert_true (job.model.rotary_scaling_factor == 8);
  assert_int_equal (job.strategy.attention_backend, WEFT_ATTENTION_FLASH);
  assert_int_equal (job.strategy.recompute_granularity, WEFT_RECOMPUTE_SELECTIVE);
  assert_int_equal (job.strategy.bucket_size, 1000);
  assert_refused (SHAPE "--swiglu=1", "--swiglu: found \"1\", wanted no value");
  assert_refused (SHAPE "--swigul", "did you mean --swiglu?");
}

/* "key?=value" in aliases.def: the alias sets `key` only if neither the model nor an earlier
 * flag has set it. */
static void
default_widths_give_way_to_given_ones (void **state)
{
  g_autoptr (weft_settings) bare = weft_settings_new (), given = weft_settings_new (),
                            model = weft_settings_new ();
  struct weft_job a = job_of (SHAPE "--multi-latent-attention", bare);
  struct weft_job b = job_of (SHAPE "--kv-lora-rank 64 --multi-latent-attention --v-head-dim 32",
                              given);
  struct weft_job c = job_of ("--model deepseek-v2-lite --gpus 8 --multi-latent-attention", model);

  (void) state;
  assert_int_equal (a.model.kv_lora_rank, 32);
  assert_int_equal (a.model.v_head_dim, 128);
  assert_int_equal (b.model.kv_lora_rank, 64);
  assert_int_equal (b.model.qk_head_dim, 128);
  assert_int_equal (b.model.v_head_dim, 32);
  assert_int_equal (c.model.kv_lora_rank, 512);
}

static void
layers_of_a_chunk_become_a_number_of_chunks (void **state)
{
#define PIPE "--model gpt2-nano --gpus 4 --global-batch-size 8 --pp 4 "
  g_autoptr (weft_settings) settings = weft_settings_new ();
  struct weft_job job = job_of (PIPE "--num-layers-per-virtual-pipeline-stage 1", settings);

  (void) state;
  assert_int_equal (job.strategy.virtual_pipeline_model_parallel_size, 2);
  assert_refused (PIPE "--num-layers-per-virtual-pipeline-stage 3", "found 3 layers per chunk");
  assert_refused ("--model gpt2-nano --num-layers-per-virtual-pipeline-stage 1",
                  "wanted a pipeline of at least 2 stages");
}

/* Reads the flags of Megatron-LM's examples/mixtral/train_mixtral_8x7b_distributed.sh. */
static void
a_command_line_of_megatron_is_read_whole (void **state)
{
  g_autoptr (weft_settings) settings = weft_settings_new ();
  struct weft_job job = job_of (
      "--use-mcore-models --disable-bias-linear --seq-length 4096 --max-position-embeddings 32768 "
      "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 "
      "--init-method-std 0.01 --attention-dropout 0.0 --hidden-dropout 0.0 --normalization RMSNorm "
      "--position-embedding-type rope --swiglu --untie-embeddings-and-output-weights "
      "--group-query-attention --num-query-groups 8 --no-masked-softmax-fusion "
      "--no-position-embedding --rotary-base 1000000 --num-experts 8 --moe-router-topk 2 "
      "--moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 1e-2 --moe-grouped-gemm "
      "--moe-token-dispatcher-type alltoall --overlap-param-gather --overlap-grad-reduce "
      "--tokenizer-type Llama2Tokenizer --tokenizer-model t.model --data-path 30 a 70 b "
      "--split 99990,8,2 --micro-batch-size 1 --global-batch-size 256 --lr 1e-4 "
      "--train-iters 500000 --lr-decay-iters 320000 --lr-decay-style cosine --min-lr 1.0e-5 "
      "--weight-decay 0.1 --lr-warmup-iters 500 --clip-grad 1.0 --bf16 "
      "--tensor-model-parallel-size 1 --pipeline-model-parallel-size 4 "
      "--expert-model-parallel-size 8 --use-distributed-optimizer --log-interval 1 "
      "--save-interval 10000 --eval-interval 1000 --eval-iters 10 --save c --load c "
      "--tensorboard-dir t --no-load-optim --no-load-rng --nodes 8 --vocab-size 32000",
      settings);
  const char *const *ignored = weft_settings_ignored (settings);

  (void) state;
  assert_int_equal (job.model.activation, WEFT_SWIGLU);
  assert_int_equal (job.model.num_moe_experts, 8);
  assert_int_equal (job.cluster.n_gpus, 64);
  assert_true (g_strv_contains (ignored, "data_path") && g_strv_contains (ignored, "train_iters"));
  assert_false (g_strv_contains (ignored, "swiglu"));
  assert_int_equal (g_strv_length ((char **) ignored), 28);
}

static void
a_job_file_that_uses_a_flag_as_key_is_told_what_to_write (void **state)
{
  g_autoptr (weft_settings) settings = weft_settings_new ();
  g_autoptr (GError) error = NULL;

  (void) state;
  weft_settings_add (settings, "model", "swiglu", "true", "job.ini:2");
  assert_false (weft_settings_check (settings, &error));
  assert_string_equal (error->message, "job.ini:2: [model] unknown key \"swiglu\"; as a flag it "
                                       "stands for activation = swiglu");
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (every_row_names_settings_that_exist_and_parse),
  cmocka_unit_test (short_forms_set_the_sizes_of_the_mesh),
  cmocka_unit_test (flags_of_the_model_set_its_fields),
  cmocka_unit_test (default_widths_give_way_to_given_ones),
  cmocka_unit_test (layers_of_a_chunk_become_a_number_of_chunks),
  cmocka_unit_test (a_command_line_of_megatron_is_read_whole),
  cmocka_unit_test (a_job_file_that_uses_a_flag_as_key_is_told_what_to_write),
};

WEFT_TESTS (tests)
