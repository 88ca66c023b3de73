/* Token files. The first input byte selects the name of the file, the others are its contents. An
 * accepted file must have as many tokens as its bytes allow, and reading all tokens at once or one
 * by one must return the same ids. */
#include "tests/fuzz/fuzz.h"
#include "train/tokens.h"
#include <glib/gstdio.h>

static weft_tokens *
open_bytes (const char *name, const uint8_t *data, size_t size, GError **error)
{
  g_autofree char *folder = g_dir_make_tmp ("weft-fuzz-XXXXXX", NULL);
  g_autofree char *path = g_build_filename (folder, name, NULL);

  g_assert_true (g_file_set_contents (path, (const char *) data, size, NULL));
  weft_tokens *tokens = weft_tokens_open (path, G_MAXUINT16, error);
  g_unlink (path);
  g_rmdir (folder);
  return tokens;
}

/* Asserts that every byte of the file belongs to a token, except the bytes of a header. Only some
 * formats have a header. */
static void
check_count (const weft_tokens *tokens, size_t size)
{
  uint64_t count = weft_tokens_count (tokens);

  if (g_str_equal (weft_tokens_format (tokens), "text"))
    g_assert_cmpuint (count, ==, size);
  else if (g_str_equal (weft_tokens_format (tokens), "nanoGPT"))
    g_assert_cmpuint (2 * count, ==, size);
  else
    g_assert_true (1024 + 2 * count == size || 1024 + 4 * count == size);
}

/* Reads tokens one by one into `out` up to the first failure; returns how many were read. */
static uint64_t
count_good (const weft_tokens *tokens, int32_t *out)
{
  uint64_t i = 0;

  while (i < weft_tokens_count (tokens) && weft_tokens_read (tokens, i, 1, &out[i], NULL))
    i++;
  return i;
}

static void
check_reading (const weft_tokens *tokens)
{
  uint64_t count = weft_tokens_count (tokens);
  g_autofree int32_t *one_by_one = g_new (int32_t, count), *whole = g_new (int32_t, count);
  g_autoptr (GError) error = NULL;
  uint64_t good = count_good (tokens, one_by_one);

  g_assert_cmpint (weft_tokens_read (tokens, 0, count, whole, &error), ==, good == count);
  g_assert_true ((good < count) == (error != NULL));
  for (uint64_t i = 0; i < good; i++)
    g_assert_cmpint (whole[i], ==, one_by_one[i]);
}

int
LLVMFuzzerTestOneInput (const uint8_t *data, size_t size)
{
  static const char *const names[] = { "data.bin", "data.txt", "data.idx", "data" };
  g_autoptr (GError) error = NULL;

  if (size == 0)
    return 0;
  const char *name = names[data[0] % G_N_ELEMENTS (names)];
  g_autoptr (weft_tokens) tokens = open_bytes (name, data + 1, size - 1, &error);
  g_assert_true ((tokens == NULL) == (error != NULL));
  if (!tokens)
    return 0;
  check_count (tokens, size - 1);
  check_reading (tokens);
  g_assert_cmpuint (weft_tokens_fingerprint (tokens), !=, 0);
  return 0;
}
