/* tokens.h - files of token ids, mapped into memory and read as one long stream.
 *
 *   text      any bytes that are none of the others: each byte is a token
 *   nanoGPT   headerless uint16: a .bin file that is neither of the next; an odd size is refused
 *             (nanoGPT data/openwebtext/prepare.py)
 *   llm.c     256 int32 of header: 20240520, version 1, count, then uint16; or 20240801, version 7,
 *             count, then uint32 (karpathy/llm.c llmc/dataloader.h)
 *   Megatron  FILE.bin of bare tokens and FILE.idx that says their type and sequences, which follow
 *             one another as in the index; FILE.idx, FILE.bin or FILE may be given (Megatron-Core
 *             datasets/indexed_dataset.py)
 *
 * The kind is found by content (magic numbers), then by name; what does not fit its kind, or has
 * no tokens, is refused: file, what was found, what was wanted.  Ids are checked against the
 * vocabulary when they are read; text wants one of at least 256 at once.  Files are mapped
 * (mapped_file.h) and must keep their size while they are open. */
#pragma once
#include <glib.h>
#include <stdint.h>

typedef struct weft_tokens weft_tokens;

weft_tokens *weft_tokens_open (const char *path, int64_t vocab_size, GError **error);
void weft_tokens_free (weft_tokens *tokens);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_tokens, weft_tokens_free)

uint64_t weft_tokens_count (const weft_tokens *tokens);
const char *weft_tokens_format (const weft_tokens *tokens); /* "text", "nanoGPT", "llm.c", ... */
const char *weft_tokens_path (const weft_tokens *tokens);   /* as given */

/* A number that says whether two runs read the same data: of the size and of tokens spread over
 * the whole file, whatever their format; never 0. */
uint64_t weft_tokens_fingerprint (const weft_tokens *tokens);

/* Ids [first, first + n); the error says which token is outside the vocabulary. */
gboolean weft_tokens_read (const weft_tokens *tokens, uint64_t first, uint64_t n, int32_t *out,
                           GError **error);
