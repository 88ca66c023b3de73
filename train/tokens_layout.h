/* tokens_layout.h - the places of tokens in a file: runs of one integer type. Private to
 * tokens.c and the format readers. */
#pragma once
#include "train/data_file.h"
#include "train/tokens.h"

#if G_BYTE_ORDER != G_LITTLE_ENDIAN
#error "token files are little-endian and are read as they lie"
#endif

/* constant, type in C */
#define WEFT_TOKEN_TYPE_LIST(X)                                                                    \
  X (WEFT_TOKEN_U8, uint8_t)                                                                       \
  X (WEFT_TOKEN_I16, int16_t)                                                                      \
  X (WEFT_TOKEN_U16, uint16_t)                                                                     \
  X (WEFT_TOKEN_I32, int32_t)                                                                      \
  X (WEFT_TOKEN_U32, uint32_t)                                                                     \
  X (WEFT_TOKEN_I64, int64_t)
enum weft_token_type {
#define WEFT_TOKEN_TYPE_ID(id, c_type) id,
  WEFT_TOKEN_TYPE_LIST (WEFT_TOKEN_TYPE_ID)
#undef WEFT_TOKEN_TYPE_ID
};

/* Tokens that are contiguous in the file, up to the next run or the end of the stream. */
struct weft_token_run {
  uint64_t first;  /* index in the stream of the run's first token */
  uint64_t offset; /* bytes from the start of the file, not necessarily aligned */
};

struct weft_tokens {
  char *path; /* as the user typed it */
  const char *format;
  int64_t vocab_size;
  weft_data_file *file;
  enum weft_token_type type;
  GArray *run;    /* struct weft_token_run, sorted by `first`, none empty */
  uint64_t count; /* tokens */
};

unsigned weft_token_bytes (enum weft_token_type type);

/* Appends n tokens at byte `offset` of the file to the stream. Extends the last run if the tokens
 * directly follow it. */
void weft_tokens_append (weft_tokens *tokens, uint64_t offset, uint64_t n);

/* Whether a file begins with the magic number of a Megatron index. */
gboolean weft_tokens_is_index (const weft_data_file *file);

/* Opens FILE.bin and appends its sequences in the order of the Megatron index `path`, whose name
 * must end in .idx. */
gboolean weft_tokens_take_index (weft_tokens *tokens, const char *path,
                                 const weft_data_file *index, GError **error);
