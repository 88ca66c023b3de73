/* api/examples/train.c includes only Weft's public header, and its losses are those of
 * `weft train`. */
#include "tests/runner/command.h"
#include "tests/runner/folder.h"
#include "tests/runner/runner.h"
#include <glib.h>
#include <glib/gstdio.h>
#include <stdlib.h>
#include <string.h>

#define DATA WEFT_SOURCE_DIR "/LICENSE"
#define STEPS 3

/* The learning rate that api/examples/train.c uses. */
#define LIKE_THE_EXAMPLE "--lr 1e-3 --min-lr 1e-3 --warmup 0 "

struct trace {
  double loss[STEPS], norm[STEPS];
  char *sum; /* checksum of the exported weights, as printed text */
};

static void
trace_clear (struct trace *t)
{
  g_free (t->sum);
}
typedef struct trace trace;
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (trace, trace_clear)

/* Reads the number after `word` in each of the STEPS printed lines, one line per training step. */
static void
read_numbers (const char *text, const char *word, double *out)
{
  for (int i = 0; i < STEPS; i++) {
    text = strstr (text, word);
    assert_non_null (text);
    text += strlen (word);
    out[i] = strtod (text, NULL);
  }
}

static char *
checksum (const char *path)
{
  g_autofree char *bytes = NULL;
  gsize n;

  assert_true (g_file_get_contents (path, &bytes, &n, NULL));
  return g_compute_checksum_for_data (G_CHECKSUM_SHA256, (const guchar *) bytes, n);
}

static void
run_example (const char *words, struct trace *t)
{
  g_autofree char *command = g_strdup_printf ("%s %s %d %s", WEFT_EXAMPLE, DATA, STEPS, words);
  g_autofree char *out = NULL, *err = NULL;
  int status;

  g_setenv ("EXPORT", "example.safetensors", TRUE);
  assert_true (g_spawn_command_line_sync (command, &out, &err, &status, NULL));
  if (status)
    fail_msg ("%s: %s", command, err);
  read_numbers (out, "  loss ", t->loss);
  read_numbers (out, "  norm ", t->norm);
  t->sum = checksum ("example.safetensors");
}

static void
run_weft (const char *words, struct trace *t)
{
  g_autofree char *command =
      g_strdup_printf ("train --json --data %s --steps %d --export-safetensors "
                       "weft.safetensors " LIKE_THE_EXAMPLE "%s",
                       DATA, STEPS, words);
  struct answer answer = weft_test_answer (command);

  if (answer.status)
    fail_msg ("%s: %s", command, answer.err);
  read_numbers (answer.out, "\"loss\":", t->loss);
  read_numbers (answer.out, "\"grad_norm\":", t->norm);
  t->sum = checksum ("weft.safetensors");
  weft_test_answer_free (&answer);
}

static void
the_example_has_the_bits_of_weft_train (void **state)
{
#define NANO "--model gpt2-nano --num-layers 2 --seq-length 64 "
  static const char *const jobs[] = {
    NANO "--global-batch-size 4",
    NANO "--global-batch-size 4 --gpus 2",
    NANO "--global-batch-size 8 --gpus 2 --use-distributed-optimizer --overlap-grad-reduce "
         "--overlap-param-gather --bucket-size 30000",
    NANO "--global-batch-size 4 --gpus 2 --use-megatron-fsdp --zero-dp-strategy 3",
    NANO "--global-batch-size 6 --gpus 2 --overlap-grad-reduce --reduction-order fast",
    NANO "--global-batch-size 4 --gpus 2 --pipeline-model-parallel-size 2",
    NANO "--global-batch-size 4 --gpus 2 --precision bf16 --use-distributed-optimizer",
  };

  assert_int_equal (g_chdir (*state), 0);
  for (unsigned i = 0; i < G_N_ELEMENTS (jobs); i++) {
    g_auto (trace) found = { 0 }, wanted = { 0 };
    run_example (jobs[i], &found);
    run_weft (jobs[i], &wanted);
    assert_memory_equal (found.loss, wanted.loss, sizeof found.loss);
    assert_memory_equal (found.norm, wanted.norm, sizeof found.norm);
    assert_string_equal (found.sum, wanted.sum);
  }
  assert_int_equal (g_chdir ("/"), 0);
}

static void
the_example_says_what_the_command_line_says (void **state)
{
  g_autofree char *err = NULL;
  int status;

  (void) state;
  assert_true (g_spawn_command_line_sync (WEFT_EXAMPLE " " DATA " 1 --model gpt2-nano --gpu 2",
                                          NULL, &err, &status, NULL));
  assert_string_equal (err, "train: unknown flag --gpu; did you mean --gpus?\n");
  assert_int_equal (status >> 8, 2);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test_setup_teardown (the_example_has_the_bits_of_weft_train, weft_test_folder_make,
                                   weft_test_folder_remove),
  cmocka_unit_test (the_example_says_what_the_command_line_says),
};

WEFT_TESTS (tests)
