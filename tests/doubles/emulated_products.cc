/* wgmma (PTX) on the emulator, with every freedom that the PTX manual gives a device.
 *
 * A product (one wgmma) is computed when the kernel waits for it, from what the matrices contain at
 * that time. Until then its accumulators are NaN, and the kernel must write neither fragments nor
 * accumulators. A product sees data of cp.async only after the copying thread has executed the
 * fence to the async proxy. */
#include "tests/doubles/emulated_cuda.h"
#include "tests/doubles/emulated_cuda.hh"
#include "tests/doubles/emulated_races.hh"
#include <stdio.h>
#include <stdlib.h>
#include <vector>

enum {
  WARP = 32,
  WARPS = 4,
  ROWS = 16 /* rows that one warp computes */,
  MOST_TERMS = 32,
  MOST_COLUMNS = 256,
  WORDS = 4
};
enum { CHUNK = 16 /* bytes that one cp.async copies */ };

/* A NaN, which accumulators contain while a product is in flight. */
static const uint32_t in_flight = 0x7fc0dead;

struct product {
  emulated_product it;
  /* the fragments of the left matrix, copied from the registers when the product was issued */
  uint32_t fragments[WORDS];
};

/* The accumulators of a thread that have wgmma products in flight, and their values before the
 * first of these products. */
struct busy {
  float *sum;
  unsigned n, products;
  std::vector<float> before;
};

/* The wgmma products and the cp.async copies of a thread that have not completed. */
struct flight {
  std::vector<product> open; /* issued products that no wgmma.commit_group has committed yet */
  std::vector<std::vector<product>> groups;
  std::vector<busy> sums;
  /* chunks of shared memory that cp.async has written, before the fence */
  std::vector<size_t> copies;
  bool begun; /* TRUE: a wgmma.fence was executed, and no wait has followed */
  size_t issued;
};

/* The two matrix descriptors of a wgmma. All four warps of a warpgroup must pass the same two. */
struct issued {
  uint64_t a, b;
};

static std::vector<flight>
    flights; /* [thread of the block]; empty if the block has issued no product and no cp.async */
static std::vector<std::vector<issued>> warpgroups;
/* [chunk of shared memory]: 1 after cp.async has written the chunk, until the fence to the async
 * proxy */
static std::vector<uint8_t> unseen;
static size_t bytes; /* size of the block's shared memory in bytes */
static bool expected;
static const char *first_complaint;

void
emulated_expect_complaints (int yes)
{
  expected = yes != 0;
  first_complaint = NULL;
}

const char *
emulated_complaint (void)
{
  return first_complaint;
}

static void
complain (const char *text)
{
  if (!expected) {
    fprintf (stderr, "products of a warpgroup: %s\n", text);
    abort ();
  }
  first_complaint = first_complaint ? first_complaint : text;
}

void
emulated_products_open (size_t shared)
{
  bytes = shared;
  flights.clear ();
  warpgroups.clear ();
  unseen.clear ();
}

/* Checks that the four warps of each warpgroup have issued the same number of wgmma products. */
static void
check_issued (void)
{
  for (size_t i = 0; i < flights.size (); i++)
    if (flights[i].issued != warpgroups[i / (WARP * WARPS)].size ())
      complain ("warps of a warpgroup have issued different numbers of products");
  for (size_t i = 0; i < warpgroups.size (); i++)
    if (!warpgroups[i].empty () && (i + 1) * WARP * WARPS > flights.size ())
      complain ("a warpgroup does not have four warps");
}

void
emulated_products_close (void)
{
  for (const flight &f : flights)
    if (!f.open.empty () || !f.groups.empty ())
      complain ("a thread has ended without waiting for its products");
  check_issued ();
}

static flight *
mine (void)
{
  emulated_unwatched own;

  if (flights.empty ()) {
    flights.resize (blockDim.x);
    warpgroups.assign (blockDim.x / (WARP * WARPS) + 1, {});
    unseen.assign ((bytes + CHUNK - 1) / CHUNK, 0);
  }
  return &flights[threadIdx.x];
}

/* ---------------------------------------------------------------------- shared memory */

void
emulated_copy_arrived (const void *to)
{
  size_t at = (size_t) ((const uint8_t *) to - emulated_shared) / CHUNK;
  emulated_unwatched own;

  if ((const uint8_t *) to < emulated_shared || at >= bytes / CHUNK)
    return;
  mine ()->copies.push_back (at);
  unseen[at] = 1;
}

void
emulated_copies_are_seen (void)
{
  emulated_unwatched own;

  for (size_t at : mine ()->copies)
    unseen[at] = 0;
  mine ()->copies.clear ();
}

bool
emulated_is_seen (const void *from, size_t n)
{
  size_t at = (size_t) ((const uint8_t *) from - emulated_shared) / CHUNK;

  for (size_t i = 0; i < n / CHUNK && at + i < unseen.size (); i++)
    if (unseen[at + i])
      return false;
  return true;
}

/* A matrix in shared memory, given by its wgmma descriptor. `outer` counts rows of the left matrix
 * or columns of the right one. Rows have 128 bytes and are swizzled: bits 4 to 6 of an address are
 * XORed with bits 7 to 9. */
struct described {
  uint64_t bits;
  bool turned;

  uint64_t field (unsigned from) const
  {
    return (bits >> from & 0x3fff) * 16;
  }

  uint64_t at (unsigned outer, unsigned term) const
  {
    uint64_t panel = field (16), eight = field (32);
    uint64_t plain = turned
                         ? outer / 64 * panel + outer % 64 * 2 + term / 8 * eight + term % 8 * 128
                         : outer / 8 * eight + outer % 8 * 128 + term * 2;
    uint64_t linear = field (0) + plain;
    return linear ^ (linear >> 7 & 7) << 4;
  }

  uint16_t element (unsigned outer, unsigned term) const
  {
    uint64_t where = at (outer, term);
    uint16_t out = 0;

    if (where + sizeof out > bytes) {
      complain ("a matrix ends beyond shared memory");
      return out;
    }
    if (unseen[where / CHUNK])
      complain ("a wgmma reads copied data without a fence to the async proxy");
    memcpy (&out, emulated_shared + where, sizeof out);
    return out;
  }
};

uint64_t
emulated_matrix_place (uint64_t bits, bool turned, unsigned outer, unsigned term)
{
  return described{ bits, turned }.at (outer, term);
}

/* Tells the race detector that the running thread reads part of a matrix. */
static void
watch_matrix (const described &m, unsigned first, unsigned n, unsigned terms)
{
  unsigned outer_step = m.turned ? CHUNK / 2 : 1, term_step = m.turned ? 1 : CHUNK / 2;

  for (unsigned outer = first; outer < first + n; outer += outer_step)
    for (unsigned term = 0; term < terms; term += term_step)
      if (m.at (outer, term) + CHUNK <= bytes)
        emulated_races_read (emulated_shared + m.at (outer, term), CHUNK);
}

static void
check_described (uint64_t bits)
{
  if (bits >> 62 != 1)
    complain ("a matrix is not laid out in rows of 128 bytes");
  if (bits >> 49 & 7)
    complain ("a matrix has a base offset");
  if (bits >> 3 & 7) /* the matrix must start at a multiple of 1024 bytes */
    complain ("a matrix without base offset does not begin at a multiple of eight rows");
}

/* ----------------------------------------------------------------------------- issuing */

static busy *
find_busy (flight *f, const float *sum)
{
  for (busy &b : f->sums)
    if (b.sum == sum)
      return &b;
  return NULL;
}

static void
poison (float *sum, unsigned n)
{
  for (unsigned i = 0; i < n; i++)
    memcpy (sum + i, &in_flight, sizeof in_flight);
}

static bool
is_poisoned (const float *sum, unsigned n)
{
  for (unsigned i = 0; i < n; i++)
    if (memcmp (sum + i, &in_flight, sizeof in_flight) != 0)
      return false;
  return true;
}

static void
compare_warps (flight *f, const emulated_product &it)
{
  std::vector<issued> &all = warpgroups[threadIdx.x / (WARP * WARPS)];
  size_t i = f->issued++;

  if (i == all.size ())
    all.push_back ({ it.a_at, it.b });
  else if (i > all.size () || all[i].a != it.a_at || all[i].b != it.b)
    complain ("warps of a warpgroup multiply different matrices");
}

/* Tells the race detector which memory a wgmma product in flight reads. One lane of each warp does
 * this for all lanes. */
static void
watch (const emulated_product &it)
{
  /* A wgmma reads 16 elements of 16 bits along the summed dimension. Two fp8 values are one such
   * element. */
  const unsigned words = 16;

  if (threadIdx.x % WARP)
    return;
  watch_matrix ({ it.b, it.b_turned }, 0, it.columns, words);
  if (!it.a)
    watch_matrix ({ it.a_at, it.a_turned }, threadIdx.x / WARP % WARPS * ROWS, ROWS, words);
}

void
emulated_products_begin (void)
{
  emulated_unwatched own;

  mine ()->begun = true;
}

void
emulated_multiply (const emulated_product &it)
{
  if (EMULATED_RACES)
    watch (it);
  emulated_unwatched own;
  flight *f = mine ();
  busy *b = find_busy (f, it.sum);
  unsigned n = it.columns / 2;
  product p = { it, {} };

  check_described (it.b);
  if (!it.a)
    check_described (it.a_at);
  else
    memcpy (p.fragments, it.a, sizeof p.fragments);
  if (!f->begun)
    complain ("a product was issued after a wait without a fence");
  if (!b) {
    f->sums.push_back ({ it.sum, n, 0, std::vector<float> (it.sum, it.sum + n) });
    b = &f->sums.back ();
    poison (it.sum, n);
  }
  if (b->n != n)
    complain ("products of several shapes accumulate into the same registers");
  b->products++;
  f->open.push_back (p);
  compare_warps (f, it);
}

void
emulated_products_commit (void)
{
  emulated_unwatched own;
  flight *f = mine ();

  f->groups.push_back (f->open);
  f->open.clear ();
}

/* ----------------------------------------------------------------------------- waiting */

static unsigned
terms_of (const emulated_product &it)
{
  return it.left_code ? 32 : 16;
}

/* An element of a matrix in shared memory, at a row or column `outer` and a position `term` of the
 * summed dimension. Two fp8 values are stored as one 16-bit element. */
static float
element_in (const described &matrix, unsigned outer, unsigned term, const emulated_product &it,
            float (*code) (uint8_t))
{
  if (!code)
    return it.decoded (matrix.element (outer, term));
  return code ((uint8_t) (matrix.element (outer, term / 2) >> term % 2 * 8));
}

/* One wgmma product of a warp, with the operands of all its lanes. */
struct together {
  const product *lane[WARP];

  float left (unsigned row, unsigned term) const
  {
    const emulated_product &it = lane[0]->it;
    unsigned warp = threadIdx.x / WARP % WARPS;
    if (!it.a)
      return element_in ({ it.a_at, it.a_turned }, warp * ROWS + row, term, it, it.left_code);
    const product *p = lane[row % 8 * 4 + term % 8 / 2];
    uint32_t word = p->it.a[row / 8 + term / 8 * 2];
    if (memcmp (p->fragments, p->it.a, sizeof p->fragments) != 0)
      complain ("fragments were written before the wait for their product");
    return it.decoded ((uint16_t) (word >> term % 2 * 16));
  }
};

/* The accumulator of a lane for a row of its warp and a column. */
static float *
element_of (float *sum, unsigned row, unsigned column)
{
  return sum + column / 8 * 4 + row / 8 * 2 + column % 2;
}

static void
check_alike (const together &t)
{
  for (unsigned lane = 1; lane < WARP; lane++) {
    const emulated_product &x = t.lane[0]->it, &y = t.lane[lane]->it;
    if (x.columns != y.columns || x.a_at != y.a_at || x.b != y.b || x.adds != y.adds)
      complain ("lanes of a warp multiply different matrices");
  }
}

static void
make (const together &t, float *const sums[WARP])
{
  const emulated_product &it = t.lane[0]->it;
  static float left[ROWS][MOST_TERMS], right[MOST_TERMS][MOST_COLUMNS], row_sum[MOST_COLUMNS];
  const described b = { it.b, it.b_turned };
  const unsigned terms = terms_of (it);

  check_alike (t);
  for (unsigned k = 0; k < terms; k++) {
    for (unsigned row = 0; row < ROWS; row++)
      left[row][k] = t.left (row, k);
    for (unsigned column = 0; column < it.columns; column++)
      right[k][column] = element_in (b, column, k, it, it.right_code);
  }
  for (unsigned row = 0; row < ROWS; row++) {
    for (unsigned column = 0; column < it.columns; column++)
      row_sum[column] = it.adds ? *element_of (sums[row % 8 * 4 + column % 8 / 2], row, column) : 0;
    for (unsigned k = 0; k < terms; k++)
      for (unsigned column = 0; column < it.columns; column++)
        row_sum[column] += left[row][k] * right[k][column];
    for (unsigned column = 0; column < it.columns; column++)
      *element_of (sums[row % 8 * 4 + column % 8 / 2], row, column) = row_sum[column];
  }
}

/* Restores those accumulators of a thread that no product in flight writes any more. */
static void
give_back (flight *f)
{
  for (size_t i = f->sums.size (); i-- > 0;) {
    busy &b = f->sums[i];
    if (b.products)
      continue;
    if (!is_poisoned (b.sum, b.n))
      complain ("sums were written before the wait for their product");
    memcpy (b.sum, b.before.data (), b.n * sizeof *b.sum);
    f->sums.erase (f->sums.begin () + (long) i);
  }
}

/* Computes the oldest group of wgmma products of a warp. The first lane computes for all lanes of
 * the warp. */
static void
make_group (flight *const lanes[WARP])
{
  for (size_t i = 0; i < lanes[0]->groups.front ().size (); i++) {
    together t;
    float *sums[WARP];
    for (unsigned lane = 0; lane < WARP; lane++) {
      if (lanes[lane]->groups.front ().size () != lanes[0]->groups.front ().size ()) {
        complain ("lanes of a warp have issued different numbers of products");
        return;
      }
      t.lane[lane] = &lanes[lane]->groups.front ()[i];
      busy *b = find_busy (lanes[lane], t.lane[lane]->it.sum);
      sums[lane] = b->before.data ();
      b->products--;
    }
    make (t, sums);
  }
}

/* A lane that waits until at most `open` of its groups of wgmma products are in flight. */
struct waiting {
  flight *f;
  unsigned open;
};

static void
make_groups (void *const *lane)
{
  flight *lanes[WARP];

  for (unsigned i = 0; i < WARP; i++)
    lanes[i] = ((const waiting *) lane[i])->f;
  while (lanes[0]->groups.size () > ((const waiting *) lane[0])->open) {
    make_group (lanes);
    for (flight *each : lanes)
      each->groups.erase (each->groups.begin ());
  }
}

static void
watch_groups (const waiting &w)
{
  for (size_t i = 0; EMULATED_RACES && i + w.open < w.f->groups.size (); i++)
    for (const product &p : w.f->groups[i])
      watch (p.it);
}

void
emulated_products_wait (unsigned open)
{
  waiting mine_waits = { mine (), open };

  watch_groups (mine_waits);
  emulated_unwatched own;
  mine_waits.f->begun = false;
  emulated_meet (&mine_waits, make_groups, __LINE__);
  give_back (mine_waits.f);
}
