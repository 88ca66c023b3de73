/* Memory of the computing device. The host cannot access device memory while no work runs. In
 * builds with the address sanitizer, a kernel can access only its own operands. */
#include "core/base/sanitize.h"
#include "core/exec/control.h"
#include "kernels/cuda/launch.h"
#include "tests/doubles/computing_cuda.h"
#include <string.h>
#include <sys/mman.h>
#if WEFT_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#endif

#define PAGE 4096u
/* device memory begins at a multiple of this, like memory from cudaMalloc() */
#define ALIGNMENT 256u
#define MOST_FILLED (1u << 20) /* Larger memory, such as scratch, is not filled with NaN. */

static const struct computing_arena *
arena (const computing_cuda *d, uint32_t i)
{
  return &g_array_index (d->arena, struct computing_arena, i);
}

void
computing_let_host (computing_cuda *d, gboolean touch)
{
  for (uint32_t i = 0; i < d->arena->len && touch != d->open; i++) {
    const struct computing_arena *a = arena (d, i);
    if (a->pool != WEFT_POOL_HOST)
      mprotect (a->base, a->pages, touch ? PROT_READ | PROT_WRITE : PROT_NONE);
  }
  d->open = touch;
}

/* Allocates an arena that ends at an inaccessible page, or less than ALIGNMENT bytes before one, so
 * that an access behind the arena ends the process. */
void *
computing_map (computing_cuda *d, enum weft_pool pool, uint64_t bytes)
{
  uint64_t room = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  uint64_t pages = (room + PAGE - 1) / PAGE * PAGE;
  void *base = mmap (NULL, pages + PAGE, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

  g_assert (base != MAP_FAILED);
  struct computing_arena new = { base, pages, (uint8_t *) base + pages - room, bytes, pool };
  if (bytes <= MOST_FILLED)
    memset (new.at, 0xff, bytes);
  mprotect ((uint8_t *) base + pages, PAGE, PROT_NONE);
  if (pool != WEFT_POOL_HOST)
    mprotect (base, pages, PROT_NONE);
  g_array_append_val (d->arena, new);
  return new.at;
}

gboolean
computing_unmap (computing_cuda *d, enum weft_pool pool, const void *at, uint64_t *bytes)
{
  for (uint32_t i = 0; i < d->arena->len; i++) {
    const struct computing_arena a = *arena (d, i);
    if (a.at != at)
      continue;
    g_assert (a.pool == pool);
    munmap (a.base, a.pages + PAGE);
    g_array_remove_index_fast (d->arena, i);
    *bytes = a.bytes;
    return TRUE;
  }
  return FALSE;
}

/* ------------------------------------------------------------------------ operands */

#if WEFT_ADDRESS_SANITIZER
static void
open_arenas (const computing_cuda *d, gboolean open)
{
  for (uint32_t i = 0; i < d->arena->len; i++) {
    const struct computing_arena *a = arena (d, i);
    if (a->pool != WEFT_POOL_HOST)
      (open ? __asan_unpoison_memory_region : __asan_poison_memory_region) (a->at, a->bytes);
  }
}

static void
open_operands (const struct weft_cuda_launch *l)
{
  for (uint32_t o = 0; o < WEFT_CUDA_MOST_OPERANDS; o++) {
    const struct weft_cuda_operand *x = &l->operand[o];
    if (x->data)
      __asan_unpoison_memory_region (x->data, x->n * weft_dtype_bytes (x->dtype));
  }
  if (l->control)
    __asan_unpoison_memory_region (l->control, sizeof *l->control);
  if (l->scratch)
    __asan_unpoison_memory_region (l->scratch, l->scratch_bytes);
}

void
computing_fence (const computing_cuda *d, const struct weft_cuda_launch *l, uint32_t n)
{
  open_arenas (d, FALSE);
  for (uint32_t i = 0; i < n; i++)
    open_operands (&l[i]);
}

void
computing_unfence (const computing_cuda *d)
{
  open_arenas (d, TRUE);
}
#else
void
computing_fence (const computing_cuda *d, const struct weft_cuda_launch *l, uint32_t n)
{
  (void) d, (void) l, (void) n;
}

void
computing_unfence (const computing_cuda *d)
{
  (void) d;
}
#endif
