/* Data movement: packing before and after communication, rearranging between linear layers and
 * attention, packing into the shards of ranks. A move maps element i to a source and a destination
 * index. */
#include "kernels/cuda/place.cuh"

enum { THREADS = 256, MOST_BLOCKS = 8192 };

/* Bytes of a floating-point or fp8 element. */
static __host__ __device__ __forceinline__ unsigned
bytes_of (uint32_t dtype)
{
  return dtype == WEFT_FP32 ? 4 : dtype == WEFT_BF16 || dtype == WEFT_FP16 ? 2 : 1;
}

/* Copies as stored, or converts to another type. */
static __device__ __forceinline__ void
copy_element (struct array x, uint64_t from, struct array y, uint64_t to)
{
  unsigned bytes = bytes_of (x.dtype);

  if (x.dtype != y.dtype)
    put (y, to, get (x, from));
  else if (bytes == 4)
    ((uint32_t *) y.data)[to] = ((const uint32_t *) x.data)[from];
  else if (bytes == 2)
    ((uint16_t *) y.data)[to] = ((const uint16_t *) x.data)[from];
  else
    ((uint8_t *) y.data)[to] = ((const uint8_t *) x.data)[from];
}

#define NOWHERE (~(uint64_t) 0) /* an index that stands for a source of zeros */

template <class F>
__global__ void
move (struct array x, struct array y, F place, uint64_t n, bool back)
{
  for (WEFT_EACH (i, n)) {
    uint64_t from, to;
    place (i, &from, &to);
    if (back)
      copy_element (x, to, y, from);
    else if (from == NOWHERE && bytes_of (y.dtype) == 1)
      ((uint8_t *) y.data)[to] = 0;
    else if (from == NOWHERE)
      put (y, to, 0);
    else
      copy_element (x, from, y, to);
  }
}

/* Moves n elements from one operand to another; `back`: the inverse move. */
template <class F>
static const char *
run_between (const struct weft_cuda_launch *l, uint32_t from, uint32_t to, const F &place,
             uint64_t n, bool back)
{
  WEFT_LAUNCH ((move<F>), blocks_for (n, THREADS, MOST_BLOCKS), THREADS, 0, l->stream,
               array_of (&l->operand[from]), array_of (&l->operand[to]), place, n, back);
  return launched ();
}

/* Moves n elements from operand 0 to operand 1. */
template <class F>
static const char *
run (const struct weft_cuda_launch *l, const F &place, uint64_t n, bool back)
{
  return run_between (l, 0, 1, place, n, back);
}

/* -------------------------------------------------- queries, keys and values side by side */

struct kv_place {
  uint64_t queries, kv; /* number of elements per row */

  __device__ void
  operator() (uint64_t i, uint64_t *from, uint64_t *to) const
  {
    *from = i / kv * (queries + kv) + queries + i % kv;
    *to = i;
  }
};

static const char *
run_kv (const struct weft_cuda_launch *l, bool back)
{
  const uint64_t *dim = l->dim; /* the dimensions: tokens, heads, groups, width, value */
  struct kv_place place = { dim[1] * dim[3], dim[2] * (dim[3] + (dim[4] ? dim[4] : dim[3])) };

  return run (l, place, dim[0] * place.kv, back);
}

const char *
weft_cuda_take_kv (const struct weft_cuda_launch *l)
{
  return run_kv (l, false);
}

const char *
weft_cuda_put_kv (const struct weft_cuda_launch *l)
{
  return run_kv (l, true);
}

/* --------------------------------------------------------------------- zigzag sequence parts */

struct zigzag_place {
  uint64_t members, batch, rows, columns;
  uint32_t at;
  /* TRUE: slice j came from the member j places before this rank; FALSE: from member j */
  bool ring;

  __device__ void
  operator() (uint64_t i, uint64_t *from, uint64_t *to) const
  {
    uint64_t column = i % columns, row = i / columns % rows;
    uint64_t sequence = i / columns / rows % batch, slice = i / columns / rows / batch;
    struct weft_cuda_spot spot = { (uint32_t) slice, (uint32_t) members };
    if (ring)
      spot.at = (uint32_t) ((at + members - slice) % members);
    *from = (sequence * members * rows + position_of (spot, rows, row)) * columns + column;
    *to = i;
  }
};

static const char *
run_zigzag (const struct weft_cuda_launch *l, bool back)
{
  const uint64_t *dim = l->dim;
  struct zigzag_place place = { dim[0], dim[1], dim[2], dim[3], l->cp.at, l->before != 0 };

  return run (l, place, dim[0] * dim[1] * dim[2] * dim[3], back);
}

const char *
weft_cuda_split_sequence (const struct weft_cuda_launch *l)
{
  return run_zigzag (l, false);
}

const char *
weft_cuda_join_sequence (const struct weft_cuda_launch *l)
{
  return run_zigzag (l, true);
}

/* ---------------------------------------------------- Ulysses: heads distributed over members */

/* Elements of queries, keys and values per token; each member has an equal share of each. */
struct deal_place {
  uint64_t tokens, members, kind[3];

  __device__ void
  operator() (uint64_t i, uint64_t *from, uint64_t *to) const
  {
    uint64_t row = kind[0] + kind[1] + kind[2], token = i / row, left = i % row, before = 0;
    unsigned which = 0;
    for (; which < 2 && left >= kind[which]; which++) {
      left -= kind[which];
      before += kind[which];
    }
    uint64_t n = kind[which] / members;
    *from = i;
    *to = (left / n * tokens + token) * (row / members) + before / members + left % n;
  }
};

static const char *
run_deal (const struct weft_cuda_launch *l, bool back)
{
  const uint64_t *dim = l->dim; /* the dimensions: tokens, members, heads, groups, width, value */
  uint64_t q = dim[2] * dim[4], k = dim[3] * dim[4], v = dim[3] * (dim[5] ? dim[5] : dim[4]);
  struct deal_place place = { dim[0], dim[1], { q, k, v } };

  return run (l, place, dim[0] * (q + k + v), back);
}

const char *
weft_cuda_split_heads (const struct weft_cuda_launch *l)
{
  return run_deal (l, false);
}

const char *
weft_cuda_join_heads (const struct weft_cuda_launch *l)
{
  return run_deal (l, true);
}

/* ------------------------------------------------------- pieces of FSDP2 and of products */

/* Maps element i of a padded tensor to its place in the slices: pieces of `piece` elements that
 * begin `slice` elements apart. */
struct pack_place {
  uint64_t piece, slice, whole;

  __device__ void
  operator() (uint64_t i, uint64_t *from, uint64_t *to) const
  {
    *from = i < whole ? i : NOWHERE;
    *to = i / piece * slice + i % piece;
  }
};

static struct pack_place
pack_place_of (const struct weft_cuda_launch *l, uint64_t whole)
{
  uint64_t slice = l->dim[0], piece = l->dim[2] && l->dim[2] < slice ? l->dim[2] : slice;
  struct pack_place place = { piece, slice, whole };

  return place;
}

const char *
weft_cuda_pack (const struct weft_cuda_launch *l)
{
  struct pack_place place = pack_place_of (l, l->operand[0].n);
  return run (l, place, place.piece * l->dim[1], false);
}

const char *
weft_cuda_unpack (const struct weft_cuda_launch *l)
{
  struct pack_place place = pack_place_of (l, l->operand[1].n);
  uint64_t padded = place.piece * l->dim[1];

  return run (l, place, place.whole < padded ? place.whole : padded, true);
}

/* Joins `parts` matrices of `columns` columns, stored one after the other, side by side. */
struct join_place {
  uint64_t rows, columns, parts;

  __device__ void
  operator() (uint64_t i, uint64_t *from, uint64_t *to) const
  {
    uint64_t column = i % columns, row = i / columns % rows, part = i / columns / rows;
    *from = i;
    *to = (row * parts + part) * columns + column;
  }
};

const char *
weft_cuda_join_columns (const struct weft_cuda_launch *l)
{
  struct join_place place = { l->dim[0], l->dim[1], l->dim[2] };
  return run (l, place, l->dim[0] * l->dim[1] * l->dim[2], false);
}

/* A range of rows or columns of a matrix. */
struct part_place {
  /* number of columns of this rank; number of columns of the whole; index of the first element of
   * this rank */
  uint64_t columns, all, first;

  __device__ void
  operator() (uint64_t i, uint64_t *from, uint64_t *to) const
  {
    *from = first + i / columns * all + i % columns;
    *to = i;
  }
};

const char *
weft_cuda_take_part (const struct weft_cuda_launch *l)
{
  const uint64_t *dim = l->dim; /* the dimensions: rows, columns, row_parts, column_parts */
  uint64_t rows = dim[0] / dim[2], columns = dim[1] / dim[3];
  struct part_place place = { columns, dim[1], 0 };

  place.first = (dim[2] > 1 ? l->tp.at * rows * dim[1] : 0) + (dim[3] > 1 ? l->tp.at * columns : 0);
  return run (l, place, rows * columns, false);
}

/* Concatenates the rows of two tensors, or, if `apart`, splits them again. */
static const char *
run_beside (const struct weft_cuda_launch *l, bool apart)
{
  const uint64_t *dim = l->dim; /* rows a b */
  uint64_t all = dim[1] + dim[2];
  struct part_place a = { dim[1], all, 0 }, b = { dim[2], all, dim[1] };
  const char *error = run_between (l, 0, apart ? 1 : 2, a, dim[0] * dim[1], !apart);

  return error ? error : run_between (l, apart ? 0 : 1, 2, b, dim[0] * dim[2], !apart);
}

const char *
weft_cuda_concat (const struct weft_cuda_launch *l)
{
  return run_beside (l, false);
}

const char *
weft_cuda_concat_bwd (const struct weft_cuda_launch *l)
{
  return run_beside (l, true);
}

/* Heads of ranks that share a query group (kernels/pieces.c). In each token's row, the part of a
 * rank has q columns of queries, and k columns each of keys and values; the parts of the `sharing`
 * ranks together form a key head and a value head. */
struct shared_place {
  uint64_t tokens, q, k, width, at, first, sharing;
  bool puts;

  __device__ void
  operator() (uint64_t i, uint64_t *from, uint64_t *to) const
  {
    uint64_t part = q + 2 * k, own = q + 2 * width;
    *to = i;
    if (puts) { /* i is an element of the ranks' parts, which is copied from the heads */
      uint64_t rank = i / part / tokens, token = i / part % tokens, column = i % part;
      uint64_t kind = (column - q) / k, rest = (column - q) % k;
      *from = column < q ? token * own + column
                         : token * own + q + kind * width + (rank - first) * k + rest;
      if (column < q ? rank != at : rank - first >= sharing)
        *from = NOWHERE;
    } else { /* i is an element of the heads, which is copied from the ranks' parts */
      uint64_t token = i / own, column = i % own;
      uint64_t kind = (column - q) / width, rest = (column - q) % width;
      *from = column < q ? (at * tokens + token) * part + column
                         : ((first + rest / k) * tokens + token) * part + q + kind * k + rest % k;
    }
  }
};

static const char *
run_shared (const struct weft_cuda_launch *l, bool puts)
{
  const uint64_t *dim = l->dim; /* the dimensions: tokens, parts, heads, groups, width */
  uint64_t sharing = dim[1] / dim[3];
  struct shared_place place = { dim[0], dim[2] / dim[1] * dim[4], dim[3] * dim[4] / dim[1], dim[4],
                                l->tp.at, l->tp.at / sharing * sharing, sharing, puts };
  uint64_t rows = puts ? dim[0] * dim[1] : dim[0];

  return run (l, place, rows * (place.q + 2 * (puts ? place.k : place.width)), false);
}

const char *
weft_cuda_take_heads (const struct weft_cuda_launch *l)
{
  return run_shared (l, false);
}

const char *
weft_cuda_put_heads (const struct weft_cuda_launch *l)
{
  return run_shared (l, true);
}

/* Reorders pieces from the order in which a ring delivered them (own piece first) to rank order, in
 * place: the permutation consists of swaps. */
template <class W>
__global__ void
change_places (W *all, uint64_t piece, uint64_t parts, uint64_t at)
{
  for (WEFT_EACH (i, piece * parts)) {
    uint64_t here = i / piece, there = (at + parts - here) % parts,
             other = there * piece + i % piece;
    if (here < there) {
      W word = all[i];
      all[i] = all[other];
      all[other] = word;
    }
  }
}

struct same_place {
  __device__ void
  operator() (uint64_t i, uint64_t *from, uint64_t *to) const
  {
    *from = *to = i;
  }
};

enum { OWN, CAME, ALL };

const char *
weft_cuda_settle (const struct weft_cuda_launch *l)
{
  const struct weft_cuda_operand *o = l->operand;
  uint64_t parts = l->dim[1], piece = l->dim[0] / parts;
  unsigned blocks = blocks_for (l->dim[0], THREADS, MOST_BLOCKS);

  if (o[OWN].data != o[ALL].data)
    WEFT_LAUNCH ((move<same_place>), blocks, THREADS, 0, l->stream, array_of (&o[OWN]),
                 array_of (&o[ALL]), same_place (), piece, false);
  switch (bytes_of (o[ALL].dtype)) {
  case 4:
    WEFT_LAUNCH ((change_places<uint32_t>), blocks, THREADS, 0, l->stream, (uint32_t *) o[ALL].data,
                 piece, parts, l->tp.at);
    break;
  case 2:
    WEFT_LAUNCH ((change_places<uint16_t>), blocks, THREADS, 0, l->stream, (uint16_t *) o[ALL].data,
                 piece, parts, l->tp.at);
    break;
  default:
    WEFT_LAUNCH ((change_places<uint8_t>), blocks, THREADS, 0, l->stream, (uint8_t *) o[ALL].data,
                 piece, parts, l->tp.at);
  }
  return launched ();
}

/* ------------------------------------------------------------------ one part of a gradient */

/* Sets all elements outside [first, last) to -0.0: adding -0.0 leaves every sum unchanged. */
__global__ void
keep (struct array x, uint64_t n, uint64_t first, uint64_t last)
{
  for (WEFT_EACH (i, n))
    if (i < first || i >= last)
      put (x, i, -0.0f);
}

const char *
weft_cuda_keep_piece (const struct weft_cuda_launch *l)
{
  uint64_t n = l->dim[0], tp = l->tp.of ? l->tp.of : 1, all = tp * (l->cp.of ? l->cp.of : 1);
  uint64_t size = l->dim[1] ? l->dim[1] : all / tp, at = (l->cp.at * tp + l->tp.at) / (all / size);

  WEFT_LAUNCH (keep, blocks_for (n, THREADS, MOST_BLOCKS), THREADS, 0, l->stream,
               array_of (&l->operand[0]), n, n * at / size, n * (at + 1) / size);
  return launched ();
}

__global__ void
add_slices (struct array x, struct array y, uint64_t n, uint64_t slices)
{
  for (WEFT_EACH (i, n)) {
    float sum = 0;
    for (uint64_t slice = 0; slice < slices; slice++)
      sum += get (x, slice * n + i);
    put (y, i, sum);
  }
}

const char *
weft_cuda_sum_slices (const struct weft_cuda_launch *l)
{
  WEFT_LAUNCH (add_slices, blocks_for (l->dim[0], THREADS, MOST_BLOCKS), THREADS, 0, l->stream,
               array_of (&l->operand[0]), array_of (&l->operand[1]), l->dim[0], l->dim[1]);
  return launched ();
}

const char *
weft_cuda_moe_fold (const struct weft_cuda_launch *l)
{
  return weft_cuda_sum_slices (l);
}

__global__ void
add_squares (float *squares, const float *more)
{
  *squares += *more;
}

const char *
weft_cuda_moe_squares (const struct weft_cuda_launch *l)
{
  WEFT_LAUNCH (add_squares, 1, 1, 0, l->stream, (float *) l->operand[0].data,
               (const float *) l->operand[1].data);
  return launched ();
}

/* ------------------------------------------------------------------- merging ring attention */

enum { O, PARTS_LSE, PART_O, PART_LSE };

/* One warp per head of a token; a part without visible keys has weight 0. */
__global__ void
merge (struct array o, float *lse, struct array part, const float *part_lse, uint64_t rows,
       uint64_t heads, uint64_t width, uint64_t sequence)
{
  uint64_t row = ((uint64_t) blockIdx.x * THREADS + threadIdx.x) / 32, lane = threadIdx.x % 32;

  for (; row < rows; row += (uint64_t) gridDim.x * THREADS / 32) {
    uint64_t token = row / heads, head = row % heads;
    uint64_t at = (token / sequence * heads + head) * sequence + token % sequence;
    float mine = lse[at], other = part_lse[at], most = fmaxf (mine, other);
    __syncwarp (); /* all lanes have read lse, which lane 0 overwrites below */
    if (other == -INFINITY)
      continue;
    float a = expf (mine - most), b = expf (other - most), sum = a + b;
    for (uint64_t w = lane; w < width; w += 32)
      put (o, row * width + w,
           get (o, row * width + w) * (a / sum) + get (part, row * width + w) * (b / sum));
    if (lane == 0)
      lse[at] = most + logf (sum);
  }
}

const char *
weft_cuda_attention_merge (const struct weft_cuda_launch *l)
{
  const struct weft_cuda_operand *o = l->operand;
  uint64_t rows = l->dim[0] * l->dim[1];

  WEFT_LAUNCH (merge, blocks_for (rows, THREADS / 32, MOST_BLOCKS), THREADS, 0, l->stream,
               array_of (&o[O]), (float *) o[PARTS_LSE].data, array_of (&o[PART_O]),
               (const float *) o[PART_LSE].data, rows, l->dim[1], l->dim[2], l->model.sequence);
  return launched ();
}
