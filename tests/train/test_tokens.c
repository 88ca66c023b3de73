/* Token files: every format under any file name, and every kind of malformed file. */
#include "core/base/error.h"
#include "train/tokens.h"
#include "tests/runner/runner.h"
#include <errno.h>
#include <glib/gstdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A temporary folder in which a test runs, so that messages contain no path of the machine. */
struct place {
  char *before, *folder;
};

static int
enter_folder (void **state)
{
  struct place *place = g_new0 (struct place, 1);

  place->before = g_get_current_dir ();
  place->folder = g_dir_make_tmp ("weft-tokens-XXXXXX", NULL);
  *state = place;
  return place->folder ? g_chdir (place->folder) : -1;
}

static int
leave_folder (void **state)
{
  struct place *place = *state;
  g_autoptr (GDir) dir = g_dir_open (".", 0, NULL);
  const char *name;

  while ((name = g_dir_read_name (dir)))
    g_remove (name);
  int failed = g_chdir (place->before) || g_rmdir (place->folder);
  g_free (place->before);
  g_free (place->folder);
  g_free (place);
  return failed;
}

static void
save (const char *path, const void *data, gsize size)
{
  g_autoptr (GError) error = NULL;

  if (!g_file_set_contents (path, data, size, &error))
    fail_msg ("%s", error->message);
}

static weft_tokens *
opened (const char *path, int64_t vocab_size)
{
  g_autoptr (GError) error = NULL;
  weft_tokens *tokens = weft_tokens_open (path, vocab_size, &error);

  if (!tokens)
    fail_msg ("%s", error->message);
  assert_null (error);
  assert_string_equal (weft_tokens_path (tokens), path);
  return tokens;
}

static void
assert_refused (const char *path, const char *message)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_tokens) tokens = weft_tokens_open (path, 50257, &error);

  assert_null (tokens);
  assert_non_null (error);
  assert_string_equal (error->message, message);
  assert_int_equal (weft_error_exit_status (error), 2);
}

static void
assert_read_refused (const weft_tokens *tokens, uint64_t first, uint64_t n, const char *message)
{
  g_autoptr (GError) error = NULL;
  int32_t out[64];

  assert_false (weft_tokens_read (tokens, first, n, out, &error));
  assert_string_equal (error->message, message);
  assert_int_equal (weft_error_exit_status (error), 2);
}

/* Reads every window of the token stream and compares it with the wanted tokens, so that every
 * boundary between runs of the file is crossed. */
static void
assert_stream (const weft_tokens *tokens, const int32_t *wanted, uint64_t n)
{
  assert_int_equal (weft_tokens_count (tokens), n);
  for (uint64_t first = 0; first <= n; first++)
    for (uint64_t some = 0; some <= n - first; some++) {
      g_autofree int32_t *out = g_new (int32_t, some + 1);
      out[some] = -77;
      assert_true (weft_tokens_read (tokens, first, some, out, NULL));
      assert_int_equal (out[some], -77);
      for (uint64_t i = 0; i < some; i++)
        assert_int_equal (out[i], wanted[first + i]);
    }
}

/* -------------------------------------------------------------------------- text */

static void
text_is_read_as_bytes (void **state)
{
  static const int32_t wanted[] = { 'o', 'k', '\n', 0, 0xc3, 0xa9, 0xff };
  g_autoptr (weft_tokens) tokens = NULL;

  (void) state;
  save ("notes.txt", "ok\n\0\xc3\xa9\xff", 7);
  tokens = opened ("notes.txt", 256);
  assert_string_equal (weft_tokens_format (tokens), "text");
  assert_stream (tokens, wanted, 7);
}

static void
text_wants_a_vocabulary_of_bytes (void **state)
{
  g_autoptr (GError) error = NULL;

  (void) state;
  save ("ascii", "abc", 3);
  assert_null (weft_tokens_open ("ascii", 255, &error));
  assert_string_equal (
      error->message,
      "ascii: found text, whose bytes are tokens, and vocab_size 255, wanted at least 256");
}

static void
an_empty_file_is_refused (void **state)
{
  (void) state;
  save ("empty", "", 0);
  save ("empty.bin", "", 0);
  save ("empty.idx", "", 0);
  assert_refused ("empty", "empty: found no tokens (text), wanted some");
  assert_refused ("empty.bin", "empty.bin: found no tokens (nanoGPT), wanted some");
  assert_refused ("empty.idx", "empty.idx: found no MMIDIDX at its start, wanted a Megatron index");
}

/* ----------------------------------------------------------------------- nanoGPT */

static void
a_bin_file_without_a_header_is_nanogpt (void **state)
{
  static const uint16_t ids[] = { 0, 50256, 1, 65535, 258 };
  static const int32_t wanted[] = { 0, 50256, 1, 65535, 258 };
  g_autoptr (weft_tokens) tokens = NULL;

  (void) state;
  save ("train.bin", ids, sizeof ids);
  tokens = opened ("train.bin", 65536);
  assert_string_equal (weft_tokens_format (tokens), "nanoGPT");
  assert_stream (tokens, wanted, 5);
}

static void
an_odd_bin_file_is_refused (void **state)
{
  (void) state;
  save ("odd.bin", "abcde", 5);
  assert_refused ("odd.bin", "odd.bin: found 5 bytes, wanted an even number: a .bin file without a "
                             "header has tokens of two");
}

/* A sparse file of 3 * 2^30 tokens, whose offsets exceed 32 bits. Only the pages that are read are
 * loaded. */
static void
a_file_of_gigabytes_is_read_at_its_end (void **state)
{
  const uint64_t count = (uint64_t) 3 << 30;
  const uint16_t last = 50256;
  g_autoptr (GError) error = NULL;
  int32_t out[2];

  (void) state;
  FILE *file = fopen ("long.bin", "wb");
  assert_non_null (file);
  assert_int_equal (fseeko (file, 2 * (count - 1), SEEK_SET), 0);
  assert_int_equal (fwrite (&last, sizeof last, 1, file), 1);
  assert_int_equal (fclose (file), 0);
  g_autoptr (weft_tokens) tokens = opened ("long.bin", 50257);
  assert_true (weft_tokens_count (tokens) == count);
  assert_true (weft_tokens_read (tokens, count - 2, 2, out, &error));
  assert_int_equal (out[0], 0);
  assert_int_equal (out[1], 50256);
  g_remove ("long.bin");
}

/* ------------------------------------------------------------------------- llm.c */

/* Writes a file with a header of 1024 bytes and `size` bytes of ids. */
static void
save_llmc (const char *path, const uint32_t header[3], const void *ids, gsize size)
{
  g_autofree char *file = g_malloc0 (1024 + size);

  memcpy (file, header, 3 * sizeof *header);
  memcpy (file + 1024, ids, size);
  save (path, file, 1024 + size);
}

static void
llmc_files_are_known_by_their_magic (void **state)
{
  static const char *const names[] = { "shard.bin", "shard", "shard.txt" };
  static const uint16_t short_ids[] = { 50256, 7, 65535 };
  static const uint32_t long_ids[] = { 128000, 7, 65536 };
  static const int32_t short_wanted[] = { 50256, 7, 65535 }, long_wanted[] = { 128000, 7, 65536 };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (names); i++) {
    save_llmc (names[i], (const uint32_t[]){ 20240520, 1, 3 }, short_ids, sizeof short_ids);
    g_autoptr (weft_tokens) gpt2 = opened (names[i], 65536);
    assert_string_equal (weft_tokens_format (gpt2), "llm.c");
    assert_stream (gpt2, short_wanted, 3);
    save_llmc (names[i], (const uint32_t[]){ 20240801, 7, 3 }, long_ids, sizeof long_ids);
    g_autoptr (weft_tokens) llama3 = opened (names[i], 128256);
    assert_string_equal (weft_tokens_format (llama3), "llm.c");
    assert_stream (llama3, long_wanted, 3);
  }
}

static void
a_wrong_llmc_header_is_refused (void **state)
{
  static const struct {
    uint32_t header[3];
    gsize size;
    const char *message;
  } cases[] = {
    { { 20240520, 7, 2 }, 4, "x.bin: found version 7 of llm.c tokens 20240520, wanted 1" },
    { { 20240801, 1, 1 }, 4, "x.bin: found version 1 of llm.c tokens 20240801, wanted 7" },
    { { 20240520, 1, 3 },
      4,
      "x.bin: found 1028 bytes, wanted 1030 bytes for the 3 tokens of its llm.c header" },
    { { 20240520, 1, 1 },
      4,
      "x.bin: found 1028 bytes, wanted 1026 bytes for the 1 tokens of its llm.c header" },
    { { 20240520, 1, 2 },
      5,
      "x.bin: found 1029 bytes, wanted 1028 bytes for the 2 tokens of its llm.c header" },
    { { 20240801, 7, G_MAXUINT32 },
      4,
      "x.bin: found 1028 bytes, wanted 17179870204 bytes for the 4294967295 tokens of its llm.c "
      "header" },
    { { 20240520, 1, 0 }, 0, "x.bin: found no tokens (llm.c), wanted some" },
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (cases); i++) {
    save_llmc ("x.bin", cases[i].header, "\1\0\1\0\1\0", cases[i].size);
    assert_refused ("x.bin", cases[i].message);
  }
}

static void
a_truncated_llmc_header_is_refused (void **state)
{
  static const uint32_t magic = 20240520;
  char header[1023] = { 0 };

  (void) state;
  memcpy (header, &magic, sizeof magic);
  for (unsigned size = 4; size < 1024; size += 1019) {
    g_autofree char *message = g_strdup_printf (
        "x.bin: found %u bytes that begin as llm.c tokens do, wanted a header of 1024 bytes", size);
    save ("x.bin", header, size);
    assert_refused ("x.bin", message);
  }
}

/* ---------------------------------------------------------------------- Megatron */

/* The fields of a Megatron index file (FILE.idx) that a test writes, valid or malformed. */
struct made_index {
  uint64_t version;
  uint8_t type;
  uint64_t sequences, documents;
  int32_t length[4];
  int64_t pointer[4];
};

static GByteArray *
index_bytes (const struct made_index *index)
{
  GByteArray *bytes = g_byte_array_new ();
  unsigned n = MIN (index->sequences, 4), d = MIN (index->documents, 4);
  const int64_t documents[4] = { 0, n, n, n };

  g_byte_array_append (bytes, (const uint8_t *) "MMIDIDX\0", 9);
  g_byte_array_append (bytes, (const uint8_t *) &index->version, 8);
  g_byte_array_append (bytes, &index->type, 1);
  g_byte_array_append (bytes, (const uint8_t *) &index->sequences, 8);
  g_byte_array_append (bytes, (const uint8_t *) &index->documents, 8);
  g_byte_array_append (bytes, (const uint8_t *) index->length, n * 4);
  g_byte_array_append (bytes, (const uint8_t *) index->pointer, n * 8);
  g_byte_array_append (bytes, (const uint8_t *) documents, d * 8);
  return bytes;
}

static void
save_index (const char *path, struct made_index index)
{
  g_autoptr (GByteArray) bytes = index_bytes (&index);

  save (path, bytes->data, bytes->len);
}

static const uint16_t six_ids[] = { 10, 11, 12, 13, 14, 15 };

static void
a_megatron_set_opens_by_any_of_its_names (void **state)
{
  static const char *const names[] = { "corpus", "corpus.idx", "corpus.bin" };
  static const int32_t wanted[] = { 10, 11, 12, 13, 14, 15 };

  (void) state;
  save ("corpus.bin", six_ids, sizeof six_ids);
  save_index ("corpus.idx", (struct made_index){ 1, 8, 2, 3, { 2, 4 }, { 0, 4 } });
  for (unsigned i = 0; i < G_N_ELEMENTS (names); i++) {
    g_autoptr (weft_tokens) tokens = opened (names[i], 16);
    assert_string_equal (weft_tokens_format (tokens), "Megatron");
    assert_stream (tokens, wanted, 6);
  }
}

static void
a_folder_of_the_same_name_does_not_hide_a_set (void **state)
{
  (void) state;
  save ("both.bin", six_ids, sizeof six_ids);
  save_index ("both.idx", (struct made_index){ 1, 8, 1, 2, { 6 }, { 0 } });
  assert_int_equal (g_mkdir ("both", 0700), 0);
  g_autoptr (weft_tokens) tokens = opened ("both", 16);
  assert_int_equal (weft_tokens_count (tokens), 6);
}

static void
all_types_of_tokens_are_read (void **state)
{
  static const uint8_t u8[] = { 1, 255, 3 };
  static const int16_t i16[] = { 1, 32767, 3 };
  static const int32_t i32[] = { 1, 128000, 3 };
  static const int64_t i64[] = { 1, G_MAXINT32, 3 };
  static const uint16_t u16[] = { 1, 65535, 3 };
  static const struct {
    uint8_t code;
    const void *ids;
    gsize width;
    int32_t second;
  } types[] = {
    { 1, u8, 1, 255 },         { 3, i16, 2, 32767 }, { 4, i32, 4, 128000 },
    { 5, i64, 8, G_MAXINT32 }, { 8, u16, 2, 65535 },
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (types); i++) {
    gsize width = types[i].width;
    save ("typed.bin", types[i].ids, 3 * width);
    save_index ("typed.idx", (struct made_index){ 1, types[i].code, 2, 3, { 1, 2 }, { 0, width } });
    g_autoptr (weft_tokens) tokens = opened ("typed", (int64_t) 1 << 40);
    assert_stream (tokens, (const int32_t[]){ 1, types[i].second, 3 }, 3);
  }
}

/* The token stream follows the sequences of a Megatron index, which may be in reverse order,
 * repeated, empty or at odd offsets. */
static void
the_order_of_the_index_is_the_order_of_the_stream (void **state)
{
  static const struct {
    struct made_index index;
    int32_t wanted[12];
    uint64_t n;
  } cases[] = {
    { { 1, 8, 3, 1, { 2, 2, 2 }, { 8, 4, 0 } }, { 14, 15, 12, 13, 10, 11 }, 6 },
    { { 1, 8, 2, 1, { 3, 3 }, { 0, 0 } }, { 10, 11, 12, 10, 11, 12 }, 6 },
    { { 1, 8, 4, 1, { 0, 2, 0, 1 }, { 12, 2, 0, 6 } }, { 11, 12, 13 }, 3 },
    { { 1, 8, 3, 1, { 1, 1, 1 }, { 0, 4, 6 } }, { 10, 12, 13 }, 3 },
    { { 1, 8, 2, 1, { 1, 2 }, { 1, 0 } }, { 11 << 8, 10, 11 }, 3 },
    { { 1, 8, 1, 0, { 6 }, { 0 } }, { 10, 11, 12, 13, 14, 15 }, 6 },
  };

  (void) state;
  save ("order.bin", six_ids, sizeof six_ids);
  for (unsigned i = 0; i < G_N_ELEMENTS (cases); i++) {
    save_index ("order.idx", cases[i].index);
    g_autoptr (weft_tokens) tokens = opened ("order", 65536);
    assert_stream (tokens, cases[i].wanted, cases[i].n);
  }
}

static void
a_wrong_index_is_refused (void **state)
{
  static const struct {
    struct made_index index;
    const char *message;
  } cases[] = {
    { { 2, 8, 1, 1, { 1 } }, "m.idx: found version 2 of a Megatron index, wanted 1" },
    { { 1, 2, 1, 1, { 1 } },
      "m.idx: found tokens of type 2 (int8), wanted uint8, int16, int32, "
      "int64 or uint16" },
    { { 1, 6, 1, 1, { 1 } },
      "m.idx: found tokens of type 6 (float64), wanted uint8, int16, int32, "
      "int64 or uint16" },
    { { 1, 7, 1, 1, { 1 } },
      "m.idx: found tokens of type 7 (float32), wanted uint8, int16, int32, "
      "int64 or uint16" },
    { { 1, 0, 1, 1, { 1 } },
      "m.idx: found tokens of type 0 (unknown), wanted uint8, int16, int32, "
      "int64 or uint16" },
    { { 1, 255, 1, 1, { 1 } },
      "m.idx: found tokens of type 255 (unknown), wanted uint8, int16, "
      "int32, int64 or uint16" },
    { { 1, 8, 5, 1 }, "m.idx: found 90 bytes, wanted 34 + 12 x 5 sequences + 8 x 1 documents" },
    { { 1, 8, 1, 5 }, "m.idx: found 78 bytes, wanted 34 + 12 x 1 sequences + 8 x 5 documents" },
    { { 1, 8, 0x1555555555555556u, 0 },
      "m.idx: found 82 bytes, wanted 34 + 12 x 1537228672809129302 sequences + 8 x 0 documents" },
    { { 1, 8, 0, 0x2000000000000001u },
      "m.idx: found 66 bytes, wanted 34 + 12 x 0 sequences + 8 x 2305843009213693953 documents" },
    { { 1, 8, G_MAXUINT64, G_MAXUINT64 },
      "m.idx: found 114 bytes, wanted 34 + 12 x 18446744073709551615 sequences + 8 x "
      "18446744073709551615 documents" },
    { { 1, 8, 1, 1, { -1 }, { 0 } },
      "m.idx: sequence 0 has -1 tokens from byte 0, wanted them "
      "inside the 12 bytes of the .bin file" },
    { { 1, 8, 2, 1, { 1, 7 }, { 0, 0 } },
      "m.idx: sequence 1 has 7 tokens from byte 0, wanted them "
      "inside the 12 bytes of the .bin file" },
    { { 1, 8, 1, 1, { 1 }, { 11 } },
      "m.idx: sequence 0 has 1 tokens from byte 11, wanted them "
      "inside the 12 bytes of the .bin file" },
    { { 1, 8, 1, 1, { 0 }, { 13 } },
      "m.idx: sequence 0 has 0 tokens from byte 13, wanted them "
      "inside the 12 bytes of the .bin file" },
    { { 1, 8, 1, 1, { 1 }, { -2 } },
      "m.idx: sequence 0 has 1 tokens from byte -2, wanted them "
      "inside the 12 bytes of the .bin file" },
    { { 1, 5, 1, 1, { G_MAXINT32 }, { G_MAXINT64 } },
      "m.idx: sequence 0 has 2147483647 tokens from byte 9223372036854775807, wanted them inside "
      "the 12 bytes of the .bin file" },
    { { 1, 8, 1, 1, { 0 }, { 12 } }, "m: found no tokens (Megatron), wanted some" },
    { { 1, 8, 0, 1 }, "m: found no tokens (Megatron), wanted some" },
  };

  (void) state;
  save ("m.bin", six_ids, sizeof six_ids);
  for (unsigned i = 0; i < G_N_ELEMENTS (cases); i++) {
    save_index ("m.idx", cases[i].index);
    assert_refused ("m", cases[i].message);
  }
}

static void
an_index_cut_anywhere_is_refused (void **state)
{
  const struct made_index whole = { 1, 8, 2, 3, { 2, 4 }, { 0, 4 } };
  g_autoptr (GByteArray) bytes = index_bytes (&whole);

  (void) state;
  save ("cut.bin", six_ids, sizeof six_ids);
  for (unsigned size = 0; size < bytes->len; size++) {
    g_autoptr (GError) error = NULL;
    save ("cut.idx", bytes->data, size);
    assert_null (weft_tokens_open ("cut.idx", 256, &error));
    assert_true (g_str_has_prefix (error->message, "cut.idx: found "));
  }
  save ("cut.idx", bytes->data, 33);
  assert_refused ("cut", "cut.idx: found 33 bytes, wanted a header of 34 bytes");
}

/* A multimodal Megatron index has a mode for each sequence. Mode 0 is text; an index with any other
 * mode is refused. */
static void
sequences_that_are_not_text_are_refused (void **state)
{
  const struct made_index text = { 1, 8, 2, 3, { 2, 4 }, { 0, 4 } };
  g_autoptr (GByteArray) bytes = index_bytes (&text);

  (void) state;
  save ("modes.bin", six_ids, sizeof six_ids);
  g_byte_array_append (bytes, (const uint8_t *) "\0\0", 2);
  save ("modes.idx", bytes->data, bytes->len);
  g_autoptr (weft_tokens) tokens = opened ("modes", 256);
  assert_int_equal (weft_tokens_count (tokens), 6);
  bytes->data[bytes->len - 1] = 1;
  save ("modes.idx", bytes->data, bytes->len);
  assert_refused ("modes", "modes.idx: sequence 1 has mode 1, wanted 0 (text)");
}

static void
an_index_needs_its_tokens_beside_it (void **state)
{
  g_autofree char *message =
      g_strdup_printf ("alone.bin: cannot be opened: %s", g_strerror (ENOENT));

  (void) state;
  save_index ("alone.idx", (struct made_index){ 1, 8, 1, 2, { 6 }, { 0 } });
  assert_refused ("alone.idx", message);
  assert_refused ("alone", message);
  assert_refused ("alone.bin", message);
}

static void
an_index_of_another_name_is_refused (void **state)
{
  static const char *const names[] = { "renamed", "renamed.txt", "renamed.bin" };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (names); i++) {
    g_autofree char *message = g_strdup_printf ("%s: found a Megatron index, wanted it named "
                                                "FILE.idx and its tokens in FILE.bin",
                                                names[i]);
    save_index (names[i], (struct made_index){ 1, 8, 1, 2, { 6 }, { 0 } });
    assert_refused (names[i], message);
  }
}

static void
what_lies_beside_a_bin_file_may_be_no_index (void **state)
{
  (void) state;
  save ("free.bin", six_ids, sizeof six_ids);
  save ("free.idx", "MMIDIDX of my own", 17);
  g_autoptr (weft_tokens) tokens = opened ("free.bin", 256);
  assert_string_equal (weft_tokens_format (tokens), "nanoGPT");
  assert_refused ("free.idx", "free.idx: found no MMIDIDX at its start, wanted a Megatron index");
}

/* ------------------------------------------------------------- no file, not readable */

static void
what_is_no_file_is_refused (void **state)
{
  g_autofree char *missing =
      g_strdup_printf ("nowhere.bin: cannot be opened: %s", g_strerror (ENOENT));

  (void) state;
  assert_refused ("nowhere.bin", missing);
  assert_int_equal (g_mkdir ("folder.idx", 0700), 0);
  assert_refused ("folder.idx", "folder.idx: found a directory, wanted a file");
  assert_refused (".", ".: found a directory, wanted a file");
  assert_refused ("/dev/null", "/dev/null: found a pipe or device, wanted a file");
  assert_int_equal (mkfifo ("pipe", 0600), 0);
  assert_refused ("pipe", "pipe: found a pipe or device, wanted a file");
}

static void
a_file_that_may_not_be_read_is_refused (void **state)
{
  (void) state;
  save ("secret.txt", "abc", 3);
  assert_int_equal (g_chmod ("secret.txt", 0), 0);
  /* skipped for root, who can read a file without permissions */
  if (access ("secret.txt", R_OK) == 0)
    skip ();
  g_autofree char *message =
      g_strdup_printf ("secret.txt: cannot be opened: %s", g_strerror (EACCES));
  assert_refused ("secret.txt", message);
}

/* -------------------------------------------------------------------------- reading */

static void
a_token_outside_the_vocabulary_is_named (void **state)
{
  static const int64_t ids[] = { 5, 50257, -3, (int64_t) 1 << 31, G_MAXINT64, G_MININT64 };
  static const uint32_t unsigned_ids[] = { 1, G_MAXUINT32 };

  (void) state;
  save ("ids.bin", ids, sizeof ids);
  save_index ("ids.idx", (struct made_index){ 1, 5, 2, 1, { 2, 4 }, { 0, 16 } });
  g_autoptr (weft_tokens) tokens = opened ("ids", 50257);
  assert_read_refused (tokens, 0, 2, "ids: token 1 is 50257, wanted below 50257 (vocab_size)");
  assert_read_refused (tokens, 2, 1, "ids: token 2 is -3, wanted at least 0");
  assert_read_refused (tokens, 3, 3, "ids: token 3 is 2147483648, wanted below 50257 (vocab_size)");
  assert_read_refused (tokens, 5, 1, "ids: token 5 is -9223372036854775808, wanted at least 0");
  /* An id above int32 is refused, even if vocab_size would allow it. */
  g_autoptr (weft_tokens) all = opened ("ids", G_MAXINT64);
  assert_read_refused (all, 3, 1,
                       "ids: token 3 is 2147483648, wanted below 2147483648 (vocab_size)");
  save_llmc ("u32", (const uint32_t[]){ 20240801, 7, 2 }, unsigned_ids, sizeof unsigned_ids);
  g_autoptr (weft_tokens) wide = opened ("u32", 128256);
  assert_read_refused (wide, 0, 2, "u32: token 1 is 4294967295, wanted below 128256 (vocab_size)");
}

/* An error message numbers a token by its position in the stream that the index describes, not by
 * its position in the file. */
static void
a_token_is_numbered_in_the_stream (void **state)
{
  (void) state;
  save ("far.bin", six_ids, sizeof six_ids);
  save_index ("far.idx", (struct made_index){ 1, 8, 2, 1, { 3, 3 }, { 6, 0 } });
  g_autoptr (weft_tokens) tokens = opened ("far.idx", 12);
  assert_read_refused (tokens, 3, 3, "far.idx: token 5 is 12, wanted below 12 (vocab_size)");
}

static void
a_read_past_the_end_is_refused (void **state)
{
  (void) state;
  save ("end", "abcdef", 6);
  g_autoptr (weft_tokens) tokens = opened ("end", 256);
  assert_read_refused (tokens, 0, 7, "end: found 6 tokens, wanted 7 tokens from token 0");
  assert_read_refused (tokens, 6, 1, "end: found 6 tokens, wanted 1 tokens from token 6");
  assert_read_refused (tokens, 7, 0, "end: found 6 tokens, wanted 0 tokens from token 7");
  assert_read_refused (tokens, 5, G_MAXUINT64,
                       "end: found 6 tokens, wanted 18446744073709551615 tokens from token 5");
}

/* --------------------------------------------------------------------- fingerprints */

static uint64_t
fingerprint_of (const char *path)
{
  g_autoptr (weft_tokens) tokens = opened (path, 65536);

  return weft_tokens_fingerprint (tokens);
}

static void
the_same_tokens_have_the_same_fingerprint_whatever_the_file (void **state)
{
  static const uint32_t header[] = { 20240520, 1, 6 };

  (void) state;
  save ("a.bin", six_ids, sizeof six_ids);
  save ("b.bin", six_ids, sizeof six_ids);
  save_llmc ("c.bin", header, six_ids, sizeof six_ids);
  save ("d.bin", six_ids, sizeof six_ids);
  save_index ("d.idx", (struct made_index){ 1, 8, 2, 3, { 2, 4 }, { 0, 4 } });
  assert_true (fingerprint_of ("a.bin") != 0);
  assert_true (fingerprint_of ("a.bin") == fingerprint_of ("b.bin"));
  assert_true (fingerprint_of ("a.bin") == fingerprint_of ("c.bin"));
  assert_true (fingerprint_of ("a.bin") == fingerprint_of ("d"));
  save_index ("d.idx", (struct made_index){ 1, 8, 2, 3, { 4, 2 }, { 4, 0 } });
  assert_true (fingerprint_of ("a.bin") != fingerprint_of ("d"));
}

/* The fingerprint of a short file depends on every token. */
static void
any_token_of_a_short_file_changes_its_fingerprint (void **state)
{
  char text[1000];

  (void) state;
  memset (text, 'x', sizeof text);
  save ("short", text, sizeof text);
  uint64_t before = fingerprint_of ("short");
  for (unsigned i = 0; i < sizeof text; i += 37) {
    text[i] = 'y';
    save ("short", text, sizeof text);
    assert_true (fingerprint_of ("short") != before);
    text[i] = 'x';
  }
}

/* The fingerprint of a long file depends on its size, on the first and last token, and on samples,
 * so that a change of 101 tokens in a row is always noticed. */
static void
a_long_file_is_sampled_from_end_to_end (void **state)
{
  const gsize size = 100000;
  g_autofree char *text = g_malloc (size);

  (void) state;
  memset (text, 'x', size);
  save ("wide", text, size);
  uint64_t before = fingerprint_of ("wide");
  save ("wide", text, size - 1);
  assert_true (fingerprint_of ("wide") != before);
  for (gsize at = 0; at < size; at += 12345) {
    memset (text + at, 'y', MIN (size - at, 101));
    save ("wide", text, size);
    assert_true (fingerprint_of ("wide") != before);
    memset (text, 'x', size);
  }
  for (unsigned end = 0; end < 2; end++) {
    text[end * (size - 1)] = 'y';
    save ("wide", text, size);
    assert_true (fingerprint_of ("wide") != before);
    memset (text, 'x', size);
  }
}

static void
one_token_is_enough_to_open (void **state)
{
  static const int32_t wanted[] = { 'a' };

  (void) state;
  save ("one", "a", 1);
  g_autoptr (weft_tokens) tokens = opened ("one", 256);
  assert_stream (tokens, wanted, 1);
  assert_true (weft_tokens_fingerprint (tokens) != 0);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (text_is_read_as_bytes),
  cmocka_unit_test (text_wants_a_vocabulary_of_bytes),
  cmocka_unit_test (an_empty_file_is_refused),
  cmocka_unit_test (a_bin_file_without_a_header_is_nanogpt),
  cmocka_unit_test (an_odd_bin_file_is_refused),
  cmocka_unit_test (a_file_of_gigabytes_is_read_at_its_end),
  cmocka_unit_test (llmc_files_are_known_by_their_magic),
  cmocka_unit_test (a_wrong_llmc_header_is_refused),
  cmocka_unit_test (a_truncated_llmc_header_is_refused),
  cmocka_unit_test (a_megatron_set_opens_by_any_of_its_names),
  cmocka_unit_test (a_folder_of_the_same_name_does_not_hide_a_set),
  cmocka_unit_test (all_types_of_tokens_are_read),
  cmocka_unit_test (the_order_of_the_index_is_the_order_of_the_stream),
  cmocka_unit_test (a_wrong_index_is_refused),
  cmocka_unit_test (an_index_cut_anywhere_is_refused),
  cmocka_unit_test (sequences_that_are_not_text_are_refused),
  cmocka_unit_test (an_index_needs_its_tokens_beside_it),
  cmocka_unit_test (an_index_of_another_name_is_refused),
  cmocka_unit_test (what_lies_beside_a_bin_file_may_be_no_index),
  cmocka_unit_test (what_is_no_file_is_refused),
  cmocka_unit_test (a_file_that_may_not_be_read_is_refused),
  cmocka_unit_test (a_token_outside_the_vocabulary_is_named),
  cmocka_unit_test (a_token_is_numbered_in_the_stream),
  cmocka_unit_test (a_read_past_the_end_is_refused),
  cmocka_unit_test (the_same_tokens_have_the_same_fingerprint_whatever_the_file),
  cmocka_unit_test (any_token_of_a_short_file_changes_its_fingerprint),
  cmocka_unit_test (a_long_file_is_sampled_from_end_to_end),
  cmocka_unit_test (one_token_is_enough_to_open),
};

WEFT_TESTS (tests, .set_up = enter_folder, .tear_down = leave_folder)
