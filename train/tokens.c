#include "train/tokens_layout.h"
#include "core/base/error.h"
#include "core/base/mix.h"
#include <string.h>

/* Number of token ids that int32_t can represent. */
#define MOST_IDS ((int64_t) G_MAXINT32 + 1)

/* number of bytes that are read at once; size in bytes of the largest type */
#define BLOCK 16384u
#define MOST_TOKEN_BYTES 8

/* ------------------------------------------------------------------------ types */

/* at_TYPE() reads one id. copy_TYPE() copies n ids, stops at the first id outside [0, limit) and
 * returns the number of ids copied. */
#define TYPE_FUNCTIONS(constant, c_type)                                                           \
  static int64_t at_##c_type (const uint8_t *from)                                                 \
  {                                                                                                \
    c_type id;                                                                                     \
    memcpy (&id, from, sizeof id);                                                                 \
    return id;                                                                                     \
  }                                                                                                \
  static uint64_t copy_##c_type (const uint8_t *from, uint64_t n, int64_t limit, int32_t *out)     \
  {                                                                                                \
    for (uint64_t i = 0; i < n; i++) {                                                             \
      int64_t id = at_##c_type (from + i * sizeof (c_type));                                       \
      if (id < 0 || id >= limit)                                                                   \
        return i;                                                                                  \
      out[i] = (int32_t) id;                                                                       \
    }                                                                                              \
    return n;                                                                                      \
  }
WEFT_TOKEN_TYPE_LIST (TYPE_FUNCTIONS)
#undef TYPE_FUNCTIONS

static const struct {
  unsigned bytes;
  int64_t (*at) (const uint8_t *from);
  uint64_t (*copy) (const uint8_t *from, uint64_t n, int64_t limit, int32_t *out);
} types[] = {
#define TYPE_ROW(constant, c_type) [constant] = { sizeof (c_type), at_##c_type, copy_##c_type },
  WEFT_TOKEN_TYPE_LIST (TYPE_ROW)
#undef TYPE_ROW
};

unsigned
weft_token_bytes (enum weft_token_type type)
{
  return types[type].bytes;
}

/* ------------------------------------------------------------------------- runs */

static struct weft_token_run *
run_at (const weft_tokens *tokens, unsigned run)
{
  return &g_array_index (tokens->run, struct weft_token_run, run);
}

static uint64_t
run_end (const weft_tokens *tokens, unsigned run)
{
  return run + 1 < tokens->run->len ? run_at (tokens, run + 1)->first : tokens->count;
}

/* Reads n tokens of one contiguous range, in the integer type of the file. */
static gboolean
read_raw (const weft_tokens *tokens, unsigned run, uint64_t token, uint64_t n, void *out,
          GError **error)
{
  const struct weft_token_run *r = run_at (tokens, run);
  uint64_t bytes = types[tokens->type].bytes;

  return weft_data_file_read (tokens->file, r->offset + (token - r->first) * bytes, n * bytes, out,
                              error);
}

/* Index of the contiguous range of tokens that contains a token of the stream. */
static unsigned
find_run (const weft_tokens *tokens, uint64_t token)
{
  unsigned low = 0, high = tokens->run->len;

  while (high - low > 1) {
    unsigned middle = low + (high - low) / 2;
    if (run_at (tokens, middle)->first <= token)
      low = middle;
    else
      high = middle;
  }
  return low;
}

/* Whether the bytes at `offset` directly follow the last contiguous range of tokens. */
static gboolean
continues (const weft_tokens *tokens, uint64_t offset)
{
  unsigned n_run = tokens->run->len;

  if (n_run == 0)
    return FALSE;
  const struct weft_token_run *last = run_at (tokens, n_run - 1);
  return last->offset + (tokens->count - last->first) * types[tokens->type].bytes == offset;
}

void
weft_tokens_append (weft_tokens *tokens, uint64_t offset, uint64_t n)
{
  struct weft_token_run run = { tokens->count, offset };

  if (n && !continues (tokens, offset))
    g_array_append_val (tokens->run, run);
  tokens->count += n;
}

/* ---------------------------------------------------------------------- formats */

static void
take_rest (weft_tokens *tokens, enum weft_token_type type, uint64_t header)
{
  uint64_t bytes = weft_data_file_bytes (tokens->file) - header;

  tokens->type = type;
  weft_tokens_append (tokens, header, bytes / types[type].bytes);
}

/* Bytes of the llm.c header: 256 int32 (magic number, version, number of tokens, zeros). */
#define LLMC_HEADER 1024

static const struct llmc_kind {
  uint32_t magic, version;
  enum weft_token_type type;
} llmc_kinds[] = {
  { 20240520, 1, WEFT_TOKEN_U16 },
  { 20240801, 7, WEFT_TOKEN_U32 },
};

/* The format whose magic number the file begins with, or NULL. */
static const struct llmc_kind *
find_llmc (const weft_tokens *tokens)
{
  uint32_t magic;

  if (weft_data_file_bytes (tokens->file) < sizeof magic ||
      !weft_data_file_read (tokens->file, 0, sizeof magic, &magic, NULL))
    return NULL;
  for (unsigned i = 0; i < G_N_ELEMENTS (llmc_kinds); i++)
    if (llmc_kinds[i].magic == magic)
      return &llmc_kinds[i];
  return NULL;
}

static gboolean
is_llmc (const weft_tokens *tokens)
{
  return find_llmc (tokens) != NULL;
}

static gboolean
take_llmc (weft_tokens *tokens, GError **error)
{
  const struct llmc_kind *kind = find_llmc (tokens);
  uint64_t bytes = weft_data_file_bytes (tokens->file);
  uint32_t header[3];

  if (bytes < LLMC_HEADER)
    return weft_bad_input (error,
                           "%s: found %" G_GUINT64_FORMAT
                           " bytes that begin as llm.c tokens do, wanted a header of %d bytes",
                           tokens->path, bytes, LLMC_HEADER);
  if (!weft_data_file_read (tokens->file, 0, sizeof header, header, error))
    return FALSE;
  if (header[1] != kind->version)
    return weft_bad_input (error, "%s: found version %u of llm.c tokens %u, wanted %u",
                           tokens->path, header[1], kind->magic, kind->version);
  uint64_t wanted = LLMC_HEADER + (uint64_t) header[2] * types[kind->type].bytes;
  if (bytes != wanted)
    return weft_bad_input (error,
                           "%s: found %" G_GUINT64_FORMAT " bytes, wanted %" G_GUINT64_FORMAT
                           " bytes for the %u tokens of its llm.c header",
                           tokens->path, bytes, wanted, header[2]);
  take_rest (tokens, kind->type, LLMC_HEADER);
  return TRUE;
}

static gboolean
is_nanogpt (const weft_tokens *tokens)
{
  return g_str_has_suffix (tokens->path, ".bin");
}

static gboolean
take_nanogpt (weft_tokens *tokens, GError **error)
{
  uint64_t bytes = weft_data_file_bytes (tokens->file);

  if (bytes % 2)
    return weft_bad_input (error,
                           "%s: found %" G_GUINT64_FORMAT
                           " bytes, wanted an even number: a .bin file without a header has "
                           "tokens of two",
                           tokens->path, bytes);
  take_rest (tokens, WEFT_TOKEN_U16, 0);
  return TRUE;
}

static gboolean
is_text (const weft_tokens *tokens)
{
  (void) tokens;
  return TRUE;
}

static gboolean
take_text (weft_tokens *tokens, GError **error)
{
  if (tokens->vocab_size <= G_MAXUINT8)
    return weft_bad_input (
        error,
        "%s: found text, whose bytes are tokens, and vocab_size %" G_GINT64_FORMAT
        ", wanted at least %d",
        tokens->path, tokens->vocab_size, G_MAXUINT8 + 1);
  take_rest (tokens, WEFT_TOKEN_U8, 0);
  return TRUE;
}

/* Formats in the order in which they are tried. The first format that claims the file is used. */
static const struct {
  const char *word;
  gboolean (*claims) (const weft_tokens *tokens);
  gboolean (*take) (weft_tokens *tokens, GError **error);
} formats[] = {
  { "llm.c", is_llmc, take_llmc },
  { "nanoGPT", is_nanogpt, take_nanogpt },
  { "text", is_text, take_text },
};

static gboolean
take_file (weft_tokens *tokens, GError **error)
{
  unsigned i = 0;

  while (!formats[i].claims (tokens))
    i++;
  tokens->format = formats[i].word;
  return formats[i].take (tokens, error);
}

/* ------------------------------------------------------------------------ stream */

static gboolean
is_regular (const char *path)
{
  return g_file_test (path, G_FILE_TEST_IS_REGULAR);
}

/* The path of the Megatron index: a path that ends in .idx is the index itself; else FILE.idx for
 * FILE.bin or FILE, or NULL if FILE.idx does not exist. The caller frees the path. */
static char *
find_index (const char *path)
{
  gboolean bin = g_str_has_suffix (path, ".bin");

  if (g_str_has_suffix (path, ".idx"))
    return g_strdup (path);
  if (!bin && is_regular (path))
    return NULL;
  g_autofree char *stem = g_strndup (path, strlen (path) - (bin ? strlen (".bin") : 0));
  g_autofree char *index = g_strconcat (stem, ".idx", NULL);
  return is_regular (index) ? g_steal_pointer (&index) : NULL;
}

char **
weft_tokens_files (const char *path)
{
  g_autofree char *index = find_index (path);

  if (!index)
    return g_strdupv ((char *[]){ (char *) (uintptr_t) path, NULL });
  g_autofree char *stem = g_strndup (index, strlen (index) - strlen (".idx"));
  g_autofree char *bin = g_strconcat (stem, ".bin", NULL);
  return g_strdupv ((char *[]){ index, bin, NULL });
}

static gboolean
open_stream (weft_tokens *tokens, GError **error)
{
  g_autofree char *index_path = find_index (tokens->path);

  if (index_path) {
    g_autoptr (weft_data_file) index = weft_data_file_open (index_path, error);
    if (!index)
      return FALSE;
    /* An .idx file beside a .bin file may be unrelated. */
    if (weft_tokens_is_index (index) || !g_str_has_suffix (tokens->path, ".bin"))
      return weft_tokens_take_index (tokens, index_path, index, error);
  }
  tokens->file = weft_data_file_open (tokens->path, error);
  if (!tokens->file)
    return FALSE;
  if (weft_tokens_is_index (tokens->file))
    return weft_bad_input (error,
                           "%s: found a Megatron index, wanted it named FILE.idx and its tokens "
                           "in FILE.bin",
                           tokens->path);
  return take_file (tokens, error);
}

weft_tokens *
weft_tokens_open (const char *path, int64_t vocab_size, GError **error)
{
  g_autoptr (weft_tokens) tokens = g_new0 (weft_tokens, 1);

  tokens->path = g_strdup (path);
  tokens->vocab_size = vocab_size;
  tokens->run = g_array_new (FALSE, FALSE, sizeof (struct weft_token_run));
  if (!open_stream (tokens, error))
    return NULL;
  if (tokens->count)
    return g_steal_pointer (&tokens);
  weft_bad_input (error, "%s: found no tokens (%s), wanted some", path, tokens->format);
  return NULL;
}

void
weft_tokens_free (weft_tokens *tokens)
{
  g_clear_pointer (&tokens->file, weft_data_file_free);
  g_array_free (tokens->run, TRUE);
  g_free (tokens->path);
  g_free (tokens);
}

const char *
weft_tokens_path (const weft_tokens *tokens)
{
  return tokens->path;
}

uint64_t
weft_tokens_count (const weft_tokens *tokens)
{
  return tokens->count;
}

const char *
weft_tokens_format (const weft_tokens *tokens)
{
  return tokens->format;
}

/* Continues a hash with the 8 bytes of a word, lowest byte first. */
static uint64_t
hash_word (uint64_t hash, uint64_t word)
{
  for (int shift = 0; shift < 64; shift += 8)
    hash = weft_hash_byte (hash, (uint8_t) (word >> shift));
  return hash;
}

uint64_t
weft_tokens_fingerprint (const weft_tokens *tokens)
{
  const uint64_t most = 1000, count = tokens->count, n = MIN (count, most);
  uint64_t hash = hash_word (WEFT_HASH_BEGIN, count);

  for (uint64_t i = 0; i < n; i++) {
    uint64_t token = n < 2 ? 0 : (unsigned __int128) i * (count - 1) / (n - 1);
    uint8_t raw[MOST_TOKEN_BYTES];
    if (!read_raw (tokens, find_run (tokens, token), token, 1, raw, NULL))
      return 0;
    hash = hash_word (hash, (uint64_t) types[tokens->type].at (raw));
  }
  return MAX (hash, 1);
}

const weft_data_file *
weft_tokens_file (const weft_tokens *tokens)
{
  return tokens->file;
}

static gboolean
blame_token (const weft_tokens *tokens, const uint8_t *raw, uint64_t token, GError **error)
{
  int64_t id = types[tokens->type].at (raw);

  if (id < 0)
    return weft_bad_input (
        error, "%s: token %" G_GUINT64_FORMAT " is %" G_GINT64_FORMAT ", wanted at least 0",
        tokens->path, token, id);
  return weft_bad_input (error,
                         "%s: token %" G_GUINT64_FORMAT " is %" G_GINT64_FORMAT
                         ", wanted below %" G_GINT64_FORMAT " (vocab_size)",
                         tokens->path, token, id, MIN (tokens->vocab_size, MOST_IDS));
}

/* Reads n tokens of one contiguous range, in blocks. */
static gboolean
read_ids (const weft_tokens *tokens, unsigned run, uint64_t token, uint64_t n, int32_t *out,
          GError **error)
{
  const int64_t limit = MIN (tokens->vocab_size, MOST_IDS);
  const unsigned bytes = types[tokens->type].bytes;
  uint8_t raw[BLOCK];

  for (uint64_t done = 0, some; done < n; done += some) {
    some = MIN (n - done, BLOCK / bytes);
    if (!read_raw (tokens, run, token + done, some, raw, error))
      return FALSE;
    uint64_t good = types[tokens->type].copy (raw, some, limit, out + done);
    if (good < some)
      return blame_token (tokens, raw + good * bytes, token + done + good, error);
  }
  return TRUE;
}

gboolean
weft_tokens_read (const weft_tokens *tokens, uint64_t first, uint64_t n, int32_t *out,
                  GError **error)
{
  if (first > tokens->count || n > tokens->count - first)
    return weft_bad_input (error,
                           "%s: found %" G_GUINT64_FORMAT " tokens, wanted %" G_GUINT64_FORMAT
                           " tokens from token %" G_GUINT64_FORMAT,
                           tokens->path, tokens->count, n, first);
  unsigned run = find_run (tokens, first);
  for (uint64_t done = 0; done < n; run++) {
    uint64_t some = MIN (n - done, run_end (tokens, run) - (first + done));
    if (!read_ids (tokens, run, first + done, some, out + done, error))
      return FALSE;
    done += some;
  }
  return TRUE;
}
