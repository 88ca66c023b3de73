/* The Megatron-Core index file: 9 bytes of magic, u64 version, u8 type, u64 sequences, u64
 * documents; per sequence its length in tokens (i32), then per sequence its offset in the .bin file
 * in bytes (i64); per document its first sequence (i64); in multimodal sets, the mode of each
 * sequence (i8). */
#include "train/tokens_layout.h"
#include "core/base/error.h"
#include <string.h>

/* the ninth byte is the zero at the end of the string literal */
static const char magic[9] = "MMIDIDX\0";

#define VERSION_AT 9
#define TYPE_AT 17
#define SEQUENCES_AT 18
#define DOCUMENTS_AT 26
#define LENGTHS_AT 34

struct index {
  const char *path;
  const weft_data_file *file;
  uint64_t bytes, sequences, documents;
};

/* number of sequences that are read at once */
#define BLOCK 4096u

/* Element types of the Megatron index by their numbers (class DType of indexed_dataset.py). */
static const struct {
  const char *word;
  gboolean tokens; /* whether token ids may have this type */
  enum weft_token_type type;
} dtypes[] = {
  [1] = { "uint8", TRUE, WEFT_TOKEN_U8 },
  [2] = { "int8" },
  [3] = { "int16", TRUE, WEFT_TOKEN_I16 },
  [4] = { "int32", TRUE, WEFT_TOKEN_I32 },
  [5] = { "int64", TRUE, WEFT_TOKEN_I64 },
  [6] = { "float64" },
  [7] = { "float32" },
  [8] = { "uint16", TRUE, WEFT_TOKEN_U16 },
};

static uint64_t
load_u64 (const uint8_t *from)
{
  uint64_t value;

  memcpy (&value, from, sizeof value);
  return value;
}

gboolean
weft_tokens_is_index (const weft_data_file *file)
{
  char found[sizeof magic];

  return weft_data_file_bytes (file) >= sizeof magic &&
         weft_data_file_read (file, 0, sizeof found, found, NULL) &&
         memcmp (found, magic, sizeof magic) == 0;
}

static gboolean
check_type (const struct index *index, unsigned code, enum weft_token_type *type, GError **error)
{
  const char *word = code < G_N_ELEMENTS (dtypes) ? dtypes[code].word : NULL;

  if (!word || !dtypes[code].tokens)
    return weft_bad_input (error,
                           "%s: found tokens of type %u (%s), wanted uint8, int16, int32, int64 or "
                           "uint16",
                           index->path, code, word ? word : "unknown");
  *type = dtypes[code].type;
  return TRUE;
}

/* Checks that the size of the index agrees with its counts. Sizes are compared by division: the
 * counts are not trusted, and products could overflow. */
static gboolean
check_size (const struct index *index, GError **error)
{
  uint64_t rest = index->bytes - LENGTHS_AT, s = index->sequences, d = index->documents;
  gboolean some = s <= rest / 12 && d <= (rest - 12 * s) / 8;
  uint64_t modes = some ? rest - 12 * s - 8 * d : 1;

  if (some && (modes == 0 || modes == s))
    return TRUE;
  return weft_bad_input (error,
                         "%s: found %" G_GUINT64_FORMAT
                         " bytes, wanted %d + 12 x %" G_GUINT64_FORMAT
                         " sequences + 8 x %" G_GUINT64_FORMAT " documents",
                         index->path, index->bytes, LENGTHS_AT, s, d);
}

static gboolean
check_modes (const struct index *index, GError **error)
{
  uint64_t first = LENGTHS_AT + 12 * index->sequences + 8 * index->documents;
  int8_t mode[BLOCK];

  for (uint64_t at = first, n; at < index->bytes; at += n) {
    n = MIN (BLOCK, index->bytes - at);
    if (!weft_data_file_read (index->file, at, n, mode, error))
      return FALSE;
    for (uint64_t i = 0; i < n; i++)
      if (mode[i])
        return weft_bad_input (error,
                               "%s: sequence %" G_GUINT64_FORMAT " has mode %d, wanted 0 (text)",
                               index->path, at - first + i, mode[i]);
  }
  return TRUE;
}

static gboolean
read_header (struct index *index, enum weft_token_type *type, GError **error)
{
  uint8_t header[LENGTHS_AT];

  index->bytes = weft_data_file_bytes (index->file);
  if (!weft_tokens_is_index (index->file))
    return weft_bad_input (error, "%s: found no MMIDIDX at its start, wanted a Megatron index",
                           index->path);
  if (index->bytes < LENGTHS_AT)
    return weft_bad_input (error,
                           "%s: found %" G_GUINT64_FORMAT " bytes, wanted a header of %d bytes",
                           index->path, index->bytes, LENGTHS_AT);
  if (!weft_data_file_read (index->file, 0, LENGTHS_AT, header, error))
    return FALSE;
  uint64_t version = load_u64 (header + VERSION_AT);
  if (version != 1)
    return weft_bad_input (error,
                           "%s: found version %" G_GUINT64_FORMAT " of a Megatron index, wanted 1",
                           index->path, version);
  index->sequences = load_u64 (header + SEQUENCES_AT);
  index->documents = load_u64 (header + DOCUMENTS_AT);
  return check_type (index, header[TYPE_AT], type, error) && check_size (index, error) &&
         check_modes (index, error);
}

/* Appends a sequence of the Megatron index to the token stream. A sequence outside the .bin file is
 * an error. */
static gboolean
append_sequence (weft_tokens *tokens, const struct index *index, uint64_t sequence, int64_t length,
                 int64_t pointer, GError **error)
{
  const int64_t bytes = (int64_t) weft_data_file_bytes (tokens->file);
  const unsigned width = weft_token_bytes (tokens->type);

  if (length < 0 || pointer < 0 || pointer > bytes || length * width > bytes - pointer)
    return weft_bad_input (error,
                           "%s: sequence %" G_GUINT64_FORMAT " has %" G_GINT64_FORMAT
                           " tokens from byte %" G_GINT64_FORMAT
                           ", wanted them inside the %" G_GINT64_FORMAT " bytes of the .bin file",
                           index->path, sequence, length, pointer, bytes);
  weft_tokens_append (tokens, (uint64_t) pointer, (uint64_t) length);
  return TRUE;
}

static gboolean
append_sequences (weft_tokens *tokens, const struct index *index, GError **error)
{
  g_autofree int32_t *length = g_new (int32_t, BLOCK);
  g_autofree int64_t *pointer = g_new (int64_t, BLOCK);
  const uint64_t pointers_at = LENGTHS_AT + sizeof *length * index->sequences;

  for (uint64_t first = 0, n; first < index->sequences; first += n) {
    n = MIN (BLOCK, index->sequences - first);
    if (!weft_data_file_read (index->file, LENGTHS_AT + first * sizeof *length, n * sizeof *length,
                              length, error) ||
        !weft_data_file_read (index->file, pointers_at + first * sizeof *pointer,
                              n * sizeof *pointer, pointer, error))
      return FALSE;
    for (uint64_t i = 0; i < n; i++)
      if (!append_sequence (tokens, index, first + i, length[i], pointer[i], error))
        return FALSE;
  }
  return TRUE;
}

gboolean
weft_tokens_take_index (weft_tokens *tokens, const char *path, const weft_data_file *file,
                        GError **error)
{
  struct index index = { .path = path, .file = file };
  g_autofree char *stem = g_strndup (path, strlen (path) - strlen (".idx"));
  g_autofree char *bin = g_strconcat (stem, ".bin", NULL);

  tokens->format = "Megatron";
  if (!read_header (&index, &tokens->type, error))
    return FALSE;
  tokens->file = weft_data_file_open (bin, error);
  return tokens->file && append_sequences (tokens, &index, error);
}
