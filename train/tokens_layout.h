/* tokens_layout.h - how the tokens of an open file lie in memory: runs of one type inside one
 * mapped file.  Between tokens.c and the readers of formats only. */
#pragma once
#include "train/tokens.h"

#if G_BYTE_ORDER != G_LITTLE_ENDIAN
#error "token files are little-endian and are read as they lie"
#endif

/* constant of a type, its type in C */
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

/* Tokens that follow one another in the file; up to the next run, or the end of the stream. */
struct weft_token_run {
  uint64_t first;  /* of the stream */
  uint64_t offset; /* in the file, bytes; of any alignment */
};

struct weft_tokens {
  char *path; /* as the user typed it */
  const char *format;
  int64_t vocab_size;
  GMappedFile *file;
  enum weft_token_type type;
  GArray *run;    /* of struct weft_token_run; `first` grows, none is empty */
  uint64_t count; /* tokens */
};

unsigned weft_token_bytes (enum weft_token_type type);

/* Tokens at the end of the stream; they lengthen its last run where they continue it. */
void weft_tokens_append (weft_tokens *tokens, uint64_t offset, uint64_t n);

/* tokens_megatron.c: whether the file begins as an index does; and what an index says, whose path
 * must end in .idx. */
gboolean weft_tokens_is_index (GMappedFile *file);
gboolean weft_tokens_take_index (weft_tokens *tokens, const char *path, GMappedFile *index,
                                 GError **error);
