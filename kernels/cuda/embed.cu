/* Embedding lookup and its gradient. Token ids are sorted (stable), so the tokens of one id (a word
 * of the vocabulary) are contiguous and in order. One block handles a piece of PIECE tokens: for
 * each word in the piece it adds the gradients of the tokens. If a word continues over several
 * pieces, the piece in which it begins adds the sums of all of them. */
#include "kernels/cuda/place.cuh"
#ifndef WEFT_CUDA_EMULATOR
#include <cub/device/device_radix_sort.cuh>
#else
#include <algorithm>
#endif

enum { THREADS = 256, MOST_BLOCKS = 8192 };
enum { IDS, TABLE, POSITIONS, Y };
enum { BWD_IDS, DY, DTABLE, DPOSITIONS };

struct table {
  uint64_t hidden, first, rows; /* first, rows: the rows of the vocabulary that this rank has */
  float multiplier;             /* factor of embeddings and of their gradients */
};

/* ----------------------------------------------------------------------------- forward */

/* One block per token. */
__global__ void
look_up (const int32_t *ids, struct array table, struct array positions, struct array y,
         struct table c, uint64_t tokens, uint64_t sequence, uint64_t offset,
         struct weft_cuda_spot cp)
{
  for (uint64_t token = blockIdx.x; token < tokens; token += gridDim.x) {
    uint64_t row = (uint64_t) ids[token] - c.first;
    uint64_t place = positions.data ? offset + position_of (cp, sequence, token % sequence) : 0;
    for (uint64_t i = threadIdx.x; i < c.hidden; i += blockDim.x) {
      uint64_t at = token * c.hidden + i;
      float value = row < c.rows ? get (table, row * c.hidden + i) : 0;
      if (c.multiplier != 1) { /* rounds the product before positions are added */
        put (y, at, value * c.multiplier);
        value = get (y, at);
      }
      if (positions.data)
        value += get (positions, place * c.hidden + i);
      put (y, at, value);
    }
  }
}

static struct table
table_of (const struct weft_cuda_launch *l, const struct weft_cuda_operand *o)
{
  struct table c = { l->dim[1], 0, o->n / l->dim[1], l->model.embedding_multiplier };

  c.first = l->tp.at * c.rows;
  return c;
}

const char *
weft_cuda_embed (const struct weft_cuda_launch *l)
{
  const struct weft_cuda_operand *o = l->operand;

  WEFT_LAUNCH (look_up, blocks_for (l->dim[0], 1, MOST_BLOCKS), THREADS, 0, l->stream,
               (const int32_t *) o[IDS].data, array_of (&o[TABLE]),
               array_of (&o[POSITIONS]), array_of (&o[Y]), table_of (l, &o[TABLE]), l->dim[0],
               l->model.sequence, l->model.position_offset, l->cp);
  return launched ();
}

/* ---------------------------------------------------------------------------- sorting */

#ifdef WEFT_CUDA_EMULATOR
uint64_t
weft_cuda_sort_bytes (uint64_t n)
{
  return n * sizeof (int32_t);
}

__global__ void
sort_all (const int32_t *keys, uint64_t n, int32_t *sorted, int32_t *order)
{
  for (uint64_t i = 0; i < n; i++)
    order[i] = (int32_t) i;
  std::stable_sort (order, order + n, [=] (int32_t a, int32_t b) { return keys[a] < keys[b]; });
  for (uint64_t i = 0; i < n; i++)
    sorted[i] = keys[order[i]];
}

const char *
weft_cuda_sort (const struct weft_cuda_launch *on, const int32_t *keys, uint64_t n, int32_t *sorted,
                int32_t *order, void *)
{
  WEFT_LAUNCH (sort_all, 1, 1, 0, on->stream, keys, n, sorted, order);
  return launched ();
}
#else
__global__ void
count_up (int32_t *to, uint64_t n)
{
  for (WEFT_EACH (i, n))
    to[i] = (int32_t) i;
}

static cudaError_t
sort (void *room, size_t *bytes, const int32_t *keys, int32_t *sorted, const int32_t *numbers,
      int32_t *order, uint64_t n, void *stream)
{
  return cub::DeviceRadixSort::SortPairs (room, *bytes, keys, sorted, numbers, order, (int) n, 0,
                                          32, (cudaStream_t) stream);
}

/* Bytes for numbering the keys and for the sort's own workspace. */
uint64_t
weft_cuda_sort_bytes (uint64_t n)
{
  size_t bytes = 0;

  if (sort (NULL, &bytes, NULL, NULL, NULL, NULL, n, NULL) != cudaSuccess)
    return 0;
  return (n * sizeof (int32_t) + 255) / 256 * 256 + bytes;
}

const char *
weft_cuda_sort (const struct weft_cuda_launch *on, const int32_t *keys, uint64_t n, int32_t *sorted,
                int32_t *order, void *room)
{
  uint64_t numbers = (n * sizeof (int32_t) + 255) / 256 * 256;
  size_t bytes = weft_cuda_sort_bytes (n) - numbers;

  WEFT_LAUNCH (count_up, blocks_for (n, THREADS, MOST_BLOCKS), THREADS, 0, on->stream,
               (int32_t *) room, n);
  cudaError_t error = sort ((char *) room + numbers, &bytes, keys, sorted, (const int32_t *) room,
                            order, n, on->stream);
  return told (error);
}
#endif

/* ---------------------------------------------------------------------------- backward */

enum { PIECE = 32, COLUMNS = 128 };

/* Sorted tokens are cut into pieces of PIECE. A block adds the tokens of each word in its piece for
 * COLUMNS columns. The sum of a word that lies in one piece goes to its row. For a word that
 * continues into other pieces, each piece stores a partial sum in `partial`: one slot for the word
 * that began in an earlier piece, and one for the word that does not end in this piece. */
struct gather {
  const int32_t *sorted, *order;
  uint64_t tokens;
  struct table table;
  struct array dy, to;
  bool adds;
  float *partial; /* (piece, 2, hidden) */
};

static __device__ __forceinline__ void
leave (const struct gather &g, int32_t word, uint64_t column, float sum)
{
  uint64_t row = (uint64_t) word - g.table.first, at = row * g.table.hidden + column;

  if (row < g.table.rows)
    put (g.to, at, g.adds ? get (g.to, at) + sum : sum);
}

__global__ void
gather_pieces (struct gather g)
{
  uint64_t column = (uint64_t) blockIdx.x * COLUMNS + threadIdx.x, piece = block_of_many ();
  uint64_t first = piece * PIECE, last = first + PIECE < g.tokens ? first + PIECE : g.tokens;

  if (column >= g.table.hidden)
    return;
  for (uint64_t i = first; i < last;) {
    int32_t word = g.sorted[i];
    uint64_t begin = i;
    float sum = 0;
    for (; i < last && g.sorted[i] == word; i++)
      sum += get (g.dy, (uint64_t) g.order[i] * g.table.hidden + column) * g.table.multiplier;
    bool before = begin == first && first > 0 && g.sorted[first - 1] == word;
    bool after = i == last && last < g.tokens && g.sorted[last] == word;
    if (before || after)
      g.partial[(piece * 2 + !before) * g.table.hidden + column] = sum;
    else
      leave (g, word, column, sum);
  }
}

/* A word (token id) may continue over several pieces: the piece in which the word begins adds the
 * partial sums of the pieces after it. */
__global__ void
join_pieces (struct gather g, uint64_t pieces)
{
  uint64_t column = (uint64_t) blockIdx.x * COLUMNS + threadIdx.x, piece = block_of_many ();
  uint64_t last = (piece + 1) * PIECE;

  if (column >= g.table.hidden || last >= g.tokens || g.sorted[last] != g.sorted[last - 1])
    return;
  int32_t word = g.sorted[last];
  if (piece > 0 && g.sorted[piece * PIECE - 1] == word)
    return; /* the word began in an earlier piece */
  float sum = g.partial[(piece * 2 + 1) * g.table.hidden + column];
  for (uint64_t next = piece + 1; next < pieces && g.sorted[next * PIECE] == word; next++)
    sum += g.partial[next * 2 * g.table.hidden + column];
  leave (g, word, column, sum);
}

/* For position embedding: sums the gradients of the tokens at one position over all sequences. */
__global__ void
gather_positions (struct array dy, struct array to, bool adds, uint64_t tokens, uint64_t hidden,
                  uint64_t sequence, uint64_t offset, struct weft_cuda_spot cp)
{
  uint64_t here = sequence < tokens ? sequence : tokens;

  for (WEFT_EACH (i, here * hidden)) {
    uint64_t place = i / hidden, column = i % hidden;
    uint64_t at = (offset + position_of (cp, sequence, place)) * hidden + column;
    float sum = 0;
    for (uint64_t token = place; token < tokens; token += sequence)
      sum += get (dy, token * hidden + column);
    put (to, at, adds ? get (to, at) + sum : sum);
  }
}

__global__ void
clear_rows (struct array to, uint64_t n)
{
  for (WEFT_EACH (i, n))
    put (to, i, 0);
}

static const char *
clear (const struct weft_cuda_launch *l, const struct weft_cuda_operand *o)
{
  if (o->data && !o->accumulate)
    WEFT_LAUNCH (clear_rows, blocks_for (o->n, THREADS, MOST_BLOCKS), THREADS, 0, l->stream,
                 array_of (o), o->n);
  return launched ();
}

static uint64_t
align (uint64_t bytes)
{
  return (bytes + 255) / 256 * 256;
}

/* Bytes of scratch: for sorted ids, their order, partial sums, and the workspace of the sort. */
static uint64_t
gather_bytes (uint64_t tokens, uint64_t hidden)
{
  uint64_t pieces = (tokens + PIECE - 1) / PIECE;
  return 2 * align (tokens * sizeof (int32_t)) + align (pieces * 2 * hidden * sizeof (float)) +
         weft_cuda_sort_bytes (tokens);
}

WEFT_CUDA_SCRATCH (embed_bwd, gather_bytes (s->dim[0], s->dim[1]))

static const char *
gather_words (const struct weft_cuda_launch *l)
{
  const struct weft_cuda_operand *o = l->operand;
  uint64_t tokens = l->dim[0], hidden = l->dim[1], pieces = (tokens + PIECE - 1) / PIECE;
  char *room = (char *) l->scratch;
  int32_t *sorted = (int32_t *) room, *order = (int32_t *) (room += align (tokens * 4));
  float *partial = (float *) (room += align (tokens * 4));
  room += align (pieces * 2 * hidden * sizeof (float));
  const char *error =
      weft_cuda_sort (l, (const int32_t *) o[BWD_IDS].data, tokens, sorted, order, room);
  if (error)
    return error;

  struct gather g = { sorted, order, tokens, table_of (l, &o[DTABLE]), array_of (&o[DY]),
                      array_of (&o[DTABLE]), (bool) o[DTABLE].accumulate, partial };
  dim3 grid = grid_of_many (blocks_for (hidden, COLUMNS, ~0u), pieces);
  WEFT_LAUNCH (gather_pieces, grid, COLUMNS, 0, l->stream, g);
  WEFT_LAUNCH (join_pieces, grid, COLUMNS, 0, l->stream, g, pieces);
  return launched ();
}

const char *
weft_cuda_embed_bwd (const struct weft_cuda_launch *l)
{
  const struct weft_cuda_operand *o = l->operand;
  const char *error = clear (l, &o[DTABLE]);

  error = error ? error : clear (l, &o[DPOSITIONS]);
  error = error ? error : gather_words (l);
  if (error || !o[DPOSITIONS].data)
    return error;
  WEFT_LAUNCH (gather_positions, blocks_for (l->model.sequence * l->dim[1], THREADS, MOST_BLOCKS),
               THREADS, 0, l->stream, array_of (&o[DY]), array_of (&o[DPOSITIONS]),
               (bool) o[DPOSITIONS].accumulate, l->dim[0], l->dim[1], l->model.sequence,
               l->model.position_offset, l->cp);
  return launched ();
}
