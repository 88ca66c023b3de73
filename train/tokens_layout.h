/* tokens_layout.h - the places of tokens in a file: runs of one integer type. Private to
 * tokens.c and the format readers. */
#pragma once
#include "train/data_file.h"
#include "train/tokens.h"

#if G_BYTE_ORDER != G_LITTLE_ENDIAN
#error "token files are little-endian and are read as they lie"
#endif

/* Columns: constant, type in C. */
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

/* A range of tokens that are contiguous in the file. The range ends where the next one begins, or
 * at the end of the stream. */
struct weft_token_run {
  uint64_t first;  /* index in the stream of the first token of this range */
  uint64_t offset; /* position in the file in bytes, not necessarily aligned */
};

struct weft_tokens {
  char *path; /* name of the file as the user typed it */
  const char *format;
  int64_t vocab_size;
  weft_data_file *file;
  enum weft_token_type type;
  GArray *run;    /* array of struct weft_token_run, sorted by `first`; no range is empty */
  uint64_t count; /* tokens */
};

unsigned weft_token_bytes (enum weft_token_type type);

/* Appends the n tokens at byte `offset` of the file to the stream. If they directly follow the last
 * range of tokens, extends that range. */
void weft_tokens_append (weft_tokens *tokens, uint64_t offset, uint64_t n);

/* Whether a file begins with the magic number of a Megatron index. */
gboolean weft_tokens_is_index (const weft_data_file *file);

/* Opens FILE.bin and appends its sequences in the order of the Megatron index `path`, whose name
 * must end in .idx. */
gboolean weft_tokens_take_index (weft_tokens *tokens, const char *path,
                                 const weft_data_file *index, GError **error);
