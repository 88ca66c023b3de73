#include "core/plan/caching.h"
#include <math.h>

/* Constants of CUDACachingAllocator.cpp: kMinBlockSize, kSmallSize, kSmallBuffer, kMinLargeAlloc,
 * kLargeBuffer, kRoundLarge; bytes. */
#define UNIT 512.0
#define MOST_SMALL 1048576.0
#define SMALL_SEGMENT 2097152.0
#define LEAST_LARGE 10485760.0
#define LARGE_SEGMENT 20971520.0
#define LARGE_UNIT 2097152.0

enum pool { SMALL, LARGE, N_POOL };

/* Block 0 is no block: it is the key of a search. */
struct block {
  double bytes, address;
  uint32_t before, after; /* neighbours in the segment; 0: none */
  uint8_t pool, free;
};

struct weft_caching {
  GArray *blocks;      /* array of struct block */
  GTree *free[N_POOL]; /* numbers of free blocks, ordered by bytes and address */
  double most, reserved;
  double end; /* address after the last segment */
};

static struct block *
at (const weft_caching *c, uint32_t block)
{
  return &g_array_index (c->blocks, struct block, block);
}

static int
by_size (const void *a, const void *b, void *data)
{
  const weft_caching *c = data;
  const struct block *x = at (c, GPOINTER_TO_UINT (a)), *y = at (c, GPOINTER_TO_UINT (b));

  if (x->bytes != y->bytes)
    return x->bytes < y->bytes ? -1 : 1;
  return (x->address > y->address) - (x->address < y->address);
}

weft_caching *
weft_caching_new (double most)
{
  weft_caching *c = g_new0 (weft_caching, 1);
  struct block none = { 0 };

  c->blocks = g_array_new (FALSE, FALSE, sizeof (struct block));
  g_array_append_val (c->blocks, none);
  for (int pool = 0; pool < N_POOL; pool++)
    c->free[pool] = g_tree_new_with_data (by_size, c);
  c->most = most;
  return c;
}

void
weft_caching_free (weft_caching *c)
{
  for (int pool = 0; pool < N_POOL; pool++)
    g_tree_unref (c->free[pool]);
  g_array_unref (c->blocks);
  g_free (c);
}

static void
set_free (weft_caching *c, uint32_t block, gboolean is_free)
{
  GTree *tree = c->free[at (c, block)->pool];

  at (c, block)->free = (uint8_t) is_free;
  if (is_free)
    g_tree_insert (tree, GUINT_TO_POINTER (block), GUINT_TO_POINTER (block));
  else
    g_tree_remove (tree, GUINT_TO_POINTER (block));
}

/* Takes the smallest free block of at least `bytes` out of its pool; 0: there is none. */
static uint32_t
best_fit (weft_caching *c, enum pool pool, double bytes)
{
  at (c, 0)->bytes = bytes;
  GTreeNode *node = g_tree_lower_bound (c->free[pool], GUINT_TO_POINTER (0));
  if (!node)
    return 0;
  uint32_t block = GPOINTER_TO_UINT (g_tree_node_key (node));
  set_free (c, block, FALSE);
  return block;
}

/* Returns all free segments of a pool to the driver. */
static void
release (weft_caching *c, enum pool pool)
{
  GTreeNode *node = g_tree_node_first (c->free[pool]);

  while (node) {
    uint32_t block = GPOINTER_TO_UINT (g_tree_node_key (node));
    node = g_tree_node_next (node);
    if (at (c, block)->before || at (c, block)->after)
      continue;
    set_free (c, block, FALSE);
    c->reserved -= at (c, block)->bytes;
  }
}

static double
segment_bytes (enum pool pool, double bytes)
{
  if (pool == SMALL)
    return SMALL_SEGMENT;
  return bytes < LEAST_LARGE ? LARGE_SEGMENT : ceil (bytes / LARGE_UNIT) * LARGE_UNIT;
}

static uint32_t
new_segment (weft_caching *c, enum pool pool, double bytes)
{
  struct block block = { segment_bytes (pool, bytes), c->end, 0, 0, (uint8_t) pool, FALSE };

  if (c->reserved + block.bytes > c->most)
    for (int each = 0; each < N_POOL; each++)
      release (c, each);
  c->reserved += block.bytes;
  c->end += block.bytes;
  g_array_append_val (c->blocks, block);
  return c->blocks->len - 1;
}

/* Cuts a block after `bytes`; the rest becomes a free block. */
static void
split (weft_caching *c, uint32_t block, double bytes)
{
  struct block rest = *at (c, block);
  uint32_t number = c->blocks->len;

  rest.bytes -= bytes;
  rest.address += bytes;
  rest.before = block;
  g_array_append_val (c->blocks, rest);
  if (rest.after)
    at (c, rest.after)->before = number;
  at (c, block)->bytes = bytes;
  at (c, block)->after = number;
  set_free (c, number, TRUE);
}

uint32_t
weft_caching_take (weft_caching *c, double bytes)
{
  double rounded = ceil (bytes / UNIT) * UNIT;
  enum pool pool = rounded <= MOST_SMALL ? SMALL : LARGE;

  if (bytes <= 0)
    return 0;
  uint32_t block = best_fit (c, pool, rounded);
  if (!block)
    block = new_segment (c, pool, rounded);
  double rest = at (c, block)->bytes - rounded;
  if (pool == SMALL ? rest >= UNIT : rest > MOST_SMALL)
    split (c, block, rounded);
  return block;
}

/* Joins a free block with the free block after it. */
static void
join (weft_caching *c, uint32_t block, uint32_t next)
{
  set_free (c, next, FALSE);
  at (c, block)->bytes += at (c, next)->bytes;
  at (c, block)->after = at (c, next)->after;
  if (at (c, next)->after)
    at (c, at (c, next)->after)->before = block;
}

void
weft_caching_give (weft_caching *c, uint32_t block)
{
  if (!block)
    return;
  uint32_t before = at (c, block)->before, after = at (c, block)->after;
  if (after && at (c, after)->free)
    join (c, block, after);
  if (before && at (c, before)->free) {
    set_free (c, before, FALSE);
    at (c, before)->bytes += at (c, block)->bytes;
    at (c, before)->after = at (c, block)->after;
    if (at (c, block)->after)
      at (c, at (c, block)->after)->before = before;
    block = before;
  }
  set_free (c, block, TRUE);
}

double
weft_caching_reserved (const weft_caching *c)
{
  return c->reserved;
}
