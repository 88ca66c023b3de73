/* Memory of one rank: one block for each pool, exactly as large as planned.
 *
 * A buffer is alive from its first use in a step to its last use.  Dead bytes are poisoned for the
 * address sanitizer, and filled with NaN if own.poison is set.  A wrong lifetime or a missing
 * dependency then causes a sanitizer report, or NaN in the results. */
#include "exec_cpu/arena.h"
#include "core/base/error.h"
#include "core/base/sanitize.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#if WEFT_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, n) ((void) (at), (void) (n))
#define ASAN_UNPOISON_MEMORY_REGION(at, n) ((void) (at), (void) (n))
#endif

/* byte that, repeated, is a NaN in fp32 and bf16 and an invalid token id in int32 */
#define NAN_BYTE 0xff
#define CACHE_LINE 64 /* bytes of an x86 processor; an estimate for others */
#define SMALL_POOL (32u << 20) /* bytes; the largest that glibc keeps by default: mallopt(3) */

/* Counts the uses of every buffer that owns memory. A permanent buffer stays valid after the step;
 * its count is 0. */
static void
count_uses (struct cpu_rank *r)
{
  const weft_program *p = r->p;

  r->uses = g_new0 (uint32_t, p->n_buf + 1);
  r->uses_left = g_new0 (uint32_t, p->n_buf + 1);
  for (uint32_t u = 0; u < p->op[p->n_op].uses; u++)
    if (p->uses[u].buf != WEFT_NO_BUF && !p->buf[weft_buf_owner (p, p->uses[u].buf)].permanent)
      r->uses[weft_buf_owner (p, p->uses[u].buf)]++;
}

/* Maps memory, in huge pages if the system supports them, because page faults take much time if
 * many ranks run on one machine. */
static void *
map_pool (uint64_t bytes)
{
  void *at = mmap (NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);

#ifdef MADV_HUGEPAGE
  if (at != MAP_FAILED)
    madvise (at, bytes, MADV_HUGEPAGE); /* may fail */
#endif
  return at == MAP_FAILED ? NULL : at;
}

/* Memory of zeros. A small pool is memory of the C library, which a process that opens many small
 * jobs gets again without page faults. Returns NULL if there is none, with errno. */
static void *
take_pool (uint64_t bytes)
{
  void *at = NULL;

  if (bytes > SMALL_POOL)
    return map_pool (bytes);
  errno = posix_memalign (&at, CACHE_LINE, bytes);
  return errno ? NULL : memset (at, 0, bytes);
}

static void
give_pool_back (void *at, uint64_t bytes)
{
  if (bytes > SMALL_POOL)
    munmap (at, bytes);
  else
    free (at);
}

gboolean
cpu_arena_open (struct cpu_rank *r, const struct weft_memory *memory, GError **error)
{
  count_uses (r);
  if (r->m->options.memory) {
    const struct cpu_machine *lender = (const struct cpu_machine *) r->m->options.memory;
    memcpy (r->bind.arena, lender->rank[r->row].bind.arena, sizeof r->bind.arena);
    return TRUE;
  }
  for (int pool = 0; pool < WEFT_N_POOL; pool++) {
    uint64_t bytes = memory->planned[pool];
    if (bytes == 0)
      continue;
    void *at = take_pool (bytes);
    if (!at)
      return weft_run_error (error, "rank %u: %" G_GUINT64_FORMAT " bytes of memory: %s", r->rank,
                             bytes, g_strerror (errno));
    r->bind.arena[pool] = at;
  }
  for (uint32_t b = 0; b < r->p->n_buf; b++)
    /* A buffer that no op uses has no memory of its own: its address may lie in permanent
     * weights. */
    if (r->uses[b] > 0)
      ASAN_POISON_MEMORY_REGION (cpu_arena_at (r, b), r->p->buf[b].bytes);
  return TRUE;
}

void
cpu_arena_close (struct cpu_rank *r, const struct weft_memory *memory)
{
  for (int pool = 0; pool < WEFT_N_POOL; pool++)
    if (r->bind.arena[pool] && !r->m->options.memory) {
      ASAN_UNPOISON_MEMORY_REGION (r->bind.arena[pool], memory->planned[pool]);
      give_pool_back (r->bind.arena[pool], memory->planned[pool]);
    }
  g_free (r->uses);
  g_free (r->uses_left);
}

void
cpu_arena_start (struct cpu_rank *r)
{
  memcpy (r->uses_left, r->uses, r->p->n_buf * sizeof *r->uses);
}

uint8_t *
cpu_arena_at (const struct cpu_rank *r, uint32_t buf)
{
  return weft_bind_at (&r->bind, buf);
}

static void
fill (const struct cpu_rank *r, uint32_t buf)
{
  if (r->m->own.poison)
    memset (cpu_arena_at (r, buf), NAN_BYTE, r->p->buf[buf].bytes);
}

void
cpu_arena_touch (struct cpu_rank *r, uint32_t op)
{
  for (uint32_t u = r->p->op[op].uses; u < r->p->op[op + 1].uses; u++) {
    if (r->p->uses[u].buf == WEFT_NO_BUF)
      continue;
    uint32_t owner = weft_buf_owner (r->p, r->p->uses[u].buf);
    if (r->uses[owner] == 0 || r->uses_left[owner] < r->uses[owner])
      continue;
    ASAN_UNPOISON_MEMORY_REGION (cpu_arena_at (r, owner), r->p->buf[owner].bytes);
    fill (r, owner);
  }
}

void
cpu_arena_release (struct cpu_rank *r, uint32_t op)
{
  for (uint32_t u = r->p->op[op].uses; u < r->p->op[op + 1].uses; u++) {
    if (r->p->uses[u].buf == WEFT_NO_BUF)
      continue;
    uint32_t owner = weft_buf_owner (r->p, r->p->uses[u].buf);
    if (r->uses[owner] == 0 || --r->uses_left[owner] > 0)
      continue;
    fill (r, owner);
    ASAN_POISON_MEMORY_REGION (cpu_arena_at (r, owner), r->p->buf[owner].bytes);
  }
}
