/* tokens.h - token files, read as one long stream.
 *
 *   text      any file that has none of the formats below: each byte is a token
 *   nanoGPT   headerless uint16: a .bin file without a magic number; an odd size is refused
 *             (nanoGPT data/openwebtext/prepare.py)
 *   llm.c     256 int32 of header: 20240520, version 1, count, then uint16; or 20240801, version 7,
 *             count, then uint32 (karpathy/llm.c llmc/dataloader.h)
 *   Megatron  FILE.bin with bare tokens and FILE.idx with their type and sequences, read in the
 *             order of the index; FILE.idx, FILE.bin or FILE may be given (Megatron-Core
 *             datasets/indexed_dataset.py)
 *
 * The format is detected by content (magic numbers), then by name. A file that is malformed or has
 * no tokens is refused: the error contains the file, the value found and the value wanted. Ids are
 * checked against the vocabulary when they are read; text is refused on opening if the vocabulary
 * is smaller than 256. Files are read (data_file.h) and may change or become shorter while they are
 * open. */
#pragma once
#include "train/data_file.h"

typedef struct weft_tokens weft_tokens;

weft_tokens *weft_tokens_open (const char *path, int64_t vocab_size, GError **error);
void weft_tokens_free (weft_tokens *tokens);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_tokens, weft_tokens_free)

/* The files that weft_tokens_open() would read, whether they exist or not; NULL after the last.
 * Free with g_strfreev(). */
char **weft_tokens_files (const char *path);

uint64_t weft_tokens_count (const weft_tokens *tokens);
/* The format of a token file: "text", "nanoGPT", "llm.c" or "Megatron". */
const char *weft_tokens_format (const weft_tokens *tokens);
/* The path that the caller passed to weft_tokens_open(). */
const char *weft_tokens_path (const weft_tokens *tokens);

/* A hash of the number of tokens and of tokens sampled over the whole file. The hash does not
 * depend on the format and is 0 only if the file cannot be read. It detects that a resumed run
 * reads other data. */
uint64_t weft_tokens_fingerprint (const weft_tokens *tokens);

/* The file that contains the tokens; in the Megatron format, FILE.bin. */
const weft_data_file *weft_tokens_file (const weft_tokens *tokens);

/* Reads the ids of tokens [first, first + n). An id outside the vocabulary is an error that names
 * the token. */
gboolean weft_tokens_read (const weft_tokens *tokens, uint64_t first, uint64_t n, int32_t *out,
                           GError **error);
