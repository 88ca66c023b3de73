/* Which tokens a step reads: the order of sequences in an epoch, the part of the file for
 * evaluation, and files that are too short. */
#include "core/base/error.h"
#include "train/sampler.h"
#include "tests/runner/runner.h"
#include <glib/gstdio.h>
#include <stdlib.h>

/* Returns n tokens from a file in which token i is i modulo 251. The file is deleted at once; its
 * memory map stays valid. */
static weft_tokens *
made_tokens (uint64_t n)
{
  g_autoptr (GError) error = NULL;
  g_autofree char *folder = g_dir_make_tmp (NULL, &error);
  g_autofree char *path = g_build_filename (folder, "text", NULL), *text = g_malloc (n);

  for (uint64_t i = 0; i < n; i++)
    text[i] = (char) (i % 251);
  g_file_set_contents (path, text, n, &error);
  weft_tokens *tokens = error ? NULL : weft_tokens_open (path, 256, &error);
  g_unlink (path);
  g_rmdir (folder);
  if (!tokens)
    fail_msg ("%s", error->message);
  return tokens;
}

static struct weft_sampler
made_sampler (const weft_tokens *tokens, uint32_t length, double share, gboolean shuffle)
{
  struct weft_sampler sampler;
  g_autoptr (GError) error = NULL;

  if (!weft_sampler_init (&sampler, tokens, length, share, 7, shuffle, &error))
    fail_msg ("%s", error->message);
  return sampler;
}

/* Returns a sampler without a file: the order of an epoch depends only on the number of sequences
 * and the seed. */
static struct weft_sampler
order_of (uint64_t n, uint64_t seed)
{
  return (struct weft_sampler){ .n_train = n, .seq_length = 1, .seed = seed, .shuffle = TRUE };
}

/* ------------------------------------------------------------------------ orders */

static void
assert_permutation (const struct weft_sampler *sampler, uint64_t epoch)
{
  uint64_t n = sampler->n_train;
  g_autofree char *seen = g_malloc0 (n);

  for (uint64_t i = 0; i < n; i++) {
    uint64_t sequence = weft_sampler_sequence (sampler, epoch * n + i);
    assert_true (sequence < n);
    assert_false (seen[sequence]);
    seen[sequence] = 1;
  }
}

static void
every_epoch_visits_each_sequence_once (void **state)
{
  static const uint64_t sizes[] = { 63, 64, 65, 100, 255, 256, 257, 1023, 1024, 1025, 4097, 70001 };
  static const uint64_t seeds[] = { 0, 1, 1234, G_MAXUINT64 };

  (void) state;
  for (unsigned s = 0; s < G_N_ELEMENTS (seeds); s++)
    for (uint64_t epoch = 0; epoch < 3; epoch++) {
      for (uint64_t n = 1; n <= 40; n++) {
        struct weft_sampler sampler = order_of (n, seeds[s]);
        assert_permutation (&sampler, epoch);
      }
      for (unsigned i = 0; i < G_N_ELEMENTS (sizes); i++) {
        struct weft_sampler sampler = order_of (sizes[i], seeds[s]);
        assert_permutation (&sampler, epoch);
      }
    }
}

/* Returns at how many positions two orders have the same sequence. Two random orders agree at one
 * position on average. */
static unsigned
agreements (const struct weft_sampler *a, uint64_t a_first, const struct weft_sampler *b,
            uint64_t b_first)
{
  unsigned same = 0;

  for (uint64_t i = 0; i < a->n_train; i++)
    same += weft_sampler_sequence (a, a_first + i) == weft_sampler_sequence (b, b_first + i);
  return same;
}

static void
orders_differ_between_epochs_seeds_and_from_the_file (void **state)
{
  struct weft_sampler a = order_of (1000, 1), b = order_of (1000, 2), file = order_of (1000, 1);

  (void) state;
  file.shuffle = FALSE;
  assert_in_range (agreements (&a, 0, &a, 1000), 0, 10);
  assert_in_range (agreements (&a, 0, &b, 0), 0, 10);
  /* The order of seed 1 in epoch 1 differs from the order of seed 2 in epoch 0. */
  assert_in_range (agreements (&a, 1000, &b, 0), 0, 10);
  assert_in_range (agreements (&a, 0, &file, 0), 0, 10);
  assert_int_equal (agreements (&a, 3000, &a, 3000), 1000);
}

/* Five sequences have 120 orders: each of them occurs about 100 times in 12000 epochs. */
static void
every_order_of_few_sequences_is_as_likely (void **state)
{
  struct weft_sampler sampler = order_of (5, 3);
  unsigned times[5 * 5 * 5 * 5 * 5] = { 0 }, orders = 0;

  (void) state;
  for (uint64_t epoch = 0; epoch < 12000; epoch++) {
    unsigned order = 0;
    for (uint64_t i = 0; i < 5; i++)
      order = order * 5 + weft_sampler_sequence (&sampler, epoch * 5 + i);
    times[order]++;
  }
  for (unsigned i = 0; i < G_N_ELEMENTS (times); i++)
    if (times[i]) {
      orders++;
      assert_in_range (times[i], 50, 150);
    }
  assert_int_equal (orders, 120);
}

/* Sequences that are neighbours in the file must have independent positions in the order of an
 * epoch. Then their mean distance in the order is n / 3. */
static void
neighbours_are_drawn_apart (void **state)
{
  struct weft_sampler sampler = order_of (100000, 5);
  double distance = 0;

  (void) state;
  for (uint64_t i = 0; i + 1 < sampler.n_train; i++) {
    int64_t here = weft_sampler_sequence (&sampler, i);
    distance += ABS (here - (int64_t) weft_sampler_sequence (&sampler, i + 1));
  }
  distance /= sampler.n_train - 1;
  assert_in_range ((uint64_t) distance, 33000, 33700);
}

static void
a_position_is_found_at_once_however_far (void **state)
{
  struct weft_sampler sampler = order_of (((uint64_t) 1 << 33) + 5, 9);
  g_autoptr (GHashTable) seen = g_hash_table_new_full (g_int64_hash, g_int64_equal, g_free, NULL);
  uint64_t above = 0;

  (void) state;
  for (uint64_t i = 0; i < 5000; i++) {
    uint64_t sequence = weft_sampler_sequence (&sampler, sampler.n_train * 1000000 + i * 1717171);
    assert_true (sequence < sampler.n_train);
    above += sequence > sampler.n_train / 2;
    assert_true (g_hash_table_add (seen, g_memdup2 (&sequence, sizeof sequence)));
  }
  assert_in_range (above, 2350, 2650);
}

static void
without_shuffling_sequences_keep_the_order_of_the_file (void **state)
{
  struct weft_sampler sampler = order_of (6, 1);

  (void) state;
  sampler.shuffle = FALSE;
  for (uint64_t position = 0; position < 20; position++)
    assert_int_equal (weft_sampler_sequence (&sampler, position), position % 6);
}

/* ------------------------------------------------------------------------ tokens */

static void
assert_sequence (const int32_t *tokens, uint64_t sequence, uint32_t length)
{
  for (uint64_t i = 0; i <= length; i++)
    assert_int_equal (tokens[i], (sequence * length + i) % 251);
}

static void
a_sequence_ends_with_the_first_token_of_the_next (void **state)
{
  g_autoptr (weft_tokens) tokens = made_tokens (101);
  struct weft_sampler sampler = made_sampler (tokens, 10, 0, FALSE);
  g_autoptr (GError) error = NULL;
  int32_t out[10 * 11];

  (void) state;
  assert_int_equal (sampler.n_train, 10);
  assert_int_equal (sampler.n_eval, 0);
  assert_true (weft_sampler_train (&sampler, 0, 10, out, &error));
  for (unsigned i = 0; i < 10; i++)
    assert_sequence (out + 11 * i, i, 10);
}

/* The last sequence needs a target for its last token. So 100 tokens are nine sequences of ten
 * tokens, not ten. */
static void
the_last_target_counts (void **state)
{
  g_autoptr (weft_tokens) tokens = made_tokens (100), least = made_tokens (11);

  (void) state;
  assert_int_equal (made_sampler (tokens, 10, 0, FALSE).n_train, 9);
  assert_int_equal (made_sampler (least, 10, 0, FALSE).n_train, 1);
}

static void
a_batch_runs_over_the_end_of_an_epoch (void **state)
{
  g_autoptr (weft_tokens) tokens = made_tokens (8 * 7 + 1);
  struct weft_sampler sampler = made_sampler (tokens, 8, 0, TRUE);
  g_autoptr (GError) error = NULL;
  int32_t out[10 * 9];

  (void) state;
  assert_int_equal (sampler.n_train, 7);
  assert_true (weft_sampler_train (&sampler, 4, 10, out, &error));
  for (unsigned i = 0; i < 10; i++)
    assert_sequence (out + 9 * i, weft_sampler_sequence (&sampler, 4 + i), 8);
}

static void
batches_of_any_size_read_the_same (void **state)
{
  g_autoptr (weft_tokens) tokens = made_tokens (4 * 23 + 1);
  struct weft_sampler sampler = made_sampler (tokens, 4, 0.1, TRUE);
  int32_t whole[60 * 5], pieces[60 * 5];

  (void) state;
  assert_true (weft_sampler_train (&sampler, 0, 60, whole, NULL));
  for (uint32_t at = 0; at < 60; at += 12)
    assert_true (weft_sampler_train (&sampler, at, 12, pieces + 5 * at, NULL));
  assert_memory_equal (whole, pieces, sizeof whole);
}

static void
evaluation_takes_the_last_sequences_in_order_and_again (void **state)
{
  g_autoptr (weft_tokens) tokens = made_tokens (10 * 20 + 1);
  struct weft_sampler sampler = made_sampler (tokens, 10, 0.15, TRUE);
  int32_t out[8 * 11];

  (void) state;
  assert_int_equal (sampler.n_train, 17);
  assert_int_equal (sampler.n_eval, 3);
  assert_true (weft_sampler_eval (&sampler, 1, 8, out, NULL));
  for (unsigned i = 0; i < 8; i++)
    assert_sequence (out + 11 * i, 17 + (1 + i) % 3, 10);
  for (uint64_t position = 0; position < 100; position++)
    assert_true (weft_sampler_sequence (&sampler, position) < 17);
}

static void
the_share_is_rounded_and_at_least_one (void **state)
{
  static const struct {
    double share;
    uint64_t n_eval;
  } cases[] = { { 0, 0 },     { 1e-9, 1 }, { 0.01, 1 }, { 0.05, 2 },
                { 0.074, 3 }, { 0.1, 4 },  { 0.5, 20 }, { 0.98, 39 } };
  g_autoptr (weft_tokens) tokens = made_tokens (10 * 40 + 1);

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (cases); i++) {
    struct weft_sampler sampler = made_sampler (tokens, 10, cases[i].share, FALSE);
    assert_int_equal (sampler.n_eval, cases[i].n_eval);
    assert_int_equal (sampler.n_train, 40 - cases[i].n_eval);
  }
}

/* ----------------------------------------------------------------------- refusals */

/* Asserts that a sampler is refused, and that the error after the path of the temporary file is
 * `message`. */
static void
assert_refused (uint64_t n_tokens, uint32_t length, double share, const char *message)
{
  g_autoptr (weft_tokens) tokens = made_tokens (n_tokens);
  g_autoptr (GError) error = NULL;
  g_autofree char *wanted = g_strconcat (weft_tokens_path (tokens), message, NULL);
  struct weft_sampler sampler;

  assert_false (weft_sampler_init (&sampler, tokens, length, share, 1, TRUE, &error));
  assert_string_equal (error->message, wanted);
  assert_int_equal (weft_error_exit_status (error), 2);
}

static void
a_file_that_is_too_short_is_refused (void **state)
{
  (void) state;
  assert_refused (90, 128, 0, " has 90 tokens; a sequence of 128 tokens needs 129 tokens");
  assert_refused (128, 128, 0, " has 128 tokens; a sequence of 128 tokens needs 129 tokens");
  assert_refused (1, G_MAXUINT32, 0.1,
                  " has 1 tokens; a sequence of 4294967295 tokens needs 4294967296 tokens");
  assert_refused (
      129, 128, 0.1,
      ": found 1 sequence of 128 tokens, all for evaluation (a share of 0.1); wanted one for "
      "training");
  assert_refused (
      40, 10, 0.9,
      ": found 3 sequences of 10 tokens, all for evaluation (a share of 0.9); wanted one for "
      "training");
}

static void
a_share_that_is_none_is_refused (void **state)
{
  static const double shares[] = { -0.1, 1, 2, G_MAXDOUBLE, -G_MAXDOUBLE };
  g_autoptr (weft_tokens) tokens = made_tokens (100);
  struct weft_sampler sampler;

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (shares); i++) {
    g_autoptr (GError) error = NULL;
    assert_false (weft_sampler_init (&sampler, tokens, 4, shares[i], 1, TRUE, &error));
    assert_true (g_str_has_suffix (error->message, ", wanted from 0 to below 1"));
  }
  assert_false (weft_sampler_init (&sampler, tokens, 4, strtod ("nan", NULL), 1, TRUE, NULL));
}

static void
a_token_outside_the_vocabulary_stops_the_batch (void **state)
{
  g_autofree char *folder = g_dir_make_tmp (NULL, NULL);
  g_autofree char *path = g_build_filename (folder, "bytes.bin", NULL);
  const uint16_t ids[] = { 0, 1, 2, 3, 4, 500, 6, 7, 8 };
  g_autoptr (GError) error = NULL;
  int32_t out[2 * 3];

  (void) state;
  assert_true (g_file_set_contents (path, (const char *) ids, sizeof ids, NULL));
  g_autoptr (weft_tokens) wide = weft_tokens_open (path, 500, NULL);
  g_unlink (path);
  g_rmdir (folder);
  struct weft_sampler sampler = made_sampler (wide, 2, 0, FALSE);
  assert_true (weft_sampler_train (&sampler, 0, 2, out, &error));
  assert_false (weft_sampler_train (&sampler, 1, 2, out, &error));
  assert_true (g_str_has_suffix (error->message,
                                 "bytes.bin: token 5 is 500, wanted below 500 (vocab_size)"));
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (every_epoch_visits_each_sequence_once),
  cmocka_unit_test (orders_differ_between_epochs_seeds_and_from_the_file),
  cmocka_unit_test (every_order_of_few_sequences_is_as_likely),
  cmocka_unit_test (neighbours_are_drawn_apart),
  cmocka_unit_test (a_position_is_found_at_once_however_far),
  cmocka_unit_test (without_shuffling_sequences_keep_the_order_of_the_file),
  cmocka_unit_test (a_sequence_ends_with_the_first_token_of_the_next),
  cmocka_unit_test (the_last_target_counts),
  cmocka_unit_test (a_batch_runs_over_the_end_of_an_epoch),
  cmocka_unit_test (batches_of_any_size_read_the_same),
  cmocka_unit_test (evaluation_takes_the_last_sequences_in_order_and_again),
  cmocka_unit_test (the_share_is_rounded_and_at_least_one),
  cmocka_unit_test (a_file_that_is_too_short_is_refused),
  cmocka_unit_test (a_share_that_is_none_is_refused),
  cmocka_unit_test (a_token_outside_the_vocabulary_stops_the_batch),
};

WEFT_TESTS (tests)
