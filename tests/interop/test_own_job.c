/* Import and export of Weft's own job file and of Hugging Face's config.json, by the interface that
 * is used for files of other software. */
#include "core/base/error.h"
#include "interop/hugging_face.h"
#include "interop/own_job.h"
#include "tests/made/imports.h"
#include "tests/made/random_job.h"
#include "tests/runner/runner.h"
#include <string.h>

static const struct weft_test_import job_file = { &weft_own_job, "job.ini", 0, "" };
static const struct weft_test_import config = { &weft_hugging_face, "config.json", 0, "" };

static void
a_job_file_comes_back_letter_by_letter (void **state)
{
  g_autoptr (GError) error = NULL;
  struct weft_job job, back;

  (void) state;
  assert_true (weft_test_job ("model=llama-nano topology=dgx-h100 gpus=16 global_batch_size=64"
                              " tensor_model_parallel_size=2 precision=fp16",
                              &job, &error));
  g_autoptr (weft_interop_result) out = weft_export (&weft_own_job, &job, &error);
  struct weft_import_options options = { 0 };
  g_autoptr (weft_interop_result) in =
      weft_import (&weft_own_job, out->text, "job.ini", &options, &error);
  assert_true (weft_job_build (in->settings, &back, &error));
  g_autofree char *again = weft_job_print (&back);
  assert_string_equal (again, out->text);
  weft_test_import_refused (&job_file, "[strategy]\ntensor_model_paralel_size = 2\n",
                            "job.ini:2: [strategy] unknown key");
}

#define MODEL                                                                                      \
  "{\"model_type\": \"llama\", \"hidden_size\": 64, \"num_hidden_layers\": 2, "                    \
  "\"num_attention_heads\": 4, \"intermediate_size\": 128, \"vocab_size\": 99, "                   \
  "\"max_position_embeddings\": 32"

static void
a_config_of_hugging_face_is_a_model (void **state)
{
  g_autoptr (GError) error = NULL;
  struct weft_import_options partial = { .partial = TRUE };

  (void) state;
  weft_test_means (&config, MODEL "}", "ffn_hidden_size", "128");
  weft_test_means (&config, MODEL "}", "num_layers", "2");
  weft_test_means (&config, MODEL "}", "distributed_config", "megatron_ddp");
  weft_test_import_refused (&config, MODEL ", \"new_kind_of_layer\": 3}",
                            "config.json: unknown key new_kind_of_layer");
  g_autoptr (weft_interop_result) in = weft_import (
      &weft_hugging_face, MODEL ", \"new_kind_of_layer\": 3}", "config.json", &partial, &error);
  assert_non_null (in);
  assert_int_equal (in->unknown->len, 1);
  weft_test_import_refused (&config, "{", "config.json");
}

static void
a_format_that_is_only_read_is_not_exported (void **state)
{
  g_autoptr (GError) error = NULL;
  g_autofree char *written = weft_target_names (" ", TRUE), *read = weft_target_names (" ", FALSE);
  struct weft_job job;

  (void) state;
  assert_true (weft_test_job ("model=llama-nano topology=dgx-h100", &job, &error));
  assert_null (weft_export (&weft_hugging_face, &job, &error));
  assert_non_null (strstr (error->message, "is only read, by weft import"));
  assert_null (strstr (written, "hugging-face"));
  assert_non_null (strstr (read, "hugging-face"));
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (a_job_file_comes_back_letter_by_letter),
  cmocka_unit_test (a_config_of_hugging_face_is_a_model),
  cmocka_unit_test (a_format_that_is_only_read_is_not_exported),
};

WEFT_TESTS (tests)
