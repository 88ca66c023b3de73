/* pipeline_model_parallel_layout and related knobs: how many layers each pipeline stage gets. */
#include "core/job/stages.h"
#include "tests/made/made.h"
#include "tests/made/questions.h"
#include "tests/runner/runner.h"

#define TINY "hidden_size=16 num_attention_heads=2 vocab_size=64 seq_length=8 topology=cpu "

/* Returns the number of layers of each stage as text, such as "2 0 3", or the error message. The
 * caller frees it. */
static char *
dealt (const char *words)
{
  g_autoptr (GError) error = NULL;
  g_autofree char *all = g_strconcat (TINY, words, NULL);
  struct weft_job job;

  if (!weft_test_job (all, &job, &error))
    return g_strdup (error->message);
  g_autoptr (weft_grid) grid = weft_job_grid (&job, NULL);
  g_autoptr (GString) text = g_string_new (NULL);
  uint32_t next = 0;
  for (uint32_t i = 0; i < grid->n_stages; i++) {
    uint32_t place = grid->place[i];
    struct weft_stage stage =
        weft_stage_at (&job, grid, place / grid->n_chunks, place % grid->n_chunks);
    assert_int_equal (stage.first_layer, next);
    assert_int_equal (stage.embedding, i == 0);
    assert_int_equal (stage.head, i + 1 == grid->n_stages);
    next += stage.n_layers;
    g_string_append_printf (text, "%s%u", i ? " " : "", stage.n_layers);
  }
  assert_int_equal (next, job.model.num_layers);
  return g_string_free (g_steal_pointer (&text), FALSE);
}

static void
expect (const char *words, const char *wanted)
{
  g_autofree char *got = dealt (words);

  if (!strstr (got, wanted))
    fail_msg ("%s: found \"%s\", wanted \"%s\"", words, got, wanted);
}

static void
decoder_first_and_last_pipeline_num_layers_leave_the_rest_to_the_others (void **state)
{
  (void) state;
  expect ("num_layers=8 gpus=4 pipeline_model_parallel_size=4", "2 2 2 2");
  expect ("num_layers=8 gpus=4 pipeline_model_parallel_size=4 decoder_first_pipeline_num_layers=1 "
          "decoder_last_pipeline_num_layers=3",
          "1 2 2 3");
  expect ("num_layers=8 gpus=4 pipeline_model_parallel_size=4 decoder_last_pipeline_num_layers=2",
          "2 2 2 2");
  expect ("num_layers=8 gpus=2 pipeline_model_parallel_size=2 decoder_first_pipeline_num_layers=0",
          "0 8");
  expect ("num_layers=16 gpus=4 pipeline_model_parallel_size=4 global_batch_size=4 "
          "virtual_pipeline_model_parallel_size=2 decoder_first_pipeline_num_layers=2 "
          "decoder_last_pipeline_num_layers=2",
          "1 3 3 1 1 3 3 1");
  expect ("num_layers=8 gpus=4 pipeline_model_parallel_size=4 decoder_first_pipeline_num_layers=1",
          "rule layers_split");
  expect ("num_layers=8 gpus=4 decoder_last_pipeline_num_layers=8", "rule layers_split");
  expect ("num_layers=8 gpus=4 pipeline_model_parallel_size=4 decoder_first_pipeline_num_layers=9",
          "the remaining layers do not divide evenly");
  expect ("num_layers=8 gpus=3 pipeline_model_parallel_size=3 global_batch_size=3 "
          "virtual_pipeline_model_parallel_size=2 decoder_first_pipeline_num_layers=3 "
          "decoder_last_pipeline_num_layers=3",
          "3 layers for 2 chunks per rank");
}

static void
account_for_embedding_and_loss_in_pipeline_split_take_the_place_of_a_layer (void **state)
{
  (void) state;
  expect ("num_layers=6 gpus=4 pipeline_model_parallel_size=4 "
          "account_for_embedding_in_pipeline_split=true account_for_loss_in_pipeline_split=true",
          "1 2 2 1");
  expect ("num_layers=7 gpus=4 pipeline_model_parallel_size=4 "
          "account_for_loss_in_pipeline_split=true",
          "2 2 2 1");
  expect ("num_layers=8 gpus=4 pipeline_model_parallel_size=4 "
          "account_for_loss_in_pipeline_split=true",
          "9 layers (including counted ends) for 4 stages");
}

#define LAYOUT "num_layers=8 gpus=4 pipeline_model_parallel_size=4 pipeline_model_parallel_layout="

static void
pipeline_model_parallel_layout_says_everything (void **state)
{
  (void) state;
  expect (LAYOUT "Et|tt|t*3|tt,L", "1 2 3 2");
  expect (LAYOUT "E|(t|)*2t*6L", "0 1 1 6");
  expect (LAYOUT "E|t*8||L", "stage 2 is empty");
  expect (LAYOUT "Et|(tt|)*2,L", "5 layers");
  expect (LAYOUT "E|(tt|tt|)*1t*4,L", "0 2 2 4");
  expect (LAYOUT "Et*2|((t)*2|)*2t*2L", "2 2 2 2");
  expect (LAYOUT "Et|tt|tt,L", "3 stages");
  expect (LAYOUT "t|tt|tt|tttE,L", "without one E at the start");
  expect (LAYOUT "Et|tt|xx|ttt,L", "has a syntax error at \"xx|ttt,L\"");
  expect (LAYOUT "Et|tt|t*0|ttt,L", "has a syntax error at");
  expect (LAYOUT "Et|tt|(tt|ttt,L", "has a syntax error at");
  expect (LAYOUT "Et|tt|tt|ttm,L", "7 layers and 1 of multi-token prediction");
  expect (LAYOUT "Et|tt|tt|ttt,L decoder_first_pipeline_num_layers=2", "more than one of");
  /* The layout has 8 stages on 4 ranks, so each rank has two chunks. */
  expect (LAYOUT "Et|(t|)*6,tL global_batch_size=4", "1 1 1 1 1 1 1 1");
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (decoder_first_and_last_pipeline_num_layers_leave_the_rest_to_the_others),
  cmocka_unit_test (account_for_embedding_and_loss_in_pipeline_split_take_the_place_of_a_layer),
  cmocka_unit_test (pipeline_model_parallel_layout_says_everything),
};

WEFT_TESTS (tests)
