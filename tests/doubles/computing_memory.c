/* Memory of the computing device. The host cannot access device memory while no work runs. In
 * builds with the address sanitizer, a kernel can access only its own operands. */
#define _GNU_SOURCE /* memfd_create() */
#include "core/base/sanitize.h"
#include "core/exec/control.h"
#include "kernels/cuda/launch.h"
#include "tests/doubles/computing_cuda.h"
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#if WEFT_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#endif

#define PAGE 4096u
/* device memory begins at a multiple of this, like memory from cudaMalloc() */
#define ALIGNMENT 256u
#define REGION (UINT64_C (64) << 30) /* addresses for all device memory */
#define MOST_FILLED (1u << 20)       /* Larger memory, such as scratch, is not filled with NaN. */

static const struct computing_arena *
arena (const computing_cuda *d, uint32_t i)
{
  return &g_array_index (d->arena, struct computing_arena, i);
}

/* All device memory lies in one region, so that one call of mprotect() changes the access to all
 * arenas. The rest of the region is a mapping of an empty file: an access to it ends the process,
 * whatever mprotect() allows (SIGBUS, mmap(2)). */
static void
open_region (computing_cuda *d)
{
  d->empty_file = memfd_create ("no device memory", MFD_CLOEXEC);
  g_assert (d->empty_file >= 0);
  d->region = mmap (NULL, REGION, PROT_NONE, MAP_SHARED | MAP_NORESERVE, d->empty_file, 0);
  g_assert (d->region != MAP_FAILED);
}

void
computing_close_region (computing_cuda *d)
{
  if (!d->region)
    return;
  munmap (d->region, REGION);
  close (d->empty_file);
}

void
computing_let_host (computing_cuda *d, gboolean touch)
{
  if (touch != d->open && d->region)
    g_assert (mprotect (d->region, d->used, touch ? PROT_READ | PROT_WRITE : PROT_NONE) == 0);
  d->open = touch;
}

/* Like computing_let_host(), for the pages of `bytes` bytes at `at`. Has no effect on host memory,
 * and while all device memory is accessible. */
static void
let_pages (computing_cuda *d, const void *at, uint64_t bytes, gboolean touch)
{
  uint64_t from = (uint64_t) ((const uint8_t *) at - d->region) / PAGE * PAGE,
           end = (uint64_t) ((const uint8_t *) at - d->region) + bytes;

  if (!d->open && (const uint8_t *) at >= d->region && end <= d->used && bytes)
    g_assert (mprotect (d->region + from, end - from, touch ? PROT_READ | PROT_WRITE : PROT_NONE) ==
              0);
}

static void
let_copy (computing_cuda *d, const struct computing_item *item, gboolean touch)
{
  let_pages (d, item->copy.to, item->copy.bytes, touch);
  if (item->kind == COMPUTING_COPY)
    let_pages (d, item->copy.from, item->copy.bytes, touch);
}

void
computing_copy (computing_cuda *d, const struct computing_item *item)
{
  let_copy (d, item, TRUE);
  if (item->kind == COMPUTING_COPY)
    memcpy (item->copy.to, item->copy.from, item->copy.bytes);
  else
    memset (item->copy.to, (int) item->value, item->copy.bytes);
  let_copy (d, item, FALSE);
}

/* Maps pages at the end of the used part of the region. */
static uint8_t *
map_device (computing_cuda *d, uint64_t pages)
{
  if (!d->region)
    open_region (d);
  uint8_t *base = d->region + d->used;
  d->used += pages + PAGE;
  g_assert (d->used <= REGION);
  return mmap (base, pages, PROT_READ | PROT_WRITE,
               MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

static uint8_t *
map_host (uint64_t pages)
{
  uint8_t *base = mmap (NULL, pages + PAGE, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

  g_assert (base == MAP_FAILED || mprotect (base + pages, PAGE, PROT_NONE) == 0);
  return base;
}

/* Allocates an arena that ends at an inaccessible page, or less than ALIGNMENT bytes before one, so
 * that an access behind the arena ends the process. */
void *
computing_map (computing_cuda *d, enum weft_pool pool, uint64_t bytes)
{
  uint64_t room = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  uint64_t pages = (room + PAGE - 1) / PAGE * PAGE;
  uint8_t *base = pool == WEFT_POOL_HOST ? map_host (pages) : map_device (d, pages);

  g_assert (base != MAP_FAILED);
  struct computing_arena new = { base, pages, base + pages - room, bytes, pool };
  if (bytes <= MOST_FILLED)
    memset (new.at, 0xff, bytes);
  if (pool != WEFT_POOL_HOST)
    mprotect (base, pages, PROT_NONE);
  g_array_append_val (d->arena, new);
  return new.at;
}

/* Returns the pages of a freed arena to the empty file. The used part of the region then ends
 * behind the last arena. */
static void
unmap_device (computing_cuda *d, const struct computing_arena *a)
{
  off_t offset = (off_t) ((uint8_t *) a->base - d->region);

  g_assert (mmap (a->base, a->pages, d->open ? PROT_READ | PROT_WRITE : PROT_NONE,
                  MAP_FIXED | MAP_SHARED | MAP_NORESERVE, d->empty_file, offset) == a->base);
  d->used = 0;
  for (uint32_t i = 0; i < d->arena->len; i++) {
    const struct computing_arena *left = arena (d, i);
    uint64_t end = (uint64_t) ((uint8_t *) left->base - d->region) + left->pages + PAGE;
    if (left->pool != WEFT_POOL_HOST)
      d->used = MAX (d->used, end);
  }
}

gboolean
computing_unmap (computing_cuda *d, enum weft_pool pool, const void *at, uint64_t *bytes)
{
  for (uint32_t i = 0; i < d->arena->len; i++) {
    const struct computing_arena a = *arena (d, i);
    if (a.at != at)
      continue;
    g_assert (a.pool == pool);
    g_array_remove_index_fast (d->arena, i);
    if (pool == WEFT_POOL_HOST)
      munmap (a.base, a.pages + PAGE);
    else
      unmap_device (d, &a);
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
