/* Flips one bit of a checkpoint at a time. A run that resumes from the damaged checkpoint is
 * refused with a message, or it continues with exactly the numbers of the undamaged checkpoint.
 * Arguments: SEED [FLIPS]; if FLIPS is the number of bytes, each byte is damaged once. */
#include "tests/attack/tiny.h"
#include "tests/runner/folder.h"
#include "tests/runner/runner.h"
#include <string.h>

#define FLIPS 150
#define MOST_SECONDS 60
#define RESUME TINY " --load ck --steps 4"

struct victim {
  char *path, *bytes;
  gsize size;
};

static void
victim_clear (void *data)
{
  struct victim *v = data;

  g_free (v->path);
  g_free (v->bytes);
}

/* Reads every file of the checkpoint. Adds the sizes of the files to *total. */
static GArray *
find_victims (const char *dir, gsize *total)
{
  GArray *victims = g_array_new (FALSE, FALSE, sizeof (struct victim));
  g_autofree char *folder = attack_path (dir, "ck");
  g_autoptr (GPtrArray) files = tiny_files (folder);

  g_array_set_clear_func (victims, victim_clear);
  for (guint i = 0; i < files->len; i++) {
    struct victim v = { .path = g_build_filename (folder, files->pdata[i], NULL) };
    assert_true (g_file_get_contents (v.path, &v.bytes, &v.size, NULL));
    *total += v.size;
    g_array_append_val (victims, v);
  }
  return victims;
}

static void
put (const struct victim *v)
{
  assert_true (g_file_set_contents_full (v->path, v->bytes, (gssize) v->size,
                                         G_FILE_SET_CONTENTS_NONE, 0644, NULL));
}

/* Returns the indices of all bytes of the checkpoint (its files one after the other) in random
 * order. The caller frees the array. */
static uint32_t *
draw_order (GRand *rand, gsize total)
{
  uint32_t *order = g_new (uint32_t, total);

  for (gsize i = 0; i < total; i++)
    order[i] = (uint32_t) i;
  for (gsize i = total; i > 1; i--) {
    gsize j = (gsize) g_rand_int_range (rand, 0, (gint32) i);
    uint32_t last = order[i - 1];
    order[i - 1] = order[j];
    order[j] = last;
  }
  return order;
}

static struct victim *
victim_of (GArray *victims, gsize *byte)
{
  guint i = 0;

  for (; *byte >= g_array_index (victims, struct victim, i).size; i++)
    *byte -= g_array_index (victims, struct victim, i).size;
  return &g_array_index (victims, struct victim, i);
}

/* Flips one bit of the checkpoint, resumes a run from it, and restores the bit. Returns whether the
 * run was wrong: its numbers differ from `wanted`, it ended with a fault, or it was too slow. Adds
 * 1 to *refused if the run refused the checkpoint. */
static gboolean
flip (const char *dir, GArray *victims, gsize byte, int bit, const char *wanted, uint32_t *refused)
{
  struct victim *v = victim_of (victims, &byte);

  v->bytes[byte] ^= (char) (1 << bit);
  put (v);
  struct attack_run run = attack_words (dir, MOST_SECONDS, RESUME);
  g_autofree char *found = tiny_numbers (run.out);
  gboolean silent = run.end == ATTACK_DONE && !g_str_equal (found, wanted);
  gboolean wrong = silent || run.end == ATTACK_FAULT || run.end == ATTACK_SLOW;
  g_autofree char *line = g_strdup_printf ("bit %d of byte %zu of %s", bit, byte, v->path);
  if (silent)
    run.fault = "accepted, with other numbers";
  if (wrong)
    attack_print (&run, line);
  *refused += run.end == ATTACK_REFUSED;
  v->bytes[byte] ^= (char) (1 << bit);
  put (v);
  attack_run_clear (&run);
  return wrong;
}

static void
a_damaged_checkpoint_is_refused_or_harmless (void **state)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (attack_drawn.seed);
  const char *dir = *state;
  uint32_t wrong = 0, refused = 0, n = attack_count (FLIPS);
  gsize total = 0;

  attack_folder_fill (dir);
  struct attack_run saved = attack_words (dir, MOST_SECONDS, TINY " --save ck --steps 2");
  struct attack_run resumed = attack_words (dir, MOST_SECONDS, RESUME);
  assert_int_equal (saved.end, ATTACK_DONE);
  assert_int_equal (resumed.end, ATTACK_DONE);
  g_autofree char *wanted = tiny_numbers (resumed.out);
  g_autoptr (GArray) victims = find_victims (dir, &total);
  g_autofree uint32_t *order = draw_order (rand, total);
  for (uint32_t i = 0; i < n; i++)
    wrong += flip (dir, victims, order[i % total], g_rand_int_range (rand, 0, 8), wanted, &refused);
  /* Every flipped bit was flipped back, so the run must resume from the checkpoint. */
  struct attack_run after = attack_words (dir, MOST_SECONDS, RESUME);
  assert_int_equal (after.end, ATTACK_DONE);
  print_message ("seed %u, %u flips in %zu bytes: %u refused, %u harmless, %u wrong\n",
                 attack_drawn.seed, n, total, refused, n - refused - wrong, wrong);
  assert_int_equal (wrong, 0);
  assert_true (refused > n / 2);
  attack_run_clear (&saved);
  attack_run_clear (&resumed);
  attack_run_clear (&after);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test_setup_teardown (a_damaged_checkpoint_is_refused_or_harmless,
                                   weft_test_folder_make, weft_test_folder_remove),
};

WEFT_TESTS (tests, .begin = attack_begin, .seconds = 7)
