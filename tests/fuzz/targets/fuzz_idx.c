/* A Megatron index (.idx). The first input byte is the size of the .bin file, which contains the
 * bytes 1, 2, 3 ...; the other input bytes are the index. Every token that is read must come from
 * inside of the .bin file. */
#include "tests/fuzz/fuzz.h"
#include "train/tokens.h"
#include <glib/gstdio.h>
#include <string.h>

/* The fuzzer reads only the last tokens of the stream, at most this many. An index may repeat
 * sequences and so describe a stream that is much longer than the file. */
#define MOST_READ 65536

static void
save (const char *path, const void *data, size_t size)
{
  g_assert_true (g_file_set_contents (path, data, size, NULL));
}

static weft_tokens *
open_set (const uint8_t *data, size_t size, GError **error)
{
  g_autofree char *folder = g_dir_make_tmp ("weft-fuzz-XXXXXX", NULL);
  g_autofree char *index = g_build_filename (folder, "set.idx", NULL);
  g_autofree char *bin = g_build_filename (folder, "set.bin", NULL);
  uint8_t bytes[G_MAXUINT8];

  for (unsigned i = 0; i < G_MAXUINT8; i++)
    bytes[i] = i + 1;
  save (index, data + 1, size - 1);
  save (bin, bytes, data[0]);
  weft_tokens *tokens = weft_tokens_open (index, G_MAXINT64, error);
  g_unlink (bin);
  g_unlink (index);
  g_rmdir (folder);
  return tokens;
}

/* Checks a token. The .bin file contains ascending bytes, so the bytes of a token must ascend by
 * one. Bytes behind the end of the file are 0 in the memory map, so they would be noticed. */
static void
check_id (uint32_t id, unsigned bin_bytes)
{
  unsigned low = id & 0xff, byte = low;

  g_assert_cmpuint (low, >, 0);
  g_assert_cmpuint (low, <=, bin_bytes);
  for (id >>= 8; id; id >>= 8)
    g_assert_cmpuint (id & 0xff, ==, ++byte);
  g_assert_cmpuint (byte, <=, bin_bytes);
}

static void
check_reading (const weft_tokens *tokens, unsigned bin_bytes)
{
  uint64_t count = weft_tokens_count (tokens), some = MIN (count, MOST_READ);
  g_autofree int32_t *whole = g_new (int32_t, some);
  g_autoptr (GError) error = NULL;

  if (!weft_tokens_read (tokens, count - some, some, whole, &error))
    return;
  for (uint64_t i = 0; i < some; i++) {
    int32_t one;
    g_assert_true (weft_tokens_read (tokens, count - some + i, 1, &one, NULL));
    g_assert_cmpint (one, ==, whole[i]);
    check_id (one, bin_bytes);
  }
}

int
LLVMFuzzerTestOneInput (const uint8_t *data, size_t size)
{
  g_autoptr (GError) error = NULL;

  if (size == 0)
    return 0;
  g_autoptr (weft_tokens) tokens = open_set (data, size, &error);
  g_assert_true ((tokens == NULL) == (error != NULL));
  if (!tokens)
    return 0;
  check_reading (tokens, data[0]);
  g_assert_cmpuint (weft_tokens_fingerprint (tokens), !=, 0);
  return 0;
}
