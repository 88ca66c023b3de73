/* Command lines of Megatron-LM: what they mean, what is refused, and how scripts are read. */
#include "core/base/error.h"
#include "interop/megatron.h"
#include "tests/made/imports.h"
#include "tests/made/random_job.h"
#include "tests/runner/runner.h"
#include <string.h>

#define SHAPE                                                                                      \
  "--num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 256 "                     \
  "--max-position-embeddings 256 --micro-batch-size 2 "

static const struct weft_test_import how = { &weft_megatron_lm, "train.sh", 0, SHAPE };

static char *
imported (const char *text, const char *setting)
{
  return weft_test_imported (&how, text, setting);
}

static void
assert_means (const char *text, const char *setting, const char *value)
{
  weft_test_means (&how, text, setting, value);
}

static void
assert_refused (const char *text, const char *part)
{
  weft_test_import_refused (&how, text, part);
}

static void
settings_that_no_key_gives_have_the_defaults_of_megatron (void **state)
{
  (void) state;
  assert_means ("", "ffn_hidden_size", "2048");
  assert_means ("--swiglu", "ffn_hidden_size", "1344"); /* int (4*512*2/3/64) * 64 */
  assert_means ("", "kv_channels", "64");
  assert_means ("", "num_query_groups", "8");
  assert_means ("", "vocab_size", "50257");
  assert_means ("--tokenizer-type NullTokenizer --vocab-size 1023", "vocab_size", "1024");
  assert_means ("", "position_embedding_type", "learned");
  assert_means ("", "share_embeddings_and_output_weights", "true");
  assert_means ("", "add_qkv_bias", "true");
  assert_means ("--disable-bias-linear", "add_qkv_bias", "false");
  assert_means ("", "hidden_dropout", "0.1");
  assert_means ("", "precision", "fp32");
  assert_means ("", "grad_reduce_in_fp32", "false");
  assert_means ("--bf16", "grad_reduce_in_fp32", "true");
  assert_means ("--bf16 --grad-reduce-in-bf16", "grad_reduce_in_fp32", "false");
  assert_means ("--bf16 --fp8-format e4m3", "precision", "fp8");
  assert_means ("", "gradient_accumulation_fusion", "true");
  assert_means ("", "make_vocab_size_divisible_by", "128");
  assert_means ("\f --bf16\f", "precision", "bf16"); /* form feeds are blanks */
}

static void
keys_that_depend_on_others_are_read_in_any_order (void **state)
{
  (void) state;
  assert_means ("--num-layers-per-virtual-pipeline-stage 2 --pipeline-model-parallel-size 2",
                "virtual_pipeline_model_parallel_size", "2");
  assert_means ("--num-layers-per-virtual-pipeline-stage 2 --pipeline-model-parallel-size 2",
                "overlap_p2p_comm", "true");
  assert_means ("--pipeline-model-parallel-size 2", "overlap_p2p_comm", "false");
  assert_means ("--num-query-groups 2", "num_query_groups", "8"); /* Megatron-LM ignores it */
  assert_means ("--num-query-groups 2 --group-query-attention", "num_query_groups", "2");
  assert_means ("--sequence-parallel", "sequence_parallel", "false");
  assert_means ("--sequence-parallel --tensor-model-parallel-size 2", "sequence_parallel", "true");
  assert_means ("--num-experts 8 --moe-layer-freq '([0]*3+[1]*5)'", "moe_first_dense_layers", "3");
  assert_means ("--num-experts 8 --moe-layer-freq [0,1,0,1,0,1,0,1]", "moe_layer_offset", "1");
  assert_means ("--num-experts 8 --moe-layer-freq '([0]+[1])*4'", "moe_layer_freq", "2");
  assert_means ("--multi-latent-attention --kv-lora-rank 512", "qk_head_dim", "128");
  assert_means ("--tensor-model-par 2", "tensor_model_parallel_size", "2"); /* as argparse */
}

static void
what_weft_does_not_have_is_refused_by_name (void **state)
{
  (void) state;
  assert_refused (SHAPE "--tensor-model-paralel-size 2",
                  "train.sh:1: unknown key --tensor-model-paralel-size; did you mean "
                  "--tensor-model-parallel-size?");
  assert_refused (SHAPE "--use-sharp", "changes a step, and Weft has no setting for it");
  assert_refused (SHAPE "--hidden-size wide", "found \"wide\", wanted a whole number");
  assert_refused (SHAPE "--bf16 4", "found \"4\", wanted no value");
  assert_refused (SHAPE "--optimizer lion", "wanted one of: adam sgd");
  assert_refused (SHAPE "--optimizer sgd", "--optimizer sgd changes a step");
  assert_refused (SHAPE "--fp8-format hybrid", "without --bf16");
  assert_refused (SHAPE "--num-experts 8 --moe-layer-freq [0]*7", "the list has 7 layers");
  assert_refused (SHAPE "--num-experts 8 --moe-layer-freq [1,1,0,1,1,0,1,0]", "no other order");
  assert_refused (SHAPE "--num-experts 8 --moe-layer-freq '([0]*99999999)'",
                  "wanted a number or a");
  assert_refused ("torchrun pretrain_bert.py " SHAPE, "Weft has decoders only");
  assert_refused ("", "no arguments");
}

static void
a_script_is_followed_without_running_it (void **state)
{
  static const char script[] =
      "#!/bin/bash\n"
      "LAYERS=4; WIDE=$((128*LAYERS)) # a comment\n"
      "SHAPE=(\n  --num-layers $LAYERS # four\n  --hidden-size ${WIDE}\n)\n"
      "export HEADS=${HEADS:-\"8\"}\n"
      "if [ \"$SIZE\" == big ] || [ $LAYERS -gt 40 ]; then\n  HEADS=64\n"
      "elif [[ -z \"$SIZE\" && $LAYERS -eq 4 ]]; then\n  HEADS=16\nelse\n  HEADS=2\nfi\n"
      "SHAPE+=(--num-attention-heads ${HEADS})\n"
      "BATCH=\"--micro-batch-size 1 \\\n  --global-batch-size 64\"\n"
      "if [ ! -f pretrain_gpt.py ]; then echo no; exit 1; fi\n"
      "torchrun --nproc_per_node=8 --nnodes 2 pretrain_gpt.py ${SHAPE[@]} $BATCH \\\n"
      "  --seq-length 1024 --max-position-embeddings 1024 --save \"$DIR/new\" \"$@\" | tee log\n";
  g_autofree char *layers = imported (script, "num_layers");
  g_autofree char *width = imported (script, "hidden_size");
  g_autofree char *heads = imported (script, "num_attention_heads");
  g_autofree char *batch = imported (script, "global_batch_size");
  g_autofree char *gpus = imported (script, "gpus");

  (void) state;
  assert_string_equal (layers, "4");
  assert_string_equal (width, "512");
  assert_string_equal (heads, "16");
  assert_string_equal (batch, "64");
  assert_string_equal (gpus, "16");
}

static void
what_a_script_hides_is_refused_with_its_line (void **state)
{
  (void) state;
  assert_refused ("A=1\nfor i in 1 2; do\n  A=2\ndone\n", "train.sh:2: `for` is not followed");
  assert_refused ("A=1\nif grep -q x y; then\n  A=2\nfi\n",
                  "train.sh:3: depends on a condition that is not evaluated");
  assert_refused ("torchrun pretrain_gpt.py $ARGS\n", "the file does not set this variable");
  assert_refused ("torchrun pretrain_gpt.py --hidden-size $WIDE\n", "found \"$WIDE\", wanted");
  assert_refused ("A=(--bf16\n", "an array has no closing parenthesis");
  assert_refused ("A=\"--bf16\n", "a quote is not closed");
  assert_refused ("if [ 1 = 1 ]; then\nA=1\n", "an if has no fi");
}

static void
a_test_of_megatron_is_read (void **state)
{
  static const char text[] = "ENV_VARS:\n  NCCL_ALGO: Ring\nMODEL_ARGS:\n  --num-layers: 12\n"
                             "  --hidden-size: 512\n  --num-attention-heads: 8\n"
                             "  --seq-length: 1024\n  --max-position-embeddings: 1024\n"
                             "  --micro-batch-size: 4\n  --bf16: true\n"
                             "  --recompute-modules: core_attn mlp\n"
                             "  --swiglu: false\n  --load: ${CHECKPOINT_LOAD_PATH}\n"
                             "TEST_TYPE: regular\n";
  g_autofree char *precision = imported (text, "precision");
  g_autofree char *modules = imported (text, "recompute_modules");
  g_autofree char *activation = imported (text, "activation");

  (void) state;
  assert_string_equal (precision, "bf16");
  assert_string_equal (modules, "core_attn,mlp");
  assert_string_equal (activation, "gelu");
  assert_refused ("MODEL_ARGS:\n  --num-layers: 1\n --bad", "train.sh:");
  assert_refused ("MODEL_ARGS:\n  --no-such: 1\n", "train.sh:2: unknown key --no-such");
}

/* Megatron-Core counts experts on tensor parallel ranks even in a model without any, and asserts
 * that they have as many replicas as dense weights if the stages lie inside. Its own tests
 * therefore give such models --expert-tensor-parallel-size, which an export adds and an import
 * ignores. */
static void
stages_inside_replicas_are_exported_and_read (void **state)
{
  static const char inside[] = "--use-tp-pp-dp-mapping --pipeline-model-parallel-size 2 ";
  g_autoptr (GError) error = NULL;
  struct weft_job job;

  (void) state;
  assert_means ("--pipeline-model-parallel-size 2", "use_tp_pp_dp_mapping", "false");
  assert_means (inside, "use_tp_pp_dp_mapping", "true");
  assert_means ("--expert-tensor-parallel-size 4", "expert_tensor_parallel_size", "none");
  assert_means ("--num-experts 8 --expert-tensor-parallel-size 1", "expert_tensor_parallel_size",
                "1");
  assert_true (weft_test_job ("model=gpt2 topology=dgx-h100 gpus=16 pipeline_model_parallel_size=2 "
                              "context_parallel_size=2 tensor_model_parallel_size=2 "
                              "global_batch_size=8 use_tp_pp_dp_mapping=true "
                              "deallocate_pipeline_outputs=true",
                              &job, &error));
  g_autoptr (weft_interop_result) out = weft_export (&weft_megatron_lm, &job, &error);
  g_autofree char *left_out = weft_export_left_out (out);
  assert_null (left_out);
  assert_non_null (strstr (out->text, "--use-tp-pp-dp-mapping\n"));
  assert_non_null (strstr (out->text, "--expert-tensor-parallel-size 4\n"));
}

static void
an_export_names_what_megatron_cannot_express (void **state)
{
  g_autoptr (GError) error = NULL;
  struct weft_job job;

  (void) state;
  assert_true (weft_test_job ("model=gpt2 topology=dgx-h100 gpus=8 pipeline_model_parallel_size=2 "
                              "global_batch_size=8 pipeline_schedule=zb-h1",
                              &job, &error));
  g_autoptr (weft_interop_result) out = weft_export (&weft_megatron_lm, &job, &error);
  g_autofree char *left_out = weft_export_left_out (out);
  assert_non_null (strstr (left_out, "pipeline_schedule = zb-h1 (1f1b there)"));
  assert_non_null (strstr (out->text, "--pipeline-model-parallel-size 2\n"));
  assert_null (strstr (out->text, "zb-h1"));
}

/* Without a key for the tokenizer Megatron-LM takes GPT-2's vocabulary, but every export names
 * another tokenizer: the vocabulary of GPT-2 needs its key as any other. */
static void
the_vocabulary_of_gpt2_is_exported (void **state)
{
  g_autoptr (GError) error = NULL;
  struct weft_job job;

  (void) state;
  assert_true (weft_test_job ("model=gpt2 topology=dgx-h100 gpus=8 global_batch_size=8", &job,
                              &error));
  g_autoptr (weft_interop_result) out = weft_export (&weft_megatron_lm, &job, &error);
  g_autofree char *left_out = weft_export_left_out (out);
  assert_null (left_out);
  assert_non_null (strstr (out->text, "--tokenizer-type NullTokenizer\n"));
  assert_non_null (strstr (out->text, "--vocab-size 50256\n"));
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (settings_that_no_key_gives_have_the_defaults_of_megatron),
  cmocka_unit_test (keys_that_depend_on_others_are_read_in_any_order),
  cmocka_unit_test (what_weft_does_not_have_is_refused_by_name),
  cmocka_unit_test (a_script_is_followed_without_running_it),
  cmocka_unit_test (what_a_script_hides_is_refused_with_its_line),
  cmocka_unit_test (a_test_of_megatron_is_read),
  cmocka_unit_test (stages_inside_replicas_are_exported_and_read),
  cmocka_unit_test (an_export_names_what_megatron_cannot_express),
  cmocka_unit_test (the_vocabulary_of_gpt2_is_exported),
};

WEFT_TESTS (tests)
